"""Software and settings that are the same on all nodes, where one other node fails at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from pytest_mnode.criteria.preflight.answers import NodeSurvey
from pytest_mnode.criteria.preflight.node_links import networks_of
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.software import NOT_THERE, UNREADABLE
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.inventory import Inventory

Part = Literal[
    "code",
    "python",
    "torch",
    "packages",
    "nccl",
    "driver",
    "firmware",
    "kernel",
    "sysctl",
    "cpu",
    "microcode",
]
PARTS: tuple[Part, ...] = get_args(Part)
_READ_FROM = {"firmware": "rdma", "sysctl": "settings"}
"""The part of the machine that a part of the promise is read from, if that is not `software`."""
_OF_INTERFACE = "net.ipv4.conf."


def _once(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    if len(set(parts)) < len(parts):
        raise ValueError(f"[{', '.join(parts)}] lists one twice; accepted: each once")
    return parts


Parts = Annotated[tuple[Part, ...], Field(min_length=1), AfterValidator(_once)]


@check("preflight.same")
class NodesAreTheSame(SurveyCheck):
    """Does this node have the same code, versions, driver, firmware and kernel as the others?"""

    promise: Parts
    """Parts that are the same on all nodes; sysctl: kernel settings that networks depend on, and
    limits of processes and memory; cpu: number and model of sockets; microcode: of all CPUs."""
    each = PARTS

    def unread(self, node: NodeSurvey) -> str:
        if self.part == "code":
            lacks = node.facts is not None and node.facts.code is None
            return "no programs, read in time" if lacks else node.why()
        return node.why(_READ_FROM.get(self.part, "software"))

    def rows(self, node: NodeSurvey) -> Iterator[Row]:
        for item, value in items_of(node, self.spec, self.part).items():
            device = "" if item == self.part else item
            is_known = not value.startswith((NOT_THERE, UNREADABLE))
            yield row(self.part, value if is_known else None, device=device, why=value)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        if self.part in self.promise and len(rows.by_node) > 1:
            # A setting that a namespace hides is unknown; a package is not there.
            yield rows.same(self.part, absent=None if self.part == "sysctl" else "none")

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        if not cluster.accelerators.per_node:
            for part in sorted({"nccl", "driver"}.intersection(self.promise)):
                yield f": {part}, but accelerators.per_node is 0"


def items_of(node: NodeSurvey, cluster: Inventory, part: str) -> Mapping[str, str]:
    """Items of a part (files, packages, versions) with their values; empty if there is none."""
    machine = node.machine
    if part == "code":
        return (node.facts.code if node.facts else None) or {}
    if part == "firmware":
        return {one.name: one.firmware for one in machine.rdma or () if one.firmware}
    if part == "sysctl":
        return {} if machine.settings is None else _settings(machine, machine.settings, cluster)
    found: Mapping[str, str] | str | None = getattr(machine.software, part, None)
    return {part: found} if isinstance(found, str) else found or {}


def _settings(
    machine: Machine, settings: Mapping[str, str], cluster: Inventory
) -> Mapping[str, str]:
    """Settings and offloads, without those of interfaces that are on no network of the spec."""
    networks = networks_of(cluster).values()
    there = {one.name: one for net in networks for one in machine.matching(net.interfaces)}
    offloads = {
        f"{name} {offload}": "enabled" if is_on else "disabled"
        for name, one in there.items()
        for offload, is_on in one.offloads.items()
    }
    return offloads | {
        name: value
        for name, value in settings.items()
        if not name.startswith(_OF_INTERFACE)
        or name.removeprefix(_OF_INTERFACE).rpartition(".")[0] in {"all", *there}
    }

"""The cluster spec as frozen values, with one model per criterion: a new criterion is added here.
Read one with `load_spec`. `doubts` finds promises that links cannot keep, or that are so low that
they would hide a fault."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from pytest_mnode.evidence.check import Check, on_late_check
from pytest_mnode.spec import bandwidth
from pytest_mnode.spec.checked import PreflightCriterion
from pytest_mnode.spec.checks import DataCriterion, GroupsCriterion
from pytest_mnode.spec.devices import DevicesCriterion, NumaCriterion
from pytest_mnode.spec.fabric import BusbwPromise, FabricCriterion
from pytest_mnode.spec.fields import Seconds, Section, Text, keys_of, model_in
from pytest_mnode.spec.gang import GangCriterion
from pytest_mnode.spec.inventory import Criterion, Inventory
from pytest_mnode.spec.launch import LaunchCriterion
from pytest_mnode.spec.quantity import RATE
from pytest_mnode.spec.restart import RestartCriterion
from pytest_mnode.spec.scaling import ScalingCriterion
from pytest_mnode.spec.soak import SoakCriterion
from pytest_mnode.spec.storage import StorageCriterion
from pytest_mnode.spec.traffic import TrafficCriterion
from pytest_mnode.spec.tuning import TuningCriterion
from pytest_mnode.spec.workload import WorkloadCriterion


class MeshCriterion(Criterion):
    """Every rank meets every other and sums right: exact, so there is no bound to set."""


class Criteria(Section):
    """What is promised: one key per criterion, holding its bounds."""

    preflight: PreflightCriterion | None = None
    """Is every node fit for what is to run on it?"""
    mesh: MeshCriterion | None = None
    """Can all ranks exchange data, with correct sums?"""
    numa: NumaCriterion | None = None
    """Do ranks run, allocate and send beside their accelerators?"""
    devices: DevicesCriterion | None = None
    """Is every rank as fast by itself as the others?"""
    fabric: FabricCriterion | None = None
    """Do collectives reach the line rate?"""
    groups: GroupsCriterion | None = None
    """Do parallel dimensions have the right ranks, and sum right?"""
    data: DataCriterion | None = None
    """Does every sample reach one rank, once?"""
    storage: StorageCriterion | None = None
    """Is storage fast enough, and the same to all nodes?"""
    launch: LaunchCriterion | None = None
    """Does a job start right, wherever it is placed?"""
    scaling: ScalingCriterion | None = None
    """Is the loss of n nodes against one small, and explained?"""
    restart: RestartCriterion | None = None
    """Does a killed job come back and lose nothing?"""
    workload: WorkloadCriterion | None = None
    """Does the buyer's own job run as fast as promised, and learn?"""
    traffic: TrafficCriterion | None = None
    """Does the fabric carry experts, several groups at once, and two jobs?"""
    tuning: TuningCriterion | None = None
    """What do settings of libraries, job and nodes gain?"""
    gang: GangCriterion | None = None
    """Does a gang start whole, or wait?"""
    soak: SoakCriterion | None = None
    """Do nodes stay right, connected and as fast under load for hours?"""


_OF_THE_CLUSTER = ("storage.datasets", "storage.checkpoints", "storage.scratch")
"""Keys of a section of the cluster that has the name of a criterion."""


class NotPromised(Section):
    """One question about which the cluster's owner promises nothing."""

    question: Text
    """A criterion's name, the key of a tool that nodes lack (`fabric.nccl_tests`,
    `fabric.write_bandwidth`), or the question in words."""
    reason: Text
    """Why it is not promised."""


class Certificate(Section):
    """The validity of certificates."""

    valid_for_s: Seconds = Field(alias="valid_for")
    """How long a certificate is valid after the end of its run, such as 7 days."""


class Spec(Inventory):
    """What a cluster promises."""

    criteria: Criteria
    not_promised: tuple[NotPromised, ...] = ()
    """Questions left open on purpose: reported as such, never as passed."""
    requirements: dict[Text, tuple[Text, ...]] = Field(default_factory=dict)
    """The buyer's clauses, each with the promises that answer it, such as {BM-01: [fabric]}. Beside
    the keys of a promise, `requirement: BM-01` says the same."""
    certificate: Certificate

    @field_validator("criteria")
    @classmethod
    def _emulates_nothing_real(cls, criteria: Criteria, info: ValidationInfo) -> Criteria:
        accelerators, scaling = info.data.get("accelerators"), criteria.scaling
        if accelerators and accelerators.per_node and scaling and scaling.compute_s is not None:
            raise ValueError(
                f"scaling.compute: {scaling.compute_s:g} s, with accelerators.per_node "
                f"{accelerators.per_node}: real accelerators run the real computation; leave it out"
            )
        return criteria

    @field_validator("criteria")
    @classmethod
    def _has_a_scheduler(cls, criteria: Criteria, info: ValidationInfo) -> Criteria:
        if criteria.gang is not None and info.data.get("scheduler", 0) is None:
            raise ValueError(
                "gang: promised without a scheduler; accepted: with scheduler: {kind: slurm} "
                "or {kind: kubernetes, engine: …}"
            )
        return criteria

    @field_validator("requirements")
    @classmethod
    def _names_promises(cls, clauses: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for clause, keys in clauses.items():
            for key in keys:
                if (why := unknown_promise(key)) is not None:
                    raise ValueError(f"{clause}: {key}: {why}")
        return clauses

    @property
    def promised_criteria(self) -> tuple[str, ...]:
        """Names of the criteria that this cluster promises, in the order they are judged."""
        return tuple(self.promises)

    @property
    def promises(self) -> dict[str, Criterion]:
        """The promises, by the criterion's name."""
        every = {name: getattr(self.criteria, name) for name in Criteria.model_fields}
        return {name: promise for name, promise in every.items() if promise is not None}

    def promised(self, criterion: str) -> bool:
        """Whether this cluster promises `criterion`; an unknown name is not promised."""
        return criterion in self.promised_criteria

    def value_of(self, key: str) -> Any:
        """What it says for a dotted key, below `criteria` or from the top, such as
        fabric.all_reduce_busbw; None if it is left out.

        Raises AttributeError for a key that no spec can have.
        """
        names = key.split(".")
        promise = hasattr(self.criteria, names[0]) and key not in _OF_THE_CLUSTER
        value: Any = self.criteria if promise else self
        for name in names:
            if value is None:
                break
            fields = type(value).model_fields.items()
            value = getattr(value, next((own for own, one in fields if one.alias == name), name))
        return None if value == () else value

    def digest(self) -> str:
        """sha256 (hexadecimal) of the keys that were set: comments, order and spelling do not
        count, and a version that adds a key or changes a default changes no digest. Nor do names of
        clauses, which promise nothing."""
        page = self.model_dump(mode="json", exclude_unset=True, exclude={"requirements"})
        content = json.dumps(page, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


def unknown_promise(key: str) -> str | None:
    """Why the dotted `key` names no promise, and what is accepted there; None if it does."""
    Spec.model_rebuild()  # only then has preflight the keys of its checks
    page: type[BaseModel] | None = Criteria
    for name in key.split("."):
        names = [] if page is None else list(keys_of(page))
        if page is None or name not in names:
            close = get_close_matches(name, names, n=3)
            accepted = f"did you mean {' or '.join(close)}?" if close else ""
            return f"no promise; {accepted or 'accepted: ' + (', '.join(names) or 'no key below')}"
        page = model_in(keys_of(page)[name].annotation)
    return None


def _rebuild(_: type[Check]) -> None:
    """A check that is entered late, as by a test, adds a key to models that are built."""
    if Spec.__pydantic_complete__:
        for model in (Criteria, Spec):
            model.model_rebuild(force=True)


on_late_check(_rebuild)


_PATTERN = frozenset("*?[")


def doubts(spec: Spec) -> list[str]:
    """One line for each promise that cannot be right: its key, its value, what the wire allows.

    A doubtful spec is used as it stands; the certificate lists its doubts. Empty for a sound spec.
    """
    return [
        *_bounds(spec),
        *_links(spec),
        *_words(spec),
        *_clauses(spec),
        *(line for one in spec.promises.values() for line in one.doubts(spec)),
    ]


def wire_allows_fraction(spec: Spec) -> tuple[float, str]:
    """The fraction of the line rate that a collective on a ring can reach, and the reason.

    On ethernet it is the payload share of TCP, of the bytes that a shaper counts if links are
    emulated; on RDMA fabrics 1, because headers there differ by kind and are a few per cent.
    """
    fabric = spec.fabric
    if fabric.kind != "ethernet":
        return 1.0, "the line rate itself"
    framing = bandwidth.ETHERNET_HEADER_BYTES if spec.emulated else bandwidth.ETHERNET_WIRE_BYTES
    share = bandwidth.tcp_payload_share(fabric.mtu_bytes, framing_bytes=framing)
    return share, f"TCP payload at MTU {fabric.mtu_bytes}"


def _promises(section: Section, key: str) -> Iterator[tuple[str, BusbwPromise]]:
    if isinstance(section, BusbwPromise):
        yield key, section
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _promises(value, f"{key}.{name}")


def _bounds(spec: Spec) -> Iterator[str]:
    allowed, why = wire_allows_fraction(spec)
    for key, promise in _promises(spec.criteria, "criteria"):
        asked = promise.at_least_fraction
        least = asked - promise.tolerance_fraction
        if asked > allowed:
            yield (
                f"{key}.at_least_fraction: {asked:g} is more than the wire allows, "
                f"{allowed:.3f} of the line rate ({why}): no healthy cluster reaches it"
            )
        if least < allowed / 2:
            less = f" less tolerance_fraction {promise.tolerance_fraction:g}"
            yield (
                f"{key}.at_least_fraction: {asked:g}{less if promise.tolerance_fraction else ''} "
                f"is below half of what the wire allows, {allowed:.3f} of the line rate ({why}): "
                f"a cluster at half speed passes"
            )


def _links(spec: Spec) -> Iterator[str]:
    fabric, management = spec.fabric, spec.management
    named = len(fabric.interfaces)
    if named != fabric.nics_per_node and _PATTERN.isdisjoint("".join(fabric.interfaces)):
        yield (
            f"fabric.nics_per_node: {fabric.nics_per_node}, but fabric.interfaces names "
            f"{named} ({', '.join(fabric.interfaces)})"
        )
    if management is None:
        return
    if management.line_rate_bits_s >= fabric.line_rate_bits_s * fabric.nics_per_node:
        nics = f" × {fabric.nics_per_node} NICs" if fabric.nics_per_node > 1 else ""
        yield (
            f"management.line_rate: {RATE.text(management.line_rate_bits_s)} is no slower than "
            f"the fabric's {RATE.text(fabric.line_rate_bits_s)}{nics}: traffic on the wrong "
            "network would not show"
        )
    shared = [name for name in management.interfaces if fabric.has_interface(name)]
    shared += [
        name for name in fabric.interfaces if management.has_interface(name) and name not in shared
    ]
    if shared:
        yield (
            f"management.interfaces: {', '.join(shared)} is in fabric.interfaces too: "
            f"traffic on the wrong network would not show"
        )


def _words(spec: Spec) -> Iterator[str]:
    if not spec.confirmed:
        yield (
            "confirmed: false: a draft from the nodes or a profile, which nobody has compared with "
            "what was bought: no run with it certifies"
        )
    if not spec.promised_criteria:
        yield f"criteria: none is promised; known are {', '.join(Criteria.model_fields)}"
    if spec.nodes == 1 and spec.promised("fabric"):
        yield "criteria.fabric: promised for nodes: 1, which has no other node to send to"
    if spec.topology is not None and not spec.emulated:
        yield (
            "topology: ignored on nodes that are real: only the rack shows its sockets, in a spec "
            "with emulated"
        )
    if spec.fabric.gpudirect and (spec.fabric.kind == "ethernet" or not spec.accelerators.per_node):
        lacking = "kind: ethernet has no RDMA" if spec.accelerators.per_node else "no accelerators"
        yield f"fabric.gpudirect: promised, with {lacking}: nothing to keep it with"
    if spec.accelerators.per_node == 0:
        for key in ("model", "memory"):
            if getattr(spec.accelerators, {"memory": "memory_bytes"}.get(key, key)) is not None:
                yield f"accelerators.{key}: given, but accelerators.per_node is 0"
    asked: set[str] = set()
    for i, entry in enumerate(spec.not_promised):
        key = f"not_promised[{i}].question"
        if spec.promised(entry.question):
            yield f"{key}: {entry.question} is promised by criteria.{entry.question} at once"
        if entry.question in asked:
            yield f"{key}: {entry.question} is listed twice"
        asked.add(entry.question)


def _clauses(spec: Spec) -> Iterator[str]:
    for clause, keys in spec.requirements.items():
        for key in keys:
            if spec.value_of(key) is None:
                yield f"requirements.{clause}: {key} is not promised: the clause stays open"

"""NVIDIA's own diagnostics, by DCGM: of each node's GPUs, and of GPUs of all nodes together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows, Unread
from pytest_mnode.logs.dcgm import DcgmResult, parse
from pytest_mnode.machine.programs import output_of
from pytest_mnode.measurement import Measurement, listed
from pytest_mnode.spec.fields import Seconds, Section, Some, Text

_TESTED, _FAILED = "tests that DCGM ran", "failed tests of DCGM"
_WARNED, _SKIPPED, _REASON = "warnings of DCGM", "skipped tests of DCGM", "reason that DCGM gives"
_LEVEL_S = {1: 120.0, 2: 600.0, 3: 3600.0, 4: 4 * 3600.0}
"""Limits by level; it takes seconds, 2 min, 30 min, and 1 to 2 h by NVIDIA's guide, on all GPUs at
the same time, however many. Source: NVIDIA, "DCGM User Guide", run levels."""
_ADDED_BY = {
    2: {"pcie", "memory", "gpu_memory"},
    3: {"diagnostic", "targeted_stress", "targeted_power"},
    4: {"memtest", "pulse", "pulse_test"},
}
"""Tests that a level has and lower ones lack, by the names of DCGM 3 and 4. Source: the same."""
_NODES_S = 3600.0
_MARGIN_S = 15.0
"""Time in which dcgmi has ended, after its own limit; the reading ends later."""
_PACKAGE = "NVIDIA's DCGM (datacenter-gpu-manager-4)"


class Dcgm(Section):
    """DCGM's diagnostics of one node; every test that runs must pass."""

    level: Literal[1, 2, 3, 4] = 2
    """Level of `dcgmi diag -r`: 1 takes seconds, 2 some minutes, 3 half an hour, 4 hours."""
    skipped: Literal["allowed", "none"] = "allowed"
    """Whether tests may be skipped, as DCGM does with those that a GPU does not support. A GPU
    whose tests were all skipped is inconclusive in any case."""
    warnings: Literal["allowed", "none"] = "none"
    """A test that passed with a warning is inconclusive, or allowed."""
    within_s: Seconds | None = Field(None, alias="within")
    """Limit, after which it is ended; left out: 2 min, 10 min, 1 h and 4 h for levels 1 to 4."""
    host: Text | None = None
    """Address of nv-hostengine, such as localhost:5555 or unix:///run/nv-hostengine.sock; left out:
    dcgmi's own default."""


class DcgmNodes(Section):
    """DCGM's multi-node diagnostic over all nodes of the run."""

    test: Text = "mnubergemm"
    """The test, as of `dcgmi mndiag --run`."""
    lasts_s: Seconds | None = Field(None, alias="lasts")
    """Its time under load; left out: DCGM's own."""
    within_s: Seconds | None = Field(None, alias="within")
    """Limit, after which it is ended; left out: 1 h."""
    gpus_at_least: Some | None = None
    """Number of GPUs of each node that it tests; left out: accelerators.per_node."""


@check("preflight.dcgm")
class DcgmDiagnosticPasses(Check):
    """Do NVIDIA's diagnostics (DCGM) pass on all GPUs of this node?

    It runs after everything else of preflight has been read, on all nodes at the same time, since
    it loads GPUs, their memory and PCIe. Its service (nv-hostengine, nvidia-dcgm) must run.
    """

    promise: Dcgm
    """Run level, what may be skipped, and the limit."""
    read_by = frozenset(("level", "host"))
    of_accelerators = True
    alone = True

    @property
    def limit_s(self) -> float | None:
        return self._within_s + _MARGIN_S

    @property
    def _within_s(self) -> float:
        promise = self.promise or Dcgm.model_validate({})
        given: float | None = promise.within_s
        return _LEVEL_S[promise.level] if given is None else given

    def read(self, root: Path) -> Iterator[Row]:
        host = ("--host", self.promise.host) if self.promise.host else ()
        level = self.promise.level
        argv = ("dcgmi", "diag", "-r", str(level), "--json", *host)
        for one in _asked(argv, self._within_s, root, level=level):
            yield from one

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        yield from _judged(rows, self.spec.accelerators.per_node)
        if self.promise.warnings == "none":
            yield rows.total(_WARNED, 0, part="warnings")
        if self.promise.skipped == "none":
            yield rows.total(_SKIPPED, 0, part="skipped", note=_reasons(rows, "skip"))

    @classmethod
    def programs(cls, promise: object) -> tuple[str, ...]:  # noqa: ARG003
        return ("dcgmi",)

    fault = (
        'other_program:{node}:dcgmi:{{"DCGM Diagnostic":{{"test_categories":[{{"tests":[{{'
        '"results":[{{"status":"Fail"}}]}}]}}]}}}}'
    )
    promised_as = "{level: 1}"


@check("preflight.dcgm_nodes")
class DcgmNodesPass(Check):
    """Does NVIDIA's multi-node diagnostic (dcgmi mndiag) pass on this node's GPUs?

    The first node runs it over all nodes of the run, by MPI: it needs DCGM 4.3 or later on GB200 or
    GB300, OpenMPI, and ssh from the first node to the others without a password.
    """

    promise: DcgmNodes
    """Test, load and limit."""
    read_by = frozenset(("test", "lasts"))
    of_accelerators = True

    @property
    def limit_s(self) -> float | None:
        return self._within_s + _MARGIN_S

    @property
    def _within_s(self) -> float:
        given: float | None = getattr(self.promise, "within_s", None)
        return _NODES_S if given is None else given

    def read(self, root: Path) -> Iterator[Row]:
        if self.nodes and self.index:
            return
        if len(self.nodes) < 2:
            raise OSError("it tests several nodes together, and this run has one")
        promise, known = self.promise, {where: name for name, where in self.nodes}
        hosts = ";".join(known)
        argv = ["dcgmi", "mndiag", "--hostList", hosts, "--run", promise.test, "--json"]
        if promise.lasts_s is not None:
            argv += ["--parameters", f"{promise.test}.time_to_run={promise.lasts_s:g}"]
        known |= {name: name for name, _ in self.nodes}
        for one in _asked(tuple(argv), self._within_s, root, known):
            yield from one

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        """By what the first node was told of this one."""
        first = next(iter(rows.by_node.values()))
        none = Unread(f"dcgmi mndiag says nothing of {rows.node}")
        none = first if isinstance(first, Unread) else none
        mine = [one for one in first if one.peer == rows.node] or none
        least = self.promise.gpus_at_least or self.spec.accelerators.per_node
        yield from _judged(Rows(rows.node, rows.key, rows.promise, {rows.node: mine}), least)

    @classmethod
    def programs(cls, promise: object) -> tuple[str, ...]:  # noqa: ARG003
        return ("dcgmi", "mpirun")


def _asked(
    argv: tuple[str, ...],
    limit_s: float,
    root: Path,
    hosts: dict[str, str] | None = None,
    level: int = 1,
) -> Iterator[Iterable[Row]]:
    """Rows of each device. hosts: names of nodes, by what mndiag calls them.

    level: of the tests that must be among them, passed, skipped or failed: a service may have run
    fewer. What has failed counts in any case.
    """
    if root != Path("/"):
        raise OSError("diagnostics are not part of a recorded machine")
    said = output_of(*argv, package=_PACKAGE, may_fail=True, limit_s=limit_s)
    try:
        results = parse(said)
    except ValueError as error:
        raise OSError(f"dcgmi {argv[1]}: {error}") from None
    if hosts is not None:
        lost = [one for one in results if not one.host and one.status != "pass"]
        if lost and not any(one.host and one.status == "fail" for one in results):
            raise OSError(f"dcgmi {argv[1]}: {listed(r for one in lost for r in one.reasons)}")
    names = {one.test.lower().replace(" ", "_") for one in results}
    levels = [number for number, added in _ADDED_BY.items() if names & added]
    if max(levels, default=1) < level and not any(one.status == "fail" for one in results):
        raise OSError(f"{' '.join(argv[:4])}: none of its tests is of level {level}")
    by_device: dict[tuple[str, str], list[DcgmResult]] = {}
    for one in results:
        by_device.setdefault((one.host, one.device), []).append(one)
    for (host, device), every in by_device.items():
        yield _rows(device, (hosts or {}).get(host, host), every)


def _rows(device: str, node: str, results: list[DcgmResult]) -> Iterator[Row]:
    def number(*statuses: str) -> int:
        return sum(one.status in statuses for one in results)

    ran, warned = number("pass", "fail", "warn"), number("warn", "unknown")
    about = {"device": device, "peer": node}
    if device.startswith("accelerator"):
        yield row(_TESTED, ran or None, why=f"all {len(results)} were skipped", **about)
    yield row(_FAILED, number("fail"), **about)
    words = listed(
        f"{one.test}: {listed(one.reasons) or one.status}"
        for one in results
        if one.status in ("warn", "unknown")
    )
    yield row(_WARNED, None if warned else 0, why=words, **about)
    yield row(_SKIPPED, number("skip"), **about)
    for one in results:
        if one.status in ("fail", "skip"):
            text = f"{one.test}: {listed(one.reasons) or 'no reason'}"
            yield row(f"{_REASON}: {one.status}", text, **about)


def _judged(rows: Rows, gpus: int) -> Iterator[Measurement]:
    source = f"{rows.key}: all tests pass"
    yield rows.total(_FAILED, 0, source=source, note=_reasons(rows, "fail"))
    if gpus:
        name, per_node = "accelerators that DCGM tested", rows.under("accelerators.per_node", gpus)
        yield per_node.number(_TESTED, name, lambda _: True, gpus)
    else:
        yield rows.at_least(_TESTED, 1)


def _reasons(rows: Rows, status: str) -> str:
    found = rows.of(f"{_REASON}: {status}")
    return listed(f"{one.device or rows.node} {one.value}" for one in found)

"""Reads counters and clocks of all nodes before the first test of a criterion, and for its last.

Tests between two judged criteria, such as those of a criterion that is not promised, count too: if
counters of links rise there, the next criterion reports it. Kills there are not recorded, so
counters of connections are not judged.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_mnode.checks.node.clocks import ClocksAgree
from pytest_mnode.checks.node.nvlink import NvLinksAreUp
from pytest_mnode.checks.node.reachable import LOSSY_PATHS
from pytest_mnode.criteria.port_counters.judging import (
    clock_steps,
    judge,
    located,
    nics_used,
    nvlink_rises,
    of_tcp,
)
from pytest_mnode.criteria.port_counters.reading import NVLINK, PortReading, arguments_of
from pytest_mnode.criteria.port_counters.rises import EVERY_NIC, PortReadings, rises
from pytest_mnode.criteria.preflight.survey import lossy_paths, search_path
from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.errors import MnodeError
from pytest_mnode.evidence.row import MeasuredRows, Row, row
from pytest_mnode.machine.encoding import decode
from pytest_mnode.marks import PORTS_FIXTURE, asks_for
from pytest_mnode.measurement import Measurement

if TYPE_CHECKING:
    from pytest_mnode.cluster import NodesOfRun
    from pytest_mnode.launchers.node import CommandResult
    from pytest_mnode.launchers.nodes import Nodes
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.inventory import Fabric

TEST = "test_fabric_ports_stay_up_and_free_of_errors"
READ_BY = ("fabric.interfaces", "fabric.nics_per_node", "fabric.kind")
"""Keys of the spec that decide which ports are read."""
_BEFORE = 0
"""Repeat of a row of what was before the criterion."""
PROGRAM = ("-P", "-m", "pytest_mnode.criteria.port_counters.reading")


class PortWatch:
    """pytest plugin of the controller, for tests that request `fabric_ports`."""

    def __init__(self, run: NodesOfRun, session: pytest.Session) -> None:
        self._run = run
        asking = [item for item in session.items if asks_for(item, PORTS_FIXTURE)]
        self._watched = {item.path for item in asking}
        # With pytest-xdist, criteria and their kills run at the same time.
        self._shared = hasattr(session.config, "workerinput")
        self._since: Path | None = None
        self._before: PortReadings = {}
        self._just_read = False
        self._judged: PortReadings = {}
        """The readings up to which counters are judged; at first, those from which to judge."""
        self._between: tuple[PortReadings, PortReadings, set[str]] | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self._shared:
            self._before = self._before or self._read()
        elif item.path != self._since and item.path in self._watched:
            if not self._just_read:
                self._before = self._read()
                off = set(self._run.switched_off) | (self._between[2] if self._between else set())
                self._between = (self._judged, self._before, off) if self._judged else None
                self._judged = self._judged or self._before
            self._since = item.path
            self._run.switched_off.clear()
        self._just_read = False
        return (yield)

    def record(
        self,
        measure: Measure,
        *,
        kills: bool = False,
        new_mtu: bool = False,
        loads: str | None = None,
    ) -> None:
        """Judge increases of counters since the first test of this file, and keep them.

        kills: its tests killed processes on purpose, so only counters of links are judged. new_mtu:
        they changed the MTU, and carriers came and went. loads: "" if they send over all
        NICs alike, or why bytes are only recorded; None if they send little.
        """
        after, off, spec = self._read(), sorted(self._run.switched_off), self._run.spec
        patterns, kills = spec.fabric.interfaces, kills or self._shared
        rows = [
            *rises(self._before, after, patterns, restarted=off, kills=kills, new_mtu=new_mtu),
            *self._links_between(patterns),
        ]
        if loads is not None and not self._shared:
            rows.append(row(EVERY_NIC, None if loads else 1, why=loads))
        if not self._shared:
            self._before = self._judged = after
            self._just_read = True
        found = judged(rows, spec)
        if spec.fabric.protocol is None and any(map(of_tcp, found)):
            found = located(found, self._lossy_paths())
        measure.chart(MeasuredRows(tuple(rows)))
        measure.record(found)

    def _lossy_paths(self) -> list[Measurement]:
        try:
            return lossy_paths(self._run.all_nodes(), self._run.spec)
        except MnodeError as error:  # a node was lost meanwhile, and what was counted stands
            return [Measurement.unknown(LOSSY_PATHS, str(error).partition("\n")[0])]

    def _links_between(self, patterns: Sequence[str]) -> Iterator[Row]:
        """Increases of link counters before this criterion that no criterion has judged."""
        if self._between is not None:
            first, last, off = self._between
            self._between = None
            for one in rises(first, last, patterns, restarted=sorted(off), kills=True):
                yield replace(one, repeat=_BEFORE)

    def _read(self) -> PortReadings:
        try:
            nodes = self._run.all_nodes()
            spec = self._run.spec
            nvlink = any(limit is not None for limit in nvlink_bounds(spec).values())
            return read_ports(nodes, spec.fabric, nvlink=nvlink)
        except MnodeError as error:
            return dict.fromkeys(self._before or ("all nodes",), str(error).partition("\n")[0])


def judged(rows: Sequence[Row], spec: Spec) -> list[Measurement]:
    """What rows of a criterion's ports, clocks and NVLinks say, and of links before it. Pure."""
    here = [one for one in rows if one.repeat is None]
    found = judge(here, spec.fabric)
    if (clocks := promise_of(ClocksAgree, spec)) is not None:
        found.append(clock_steps(here, clocks.skew_s))
    found += nvlink_rises(here, nvlink_bounds(spec))
    found += nics_used(here, spec)
    if before := [one for one in rows if one.repeat == _BEFORE]:
        found += [
            replace(one, name=f"{one.name}, before this criterion")
            for one in judge(before, spec.fabric)
            if one.value is not None
        ]
    return found


def nvlink_bounds(spec: Spec) -> dict[str, int | None]:
    """Bounds of what NVLinks count, by key of `preflight.nvlink`; None if not promised."""
    promised = promise_of(NvLinksAreUp, spec)
    keys = ("errors_at_most", "recoveries_at_most")
    return {key: getattr(promised, key, None) for key in keys}


def read_ports(nodes: Nodes, fabric: Fabric, *, nvlink: bool = False) -> PortReadings:
    """The counters of all nodes, read at the same time. nvlink: those of NVLinks too."""
    argv = [nodes.python, *PROGRAM, *([NVLINK] if nvlink else []), *arguments_of(fabric)]
    results = nodes.run(argv, env=search_path(nodes.python))
    return {result.node: _reading(result) for result in results}


def _reading(result: CommandResult) -> PortReading | str:
    if result.returncode is None:
        return f"its counters were not read within {round(result.duration_s, 1):g} s"
    try:  # a remote shell may print a greeting first
        return decode(PortReading, result.stdout.strip().rpartition("\n")[2])
    except ValueError:
        last = result.stderr.strip().rpartition("\n")[2]
        return f"its counters cannot be read: {last or f'status {result.returncode}'}"

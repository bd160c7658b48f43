"""Reads counters and clocks of all nodes before the first test of a criterion, and for its last.

Tests between two judged criteria, such as those of a criterion that is not promised, count too: if
counters of links rise there, the next criterion reports it. Kills there are not recorded, so
counters of connections are not judged.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_mnode.checks.node.clocks import ClocksAgree
from pytest_mnode.checks.node.nvlink import NvLinksAreUp
from pytest_mnode.criteria.port_counters.judging import (
    PortReadings,
    clock_steps,
    judge,
    nvlink_rises,
)
from pytest_mnode.criteria.port_counters.reading import NVLINK, PortReading, arguments_of
from pytest_mnode.criteria.preflight.survey import lossy_paths, search_path
from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.errors import MnodeError
from pytest_mnode.machine.encoding import decode
from pytest_mnode.marks import PORTS_FIXTURE, asks_for
from pytest_mnode.measurement import Measurement, Verdict

if TYPE_CHECKING:
    from pytest_mnode.cluster import NodesOfRun
    from pytest_mnode.launchers.node import CommandResult
    from pytest_mnode.launchers.nodes import Nodes
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.inventory import Fabric

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

    def measurements(self, *, kills: bool = False) -> list[Measurement]:
        """Judged increases of counters since the first test of this file.

        kills: its tests killed processes on purpose, so only counters of links are judged.
        """
        after, off = self._read(), sorted(self._run.switched_off)
        before, fabric = self._before, self._run.spec.fabric
        found = judge(before, after, fabric, kills=kills or self._shared, restarted=off)
        if fabric.protocol is None:
            found = self._located(found)
        if (clocks := promise_of(ClocksAgree, self._run.spec)) is not None:
            found.append(clock_steps(before, after, clocks.skew_s, restarted=off))
        found += nvlink_rises(before, after, nvlink_bounds(self._run.spec), restarted=off)
        if not self._shared:
            found += self._links_between(fabric)
            self._before = self._judged = after
            self._just_read = True
        return found

    def _located(self, found: list[Measurement]) -> list[Measurement]:
        """The measurements; where TCP has lost too much, with the paths that lose datagrams now."""
        tcp = [one for one in found if one.unit == "%" and one.culprit and not one.culprit.parts]
        lossy = [one for one in tcp if one.verdict is Verdict.FAIL]
        paths = lossy_paths(self._run.all_nodes(), self._run.spec) if lossy else []
        culprit = next((one.culprit for one in paths if one.verdict is Verdict.FAIL), None)
        return [
            *(replace(one, culprit=culprit) if culprit and one in lossy else one for one in found),
            *paths,
        ]

    def _links_between(self, fabric: Fabric) -> list[Measurement]:
        """Judged increases of link counters before this criterion that no criterion has judged."""
        if self._between is None:
            return []
        first, last, off = self._between
        self._between = None
        found = judge(first, last, fabric, kills=True, restarted=sorted(off))
        return [
            replace(one, name=f"{one.name}, before this criterion")
            for one in found
            if one.value is not None
        ]

    def _read(self) -> PortReadings:
        try:
            nodes = self._run.all_nodes()
            spec = self._run.spec
            nvlink = any(limit is not None for limit in nvlink_bounds(spec).values())
            return read_ports(nodes, spec.fabric, nvlink=nvlink)
        except MnodeError as error:
            return dict.fromkeys(self._before or ("all nodes",), str(error).partition("\n")[0])


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

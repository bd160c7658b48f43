"""Drives the rounds of a soak from the controller, until its time is over, and keeps each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_mnode.certificate.text import first_line
from pytest_mnode.criteria.port_counters.judging import judge, nics_used, nvlink_rises
from pytest_mnode.criteria.port_counters.rises import EVERY_NIC, PortReadings, rises
from pytest_mnode.criteria.port_counters.watching import nvlink_bounds, read_ports
from pytest_mnode.criteria.soak import found
from pytest_mnode.criteria.soak.found import Failure, Kept, LogOfNode, Measured, Plan, Round
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import MnodeError, NodeLostError, RankError
from pytest_mnode.evidence.row import row
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.measuring import limits
from pytest_mnode.progress import progress
from pytest_mnode.spec.quantity import DURATION

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster, RankWorld
    from pytest_mnode.evidence.row import Row
    from pytest_mnode.options import Settings
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

FIRST_S = 3.0
"""[choice] A soak that has less time left begins no first round, as it cannot end within."""
_LAST = 5
"""Number of rounds the longest of which says how long the next may take."""
_LONGER = 1.25
_MOST_BROKEN = 3
"""Rounds in a row whose ranks failed, after which nothing is left to soak."""
_SECONDS_OF_ROUNDS = 1.0
"""[choice] Shortest round: it says how many there may be, which share one false alarm."""


@dataclass(slots=True)
class Soak:
    """A soak of all nodes of a test.

    for_s: time under load, with that of `kept`, the rounds of earlier runs. keep: appends rows to
    the evidence. show: shows a line. note: about earlier runs. cut: why it ended before its time;
    "" if it did not. interrupted: whether the run is to end.
    """

    cluster: Cluster
    spec: Spec
    settings: Settings
    for_s: float
    kept: Kept
    keep: Callable[[Iterable[Row]], None]
    show: Callable[[str], None]
    note: str = ""
    rounds: list[Round] = field(default_factory=list)
    cut: str = ""
    interrupted: bool = False
    ports: PortReadings = field(default_factory=dict)
    before: PortReadings = field(default_factory=dict)
    kills: bool = False
    _logs: Mapping[str, LogOfNode] = field(default_factory=dict)
    _world: RankWorld | None = None
    _broken: int = 0

    def run(self) -> None:
        """Run rounds until the time is over, the run is interrupted, or nothing is left to load."""
        self.rounds = list(self.kept.rounds)
        try:
            self._start()
            self.before = self.ports = self._read()
            deadline_s = time.monotonic() + self.for_s - self.kept.soaked_s
            while not self.cut and deadline_s - time.monotonic() >= self._next_s:
                one = self._round(deadline_s)
                if one is not None:
                    self.rounds.append(one)
                    self.keep(one.numbered())
                    self.show(self._line(one))
            if not self.cut:
                self.keep([found.ended(self.for_s)])
        except KeyboardInterrupt as error:
            self.interrupted = True
            self.cut = f"interrupted{f' ({error})' if str(error) else ''}"

    def _start(self) -> None:
        """Have ranks with a process group, before the clock of the soak begins."""
        try:
            self._world = self.cluster.world()
            self._world.run(_ready, timeout=self._limit_s, group=True)
        except RankError:  # the first round says what is wrong
            self._close()

    @property
    def _next_s(self) -> float:
        """How long the next round may take."""
        return max((_LONGER * one.took_s for one in self.rounds[-_LAST:]), default=FIRST_S)

    def _round(self, deadline_s: float) -> Round | None:
        """The next round; None if the time ended it."""
        number = self.rounds[-1].number + 1 if self.rounds else 1
        soaked_s = self.for_s - (deadline_s - time.monotonic())
        progress(f"round {number}, s", int(soaked_s), int(self.for_s))
        began_s, began = time.time(), time.monotonic()
        limit_s = self._limit_s
        left_s = max(1.0, deadline_s - began)
        measured, failures = Measured(), list[Failure]()
        try:
            measured = self._measured(number, min(limit_s, left_s))
            self._broken = 0
        except RankError as error:
            self._close()
            if left_s < limit_s and time.monotonic() >= deadline_s:
                return None
            self.kills = True
            self._broken += 1
            words = first_line(str(error), 160)
            who = Culprit.of_record(error.culprit) if error.culprit else Culprit(words)
            failures.append(Failure("ranks of a round", words, who, symptom=True))
        except MnodeError as error:
            self._close()
            self.cut = first_line(str(error), 160)
            lost = error.node if isinstance(error, NodeLostError) else ()
            who = Culprit(self.cut, lost)
            failures.append(Failure("ranks of a round", self.cut, who, symptom=True))
        if self._broken == _MOST_BROKEN:
            self.cut = f"the ranks of {_MOST_BROKEN} rounds in a row failed"
        ports = self._port_measurements()
        judged = [*ports, *measured.measurements, *measured.slow, *self._log(measured.logs)]
        failures += _failures(judged, measured.slow)
        nodes = self.cluster.nodes
        return Round(
            number=number,
            began_s=began_s,
            took_s=time.monotonic() - began,
            nodes=nodes,
            partners=tuple((nodes[a], nodes[b]) for a, b in measured.partners),
            pairs_s=measured.pairs_s,
            checked=measured.checked,
            rates=tuple(measured.rates),
            failures=tuple(failures),
            unknown=tuple(
                dict.fromkeys(one.name for one in judged if one.verdict is Verdict.INCONCLUSIVE)
            ),
        )

    @property
    def _limit_s(self) -> float:
        """Limit of a round: of the first as of a test of paths, then a multiple of the longest."""
        whole = [one.took_s for one in self.rounds if one.rates]
        limit_of = limits.trial_limit_s if whole else limits.paths_limit_s
        shape = len(self.cluster.nodes), self.cluster.procs_per_node
        start_s = limit_of(self.spec, self.settings, *shape)
        return start_s + limits.FACTOR * max(whole[-_LAST:], default=0.0)

    def _measured(self, number: int, limit_s: float) -> Measured:
        if self._world is None:
            self._world = self.cluster.world()
        preflight = self.spec.criteria.preflight
        reads_log = getattr(preflight, "kernel_log", None) is not None
        if reads_log and not self._logs:
            [self._logs, *_] = self._world.run(_logs, timeout=limit_s, group=True)
        rounds = max(1, int(self.for_s / _SECONDS_OF_ROUNDS))
        plan = Plan(number, rounds, self.spec, reads_log)
        [measured, *_] = self._world.run(_measure, plan, timeout=limit_s, group=True)
        assert isinstance(measured, Measured)
        return measured

    def _close(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None

    def _port_measurements(self) -> list[Measurement]:
        """Counters of links since the last round; losses are judged over the whole soak."""
        before = self.ports
        try:
            self.ports = self._read()
        except MnodeError as error:
            self.ports = dict.fromkeys(before, str(error).partition("\n")[0])
        rows, found = self._judged(before)
        links = nvlink_rises(rows, nvlink_bounds(self.spec))
        each = self.cluster.procs_per_node
        if each % min(each, self.spec.fabric.nics_per_node) == 0:
            rows.append(row(EVERY_NIC, 1))  # else its pairs use those of one rank, see `Rails`
        return [*filter(_of_links, found), *links, *nics_used(rows, self.spec, each, "a round")]

    def _judged(self, before: PortReadings) -> tuple[list[Row], list[Measurement]]:
        """How counters rose since these readings, and what that says of ports."""
        fabric = self.spec.fabric
        rows = [*rises(before, self.ports, fabric.interfaces, kills=self.kills)]
        return rows, judge(rows, fabric)

    def _read(self) -> PortReadings:
        nvlink = any(limit is not None for limit in nvlink_bounds(self.spec).values())
        return read_ports(self.cluster, self.spec.fabric, nvlink=nvlink)

    def _log(self, logs: Mapping[str, LogOfNode]) -> list[Measurement]:
        """Failures in the kernel logs since the last round."""
        before, self._logs = self._logs, logs or self._logs
        new, unread = list[Culprit](), list[Culprit]()
        for node, log in logs.items():
            if isinstance(log, str):
                unread.append(Culprit(f"{node}: {log}", node))
                continue
            for event in log:
                if event not in (before.get(node) or ()):
                    when, device, what = event
                    words = f"{node} {device} ({what}, {when})"
                    new.append(Culprit.device(words, node, device or "kernel log"))
        if not logs:
            return []
        name, source = "failures in the kernel log", "criteria.preflight.kernel_log"
        why = "; ".join(unread)
        return [Measurement.none_allowed(name, new, source, unsure=why, unread=unread)]

    def over_all(self) -> list[Measurement]:
        """What only counters of the whole soak say: shares of packets lost, and of wrong bits."""
        if not self.before:
            return []
        return [one for one in self._judged(self.before)[1] if not _of_links(one)]

    def _line(self, one: Round) -> str:
        """A round in one line."""
        soaked_s = sum(r.took_s for r in self.rounds)
        partners = ", ".join(f"{a} and {b}" for a, b in one.partners[:4])
        more = f" and {len(one.partners) - 4} more" if len(one.partners) > 4 else ""
        wrong = "; ".join(f"{f.name} {f.measured}: {f.culprit}" for f in one.blamed)
        return (
            f"mnode: soak, round {one.number} (its seed), {one.took_s:.1f} s, {partners}{more}: "
            f"{wrong or 'right'}; {soaked_s:.0f} s of {DURATION.text(round(self.for_s))}"
        )


def _of_links(one: Measurement) -> bool:
    """Whether it is a count of links, which a short round shows as well as a long one: no share of
    packets, and no rate of bit errors, which come by chance."""
    return one.unit != "%" and one.false_alarm is None


def _failures(judged: Iterable[Measurement], slow: Collection[Measurement]) -> list[Failure]:
    return [
        Failure(one.name, one.measured, one.culprit or Culprit(one.name), one in slow)
        for one in judged
        if one.verdict is Verdict.FAIL
    ]


def _ready() -> None:
    """In ranks: import what rounds need."""
    import pytest_mnode.criteria.soak.rounds  # noqa: F401


def _measure(plan: Plan, *, world: World) -> Measured | None:
    """In ranks."""
    from pytest_mnode.criteria.soak.rounds import measure_round

    return measure_round(plan, world=world)


def _logs(*, world: World) -> Mapping[str, LogOfNode]:
    """In ranks."""
    from pytest_mnode.criteria.soak.rounds import logs

    return logs(world=world)

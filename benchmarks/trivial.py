"""Seconds per trivial distributed test.

The measured period is the time from the body of one test to the body of the next, both in rank 0,
as stamped by the bodies. It includes all costs of a test (teardown of the previous test, reports,
new processes or groups if the peer makes them, setup of the next test), and no cost that is paid
once per run. It has the same clock and the same line of code for every peer, and gives a value per
test, so that a median and a spread can be computed. The first three periods of a run are left out,
because peers warm up then. `torchrun per test` has no test runner: its period is that of a loop
that starts one torchrun after another.

torch's test cases run with unittest, as in torch; pytest-mnode runs with pytest, and also runs the
same files "in worlds". Peers take turns within a round, and rounds are repeated, so that a
disturbance hits all of them.

A warm test costs more than one of MultiProcContinuousTest, which sends each rank the name of a test
and waits for one word: each rank runs pytest's own protocol. Two messages per rank are on the way
of a test that passes: the order, and a report of all phases. Nodes and world stay with the client
while its tests want the same; ranks wait for each other before teardown only if they could notice
it; no message asks whether a rank is alive after its report, because the report is its last act
before it waits for the next order. Before these changes a test had six messages per rank, through
zmq, and four between client and hub. In µs of a test, 10th percentiles of 588 tests in two ranks on
two busy cores, the three ways in turns:

| | before | now | MultiProcContinuousTest |
| --- | --- | --- | --- |
| CPU time of the controller | 1,450 | 740 | 600 |
| CPU time of each rank | 1,100 | 950 | 490 |
| from body to body | 3,710 | 2,420 | 1,580 |

With four ranks on the same two cores the time from body to body was 6,450, 5,890 and 2,650 µs (244
tests). Plain pytest takes 370 µs of CPU time for such a test in one process that has imported
torch, 160 µs of them to attach its log handlers: it does so six times a test, and looks at each of
torch's 120 loggers.

Since then what passed plainly in all ranks is not merged, no adaptor of a plugin that no test uses
is called, and what the end of a test found is the next begin of the leak check. In three runs of
200 tests, in turns with the state before, in two ranks on busy cores, the CPU time of the
controller was 14 % less, and that of the ranks 9 and 5 %.

Since then ranks that all passed a test begin the next one while the controller reports the first,
where no code of others comes between the two: the controller's work is no longer between two tests,
if it has a core of its own. From body to body in ms, 10th percentiles of 590 tests and more, in
turns, at real-time priority beside other work:

| | before | now | MultiProcContinuousTest |
| --- | --- | --- | --- |
| one rank on two cores | 3.23 | 2.59 | 2.38 |
| two ranks on two cores, which also run the controller | 3.57 | 3.52 | 2.51 |

A test in four fresh ranks costs 140 ms, and 178 ms where forks copy small pages (medians of 60
tests on two quiet cores): 180 ms of CPU time, of which forks, and the pages that a child then
writes to, are nearly half.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks import peers, table

_WARM_UP = 3
_LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers of tests per run, of quick and of slow peers; rounds: repeats of each run.

    within_s: the last run ends by then; runs for which no time is left are named.
    """

    rounds: int
    quick: int
    slow: int
    within_s: float = float("inf")
    ranks: tuple[int, ...] = (2, 4)


FULL = Plan(rounds=3, quick=100, slow=8)
QUICK = Plan(rounds=1, quick=30, slow=4, within_s=110.0, ranks=(2,))
WARM = peers.mnode("warm")
PEERS: Sequence[tuple[peers.Peer, bool]] = (
    (WARM, True),
    (peers.CONTINUOUS, True),
    (peers.adopted(peers.CONTINUOUS.name, "with_continuous.py"), True),
    (peers.mnode("group"), True),
    (peers.mnode("fresh"), True),
    (peers.adopted(peers.PROCESSES.name, "with_processes.py"), True),
    (peers.PROCESSES, False),
    (peers.TORCHRUN, False),
)


@dataclass(slots=True)
class _Row:
    problem: str = ""
    missing: bool = False
    periods: list[float] = field(default_factory=list)


def measure(plan: Plan) -> str:
    """The table, for a terminal. Each run is printed as it is measured, slow peers last."""
    end = time.monotonic() + plan.within_s
    runs = [(n, peer, is_quick) for n in plan.ranks for peer, is_quick in PEERS]
    rows = {(n, peer.name): _Row(peer.missing, missing=bool(peer.missing)) for n, peer, _ in runs}
    runs.sort(key=lambda run: not run[2])
    for _, (ranks, peer, is_quick) in itertools.product(range(plan.rounds), runs):
        row = rows[ranks, peer.name]
        if time.monotonic() >= end:
            row.problem = row.problem or f"not begun: {plan.within_s:g} s were over"
        elif not row.missing:
            tests = plan.quick if is_quick else plan.slow
            periods, problem = _periods(peer, ranks, tests, end)
            row.periods += periods
            row.problem = row.problem or problem
            took = f"{table.ms(periods)} ms" if periods else problem
            print(f"{ranks}  {peer.name}: {took}", flush=True)
    head = ("ranks, way", "median ms", "10–90 % ms", "tests", "to warm", "")
    body = []
    for (ranks, name), row in rows.items():
        warm = rows[ranks, WARM.name].periods
        note = f"not installed: {row.problem}" if row.missing else row.problem
        cells = (table.ms(row.periods), table.spread_ms(row.periods), str(len(row.periods)))
        body.append((f"{ranks}  {name}", *cells, table.ratio(row.periods, warm), note))
    return table.terminal("Time per trivial distributed test", head, body)


def _periods(peer: peers.Peer, ranks: int, tests: int, end: float) -> tuple[list[float], str]:
    """Seconds from body to body, and the problem of a failed run or ""."""
    begins: list[float] = []

    def run(tests: int) -> peers.Ran:
        return peer.run(ranks, tests, min(_LIMIT_S, max(0.0, end - time.monotonic())))

    if peer.one_test_a_command:
        warm_up = 0
        for _ in range(tests // 2 + 1):
            ran = run(1)
            begins += ran.times("begin")
            if ran.finished.code != 0:
                return [], f"torchrun ended with {ran.finished.code}"
    else:
        warm_up = min(_WARM_UP, tests // 3)
        ran = run(tests)
        begins = ran.times("begin")
        if ran.finished.code != 0 or len(begins) != tests:
            tail = ran.finished.output.strip().splitlines()[-1:] or ["no output"]
            return (
                [],
                f"{len(begins)} of {tests} ran, ended with {ran.finished.code}: {tail[0][:80]}",
            )
    return [b - a for a, b in itertools.pairwise(begins)][warm_up:], ""

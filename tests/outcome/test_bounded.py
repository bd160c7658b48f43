"""Reports of many ranks have a bounded size, and name every rank."""

from __future__ import annotations

import pytest

from pytest_mnode.outcome.merge import MOST_SECTIONS, merge
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.protocol.messages import PhaseReport, Shape, TornDown, WorldInfo

RANKS = 512
NODES = tuple(f"node{n}" for n in range(RANKS // 8))


def outcome_of(states: dict[int, RankState]) -> Outcome:
    world = WorldInfo("w1", Shape(len(NODES), 8), NODES)
    return Outcome(world, states, 10.0, started=100.0, stopped=103.0)


def states() -> dict[int, RankState]:
    return {rank: RankState(rank, NODES[rank // 8]) for rank in range(RANKS)}


def merged(outcome: Outcome, reports: dict[int, dict[str, pytest.TestReport]]) -> pytest.TestReport:
    found = merge(outcome, reports, "a.py::test_a", ("a.py", 1, "test_a"), {})
    return next(report for report in found if report.failed)


def test_each_rank_fails_differently() -> None:
    all_states = states()
    reports = {}
    for rank, state in all_states.items():
        report = pytest.TestReport(
            *("a.py::test_a", ("a.py", 1, "test_a"), {}, "failed", f"value {rank**2} is wrong"),
            when="call",
            sections=[("Captured stdout call", f"{rank**2}\n" * 100)],
        )
        reports[rank] = {"call": report}
        state.reports["call"] = PhaseReport("call", "failed", {})
        state.at["call"] = state.failed_at = 1.0 + rank
        state.torn_down = TornDown()
    found = merged(outcome_of(all_states), reports)
    text = found.longreprtext
    assert text.startswith("[rank 0 of 512 on node0: first]\nvalue 0 is wrong")
    assert "[ranks 16-511 of 512 on node2,node3,node4,59 more: 496 further failures]" in text
    assert len(text) < 4000
    assert len(found.sections) == MOST_SECTIONS + 1
    assert "of ranks 32-511 are not shown" in found.sections[-1][1]


def test_each_rank_hangs_with_different_output_and_stack() -> None:
    all_states = states()
    for rank, state in all_states.items():
        state.stuck_in, state.output = "call", f"step {rank**2}"
        state.stack = (
            "Current thread 0x01 (most recent call first):\n"
            f'  File "/x/train.py", line 7 in step\n  File "/x/a.py", line {rank} in test_a\n'
        )
    outcome = outcome_of(all_states)
    outcome.timed_out, outcome.limit_s = "call", 10.0
    text = merged(outcome, {}).longreprtext
    assert "[ranks 0-511 of 512 on node0,node1,node2,61 more]" in text
    assert "further stacks, of ranks 16-511, are not shown" in text
    assert "further outputs, of ranks 16-511, are not shown" in text
    assert len(text) < 20_000


def test_each_rank_leaves_something_different_behind() -> None:
    all_states = states()
    for rank, state in all_states.items():
        state.reports["call"] = PhaseReport("call", "passed", {})
        state.torn_down = TornDown(leaks=(f"child process {rank + 1000}", "thread 'x'"))
    text = merged(outcome_of(all_states), {}).longreprtext
    assert "rank 3 on node0 left child process 1003 behind" in text
    assert "and 496 more" in text
    assert "ranks 0-511 on node0,node1,node2,61 more left thread 'x' behind" in text
    assert len(text) < 4000

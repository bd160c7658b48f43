"""The chart of a kill: activity of ranks, lost steps, and times of events."""

from __future__ import annotations

from dataclasses import replace

from pytest_mnode.criteria.restart.experiments import kill_timeline
from pytest_mnode.criteria.restart.history import history_of
from pytest_mnode.jobs import JobEvent
from tests.criteria.restart import made

EVENTS = (
    JobEvent(999.0, "submitted", 0),
    JobEvent(1010.0, "signalled", 0, "node1", (7,)),
    JobEvent(1012.5, "requeued", 1, detail="node1 lost"),
)


def test_a_kill_and_the_resume() -> None:
    cut = history_of([*made.incarnation(1, 6), *made.resumed()])
    shown = kill_timeline("rank", cut, made.KILL, EVENTS)
    assert shown is not None
    assert shown.lanes == ("rank 0", "rank 1", "checkpoints")
    rank = [(s.state, s.text, s.start_s, s.end_s) for s in shown.spans if s.lane == "rank 1"]
    (loads, kept, lost), again = rank[:3], rank[4]
    assert loads[0] == "loads"
    assert (kept[:2], kept[2]) == (("trains", "1–4"), 0.0)
    assert lost[:2] == ("trains, lost by the kill", "5–6")
    assert (again[:2], again[2]) == (("trains", "5–12"), 25.0)
    assert [(m.at_s, m.text) for m in shown.moments] == [
        (10.0, "SIGKILL of rank 1 on node1 (clock of node1)"),
        (12.5, "requeued node1 lost"),
    ]
    saved = [(s.text, s.start_s) for s in shown.spans if s.lane == "checkpoints"]
    assert ("step 4", 4.0) in saved


def test_without_a_kill_there_is_no_chart() -> None:
    cut = history_of(made.incarnation(1, 6))
    assert kill_timeline("rank", cut, replace(made.KILL, missed="it was over"), EVENTS) is None
    assert kill_timeline("rank", history_of([]), made.KILL, EVENTS) is None


def test_of_many_ranks_the_first_are_shown() -> None:
    cut = history_of([*made.incarnation(1, 6, ranks=20), *made.resumed(ranks=20)])
    shown = kill_timeline("rank", cut, made.KILL, ())
    assert shown is not None
    assert shown.lanes == (*(f"rank {n}" for n in range(16)), "checkpoints")
    assert {span.lane for span in shown.spans} == set(shown.lanes)

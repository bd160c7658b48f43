"""Experiments on a simulated scheduler, correct or faulty; and the plan of nodes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.gang.engine import Capacity
from pytest_mnode.gang.experiments import Plan
from pytest_mnode.spec.gang import GangCriterion
from tests.gang.simulated import Scheduler, ran
from tests.gang.windows import (
    AFTER,
    AGAIN,
    ALONE,
    BLOCKED,
    CONDUCTED,
    FAIL,
    FATE,
    LEFT,
    NEVER,
    NEXT,
    NO_REASON,
    NOT_BACK,
    NOT_TRIED,
    OFF,
    OLD,
    OTHERS,
    PARTS,
    TWICE,
    UNHEARD,
    UNKNOWN,
    WAITING,
    culprit,
    verdicts,
    words,
)


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 12])
@pytest.mark.parametrize("how", ["filled", "race", "oversize", "loss"])
def test_a_correct_scheduler_passes(how: str, nodes: int) -> None:
    scheduler = Scheduler(tuple(f"node{n}" for n in range(nodes)))
    done = ran(how, scheduler, node_loss="either", lost_within="30 s")
    assert verdicts(done) == {}, done.text()
    # More than half of the nodes, so that two gangs never fit.
    assert any(f" of {nodes // 2 + 1}" in line for line in done.lines)
    assert {f.name for f in done.measurements} >= {PARTS, WAITING, ALONE, LEFT}


@pytest.mark.parametrize(
    ("how", "faults", "expected", "name", "text"),
    [
        # Half a gang runs.
        ("filled", {"partial": 1}, {PARTS: FAIL}, PARTS, "filled 2: B held 2 of 3 nodes (node2 "),
        ("filled", {"split": 1}, {PARTS: FAIL, WAITING: FAIL}, PARTS, "B held 2 of 3 nodes (node"),
        ("filled", {"split": 1}, {}, WAITING, "filled 1: B: rank 0 on node"),
        ("race", {"partial": 1}, {PARTS: FAIL}, PARTS, "race 1: A held 1 of 3 nodes (node"),
        ("race", {"split": 1}, {PARTS: FAIL, WAITING: FAIL}, PARTS, " held 1 of 3 nodes (node"),
        # Nodes are bound one by one, which takes time.
        ("filled", {"one_by_one": 0.5}, {PARTS: FAIL}, PARTS, "B held 2 of 3 nodes (n"),
        # A rank of a waiting gang runs.
        ("filled", {"early": 1}, {WAITING: FAIL}, WAITING, "rank 0 on node0, "),
        ("race", {"early": 1}, {WAITING: FAIL}, WAITING, " heartbeats while it was waiting"),
        # A rank of an ended gang keeps running.
        ("filled", {"late_rank": 2.9}, {ALONE: FAIL}, ALONE, "2 of 3 ranks (0 on node"),
        # No waiting job gets its turn.
        ("race", {"never_next": 1}, {NEVER: FAIL, NEXT: FAIL}, NEVER, "0 of 3 nodes at most, PEND"),
        ("filled", {"never_next": 1}, {NEVER: FAIL, NEXT: FAIL}, NEVER, "filled 2: B: 0 of 3 "),
        # Jobs are left behind.
        ("filled", {"keeps": 1}, {LEFT: FAIL, NOT_BACK: FAIL}, LEFT, "filled 1: filler "),
        ("race", {"outlives": 1}, {AFTER: FAIL}, AFTER, "while it was over"),
        ("race", {"elsewhere": 1}, {"ranks on nodes that their gang did not hold": FAIL},
         "ranks on nodes that their gang did not hold", "rank 1 on node9"),
        ("race", {"twice": 1}, {TWICE: FAIL}, TWICE, "race 1: A and B (on node1)"),
        # Unobserved states are unknown, and never pass.
        ("filled", {"silent": "node2"}, {ALONE: UNKNOWN}, ALONE, "no heartbeat from node2 in "),
        ("filled", {"blind": 7.0}, {PARTS: UNKNOWN, TWICE: UNKNOWN}, PARTS, "gave no answer "),
        ("race", {"garbled": 1}, {WAITING: UNKNOWN, ALONE: UNKNOWN}, WAITING, "1 heartbeats "),
        ("filled", {"foreign": ("node3",)}, {NOT_TRIED: UNKNOWN}, NOT_TRIED, "others use "),
        ("filled", {"fails": "FAILED (NonZeroExitCode)"}, {NOT_TRIED: UNKNOWN}, NOT_TRIED,
         "the nodes could not be filled: filler 1 FAILED (NonZeroExitCode), filler 2 FAILED"),
        ("loss", {"fails": "FAILED"}, {FATE: UNKNOWN}, FATE, "no node was switched off: B FAILED"),
        # A gang larger than the cluster.
        ("oversize", {"unreasonable": 1}, {NO_REASON: FAIL}, NO_REASON, "too large: PENDING"),
        ("oversize", {"no_backfill": 1}, {BLOCKED: FAIL, OTHERS: FAIL}, BLOCKED, "B: PENDING ("),
        ("oversize", {"partial": 1}, {PARTS: FAIL}, PARTS, "too large held 4 of 5 nodes"),
        # Gangs that fail at once, with or without a reason from the scheduler.
        ("race", {"dies": 0.5}, {UNHEARD: UNKNOWN}, UNHEARD, "A: 0 of 3 ranks sent heartbeats"),
        ("filled", {"dies": 0.5, "fails": "FAILED (1)"}, {UNHEARD: FAIL}, UNHEARD, "; FAILED (1)"),
        ("oversize", {"dies": 0.5}, {UNHEARD: UNKNOWN}, UNHEARD, "too large: B: 0 of 3 ranks"),
        ("loss", {"dies_again": 0.5}, {FATE: FAIL}, FATE, "requeued and then over, COMPLETED"),
        # Nodes used by others: jobs that did not start are unknown, and so are nodes not returned.
        ("race", {"foreign": ("node2", "node3")}, {NEVER: UNKNOWN, NOT_BACK: UNKNOWN}, NEVER,
         "these nodes were used by others or unavailable: node2: job 17 of bob"),
        ("race", {"foreign": ("node3",)}, {NOT_BACK: UNKNOWN}, NOT_BACK,
         "race 1: others use node3: job 17 of bob"),
        ("race", {"foreign": ("node2", "node3"), "unlisted": 1},
         {NEVER: UNKNOWN, NOT_BACK: UNKNOWN}, NEVER, "node2: users unknown: squeue: cannot"),
        # A node may be off although the power command did not end.
        ("loss", {"power_limit": 1}, {FATE: UNKNOWN}, FATE, "bmc off: no answer in 60 s"),
        # A gang that lost a node.
        ("loss", {"half_requeue": 1}, {PARTS: FAIL, FATE: FAIL}, PARTS, "B held 2 of 3 nodes"),
        ("loss", {"zombies": 1}, {OLD: FAIL}, OLD, "loss: B: rank 0 on node1; loss: B: rank 1 on"),
        ("loss", {"never_again": 1}, {FATE: FAIL, AGAIN: FAIL}, FATE, "and then waiting, PENDING"),
        ("loss", {"no_power": 1}, {FATE: UNKNOWN}, FATE, "the spec names no command for it"),
    ],
)  # fmt: skip
def test_each_fault_of_a_scheduler_is_found(
    how: str, faults: dict[str, Any], expected: dict[str, str], name: str, text: str
) -> None:
    scheduler = Scheduler(faults=faults, refuses=how != "oversize")
    done = ran(how, scheduler, node_loss="either", lost_within="30 s")
    found = verdicts(done)
    assert expected.items() <= found.items(), done.text()
    assert text in words(done, name), done.text()
    assert not scheduler.off, "a node was left switched off"


def test_a_gang_larger_than_the_cluster_may_wait_with_a_reason() -> None:
    done = ran("oversize", Scheduler(refuses=False))
    assert verdicts(done) == {}, done.text()
    assert culprit(done, NO_REASON) == "waits: PENDING (Resources)"
    assert culprit(ran("oversize", Scheduler()), NO_REASON).startswith("refused: Requested node")


def test_nodes_may_be_bound_one_by_one_if_that_is_promised() -> None:
    scheduler = Scheduler(faults={"one_by_one": 0.5})
    assert verdicts(ran("race", scheduler, settle="2 s", together="2.5 s")) == {}
    slow = Scheduler(faults={"one_by_one": 3.0})
    found = verdicts(ran("race", slow, settle="2 s", runs="10 s", together="9 s"))
    assert found[PARTS] == FAIL


@pytest.mark.parametrize(
    ("promised", "came_to"),
    [("either", "requeued"), ("requeued", "requeued"), ("cancelled", "cancelled")],
)
def test_fate_of_a_gang_that_lost_a_node(promised: str, came_to: str) -> None:
    done = ran("loss", Scheduler(), node_loss=promised, lost_within="30 s")
    assert verdicts(done) == {}, done.text()
    [fate] = [f for f in done.measurements if f.name == FATE]
    assert fate.note.endswith(f" dead: {came_to})")


def test_a_gang_requeued_against_the_promise() -> None:
    stubborn = Scheduler(faults={"stubborn": 1})
    done = ran("loss", stubborn, node_loss="cancelled", lost_within="30 s")
    assert verdicts(done) == {FATE: FAIL}, done.text()
    assert culprit(done, FATE) == "loss: B (node0 dead: requeued)"


def test_a_gang_not_taken_down_in_time() -> None:
    done = ran("loss", Scheduler(), node_loss="either", lost_within="2 s")
    found = verdicts(done)
    assert found[OFF] == FAIL
    assert culprit(done, OFF) == "loss: B (on node0)"
    [named] = [one.culprit for one in done.measurements if one.name == OFF]
    assert named is not None
    assert named.nodes == set()  # the experiment switched the node off


@pytest.mark.parametrize(
    ("names", "promised", "text"),
    [
        (("node0",), {}, "1 of 1 nodes are free, and a gang needs 2; nodes in the allocation"),
        (("a", "b", "c"), {"nodes": 4}, "3 of 3 nodes are free, and a gang needs 4"),
        (("a", "b", "c"), {"among": ["a", "d"]}, "criteria.gang.among: d: no such node; the sch"),
    ],
)
def test_an_impossible_experiment_is_inconclusive(
    names: tuple[str, ...], promised: dict[str, Any], text: str
) -> None:
    done = ran("filled", Scheduler(names), **promised)
    assert verdicts(done) == {CONDUCTED: UNKNOWN}
    assert culprit(done, CONDUCTED).startswith(text)


@pytest.mark.parametrize("seconds", [7.0, 9.0, 20.0])
@pytest.mark.parametrize("how", ["filled", "race", "oversize"])
def test_a_scheduler_that_does_not_answer_is_inconclusive(how: str, seconds: float) -> None:
    done = ran(how, Scheduler(faults={"blind": seconds}), rounds=1)
    found = verdicts(done)
    assert found[PARTS] == UNKNOWN
    assert FAIL not in found.values(), (found, done.text())


def test_a_job_that_ran_between_two_observations_counts() -> None:
    done = ran("race", Scheduler(faults={"slow": 1.4}), rounds=1)
    assert FAIL not in verdicts(done).values(), done.text()


def test_slow_answers_of_a_correct_scheduler_pass() -> None:
    done = ran("race", Scheduler(faults={"slow": 1.2}), runs="10 s", next_within="60 s", rounds=1)
    assert verdicts(done) == {}, done.text()


def test_the_watch_lingers_for_late_heartbeats() -> None:
    done = ran("race", Scheduler(faults={"outlives": 1}), clock_skew="2 s", rounds=1)
    assert verdicts(done)[AFTER] == FAIL
    assert {"race 1: A: ", "race 1: B: "} <= set(re.findall("race 1: [AB]: ", culprit(done, AFTER)))


def test_a_small_job_may_wait_for_a_gang_of_the_whole_cluster() -> None:
    done = ran("oversize", Scheduler(), nodes=4, runs="12 s")
    assert verdicts(done) == {}, done.text()
    # The job itself has the same limit.
    slow = ran("oversize", Scheduler(faults={"late_small": 12.0}), nodes=4, runs="12 s")
    assert verdicts(slow) == {OTHERS: FAIL}, slow.text()
    assert culprit(slow, OTHERS).startswith("small")


def test_an_interrupted_experiment_switches_the_node_on() -> None:
    scheduler = Scheduler(faults={"interrupted": 1})
    with pytest.raises(KeyboardInterrupt):
        ran("loss", scheduler, node_loss="either", lost_within="30 s")
    assert not scheduler.off


def test_observations_continue_while_power_is_switched() -> None:
    """Management controllers are slow."""
    slow = Scheduler(faults={"slow_power": 8.0})
    done = ran("loss", slow, node_loss="either", lost_within="60 s")
    assert verdicts(done) == {}, done.text()


def test_observations_during_cancellation_belong_to_the_cleanup() -> None:
    done = ran("loss", Scheduler(faults={"watched": 1.0}), node_loss="requeued")
    assert verdicts(done) == {}, done.text()


def test_every_state_and_its_duration_is_recorded() -> None:
    done = ran("filled", Scheduler(), rounds=1)
    recorded = {f.name: f for f in done.measurements if f.expected is None}
    waited = recorded["filled 1: B: waiting"]
    assert waited.value == pytest.approx(4.4, abs=0.5)
    assert waited.note.startswith("PENDING (Resources); from +")
    whole = recorded["filled 1: B: whole"]
    assert whole.value == pytest.approx(3.0, abs=0.5)
    assert whole.note.startswith("3 of 3: node")
    assert recorded["filled 1: B: 3 of 3 ranks ran"].value == pytest.approx(3.0, abs=0.5)
    assert recorded["filled 1: small: time to its start"].value is not None
    assert any("B " in line and "waiting" in line and "4." in line for line in done.lines)


def test_the_chart_of_a_round_shows_gangs_and_nodes() -> None:
    done = ran("filled", Scheduler(), rounds=1)
    [shown] = done.charts
    assert shown.title == "Allocation, filled 1"
    assert {"B", "small", "filler 1", "node0"} <= set(shown.lanes)
    assert {span.lane for span in shown.spans} <= set(shown.lanes)
    gang = [(span.state, span.text) for span in shown.spans if span.lane == "B"]
    assert gang[0] == ("waiting", "0 of 3")
    assert ("whole", "3 of 3") in gang
    whole = next(s for s in shown.spans if (s.lane, s.state) == ("B", "whole"))
    on_nodes = {s.lane for s in shown.spans if s.text == "B" and s.start_s == whole.start_s}
    assert len(on_nodes) == 3
    assert all(0 <= span.start_s <= span.end_s for span in shown.spans)
    assert any("nodes filled" in moment.text for moment in shown.moments)


def test_the_order_of_experiments_varies_by_round_and_is_repeatable() -> None:
    def order(seed: int) -> list[list[str]]:
        done = ran("race", Scheduler(), rounds=4, seed=seed)
        rounds = "\n".join(done.lines).split("\nrace ")[1:]
        return [
            [line.split()[2] for line in one.splitlines() if " submitted: " in line]
            for one in rounds
        ]

    assert order(1) == order(1)
    assert len({tuple(one) for one in order(1)}) > 1
    assert all(sorted(one) == ["A", "B", "small"] for one in order(2))


def planned(there: int, free: int | None = None, **promised: Any) -> Plan:
    names = tuple(f"node{n}" for n in range(there))
    promise = GangCriterion.model_validate(promised)
    return Plan.of(promise, Capacity(names, names if free is None else names[:free]))


@pytest.mark.parametrize(
    ("nodes", "promised", "size", "arena", "fillers"),
    [
        (2, {}, 2, 2, (1,)),
        (3, {}, 2, 3, (1, 1)),
        (4, {}, 3, 4, (1, 1)),
        (7, {}, 4, 7, (1, 1, 1, 1)),
        (12, {}, 7, 12, (1, 1, 1, 3)),
        (1000, {}, 501, 1000, (1, 1, 1, 497)),
        # Room for one gang only if it is limited to so few nodes that two do not fit.
        (16, {"nodes": 3}, 3, 5, (1, 1, 1)),
        (4, {"nodes": 4}, 4, 4, (1,)),
        (8, {"among": ["node1", "node5", "node6"]}, 2, 3, (1, 1)),
    ],
)
def test_room_for_one_gang_and_not_for_two(
    nodes: int, promised: dict[str, Any], size: int, arena: int, fillers: tuple[int, ...]
) -> None:
    found = planned(nodes, **promised)
    assert (found.size, len(found.arena), found.fillers) == (size, arena, fillers)
    assert size <= len(found.arena) < 2 * size
    assert sum(found.fillers) + size - 1 == len(found.arena)
    if "among" in promised:
        assert list(found.arena) == promised["among"]


@pytest.mark.parametrize(
    ("nodes", "free", "promised", "text"),
    [
        (4, 0, {}, "0 of 4 nodes are free, and a gang needs 2; nodes in the allocation of"),
        (4, 2, {"nodes": 3}, "2 of 4 nodes are free, and a gang needs 3"),
        (4, 2, {"among": ["node1", "node2"]}, "criteria.gang.among: node2 not free; give nodes"),
        (2, 2, {"among": ["node1", "nodex"]}, "criteria.gang.among: nodex: no such node; the sch"),
    ],
)
def test_clusters_without_room(nodes: int, free: int, promised: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(nodes, free, **promised)
    assert str(caught.value).startswith(text)


def test_orders_follow_from_the_seed_and_the_round() -> None:
    names = ["a", "b", "c", "d"]
    found = {tuple(planned(4, seed=1).order(f"race {n}", names)) for n in range(6)}
    assert len(found) > 2
    assert all(sorted(one) == names for one in found)
    one, other = planned(4, seed=1), planned(4, seed=2)
    assert one.order("race 1", names) == planned(4, seed=1).order("race 1", names)
    assert [one.order(f"race {n}", names) for n in range(4)] != [
        other.order(f"race {n}", names) for n in range(4)
    ]

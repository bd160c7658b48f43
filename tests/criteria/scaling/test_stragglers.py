"""Ranks that are slower than the others: all of them are named, up to half of the nodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_mnode.criteria.scaling.causes import Cause
from pytest_mnode.criteria.scaling.judge import CountResult, judge_efficiency
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Verdict
from tests.criteria.scaling import made


@pytest.mark.parametrize(
    ("nodes", "slow", "names"),
    [
        (2, ["node1"], "node1 computes 1.4× slower: 280 ms, others 200 ms"),
        (4, ["node2", "node3"], "node2 and node3 compute up to 1.4× slower: 280 ms, others 200 ms"),
        (
            8,
            ["node4", "node5", "node6", "node7"],
            "node4, node5, node6 and node7 compute up to 1.4× slower: 280 ms, others 200 ms",
        ),
    ],
)
@pytest.mark.parametrize(("per_node", "noise_s"), [(1, 0.0), (1, 0.004), (2, 0.004)])
def test_all_slow_nodes_are_named(
    nodes: int, slow: Sequence[str], names: str, per_node: int, noise_s: float
) -> None:
    plan = made.plan(nodes, per_node)
    job = made.uneven(made.timings(plan, made.slow_on(slow, compute=0.28)), noise_s)
    judged, efficiency = made.judged_last(job, "skew", "compute")
    assert efficiency.verdict is Verdict.FAIL
    words = names if not noise_s else names.partition(":")[0]
    assert str(efficiency.culprit).startswith(words)
    assert judged.causes[0].kind == "straggler"
    assert judged.causes[0].culprit == names.partition(" compute")[0]
    assert judged.causes[0].seconds == pytest.approx(0.08, abs=noise_s + 1e-9)
    assert sum(cause.seconds for cause in judged.causes) == pytest.approx(judged.parts.lost_s)


def test_slow_nodes_are_not_counted_as_allowed_skew() -> None:
    plan = made.plan(8, rounds=6)  # its noise is too much for three rounds
    slow = ["node4", "node5", "node6"]
    job = made.uneven(made.timings(plan, made.slow_on(slow, compute=0.214)), 0.004)
    judged, efficiency = made.judged_last(job, "skew")
    assert 0.9 < judged.row.efficiency < 0.95
    assert efficiency.verdict is Verdict.FAIL
    straggler = judged.causes[0]
    assert (straggler.kind, straggler.culprit) == ("straggler", "node4, node5 and node6")
    skew = sum(cause.seconds for cause in judged.causes if cause.kind == "skew")
    assert 0 < skew < 0.004


def test_random_imbalance_is_skew() -> None:
    plan = made.plan(4)
    judged, efficiency = made.judged_last(made.uneven(made.timings(plan), 0.04), "skew")
    assert judged.causes[0].kind == "skew"
    assert efficiency.culprit is None  # skew is allowed, so no rank is blamed


@pytest.mark.parametrize("seed", range(8))
def test_random_imbalance_in_few_steps_names_no_straggler(seed: int) -> None:
    plan = made.plan(4, steps=3)
    judged, _ = made.judged_last(made.uneven(made.timings(plan), 0.03, seed))
    assert "straggler" not in {cause.kind for cause in judged.causes}


def test_a_slowdown_of_all_nodes_names_no_single_node() -> None:
    plan = made.plan(4)

    def own(node: str, count: int) -> dict[str, float]:
        return made.HEALTHY | ({"input": 0.06, "compute": 0.24} if count > 1 else {})

    judged, _ = made.judged_last(made.timings(plan, own))
    assert {cause.kind: cause.culprit for cause in judged.causes[:2]} == {
        "input": "all nodes",
        "compute": "all nodes",
    }


MANY = made.plan(4, 8)


def judged_many(by: Callable[[int, int], float], part: str = "compute") -> CountResult:
    """Four nodes of eight ranks, each later in a part of each step."""
    return made.judged(made.later(made.timings(MANY), by, part)).counts[-1]


@pytest.mark.parametrize("more_s", [0.016, 0.08])
@pytest.mark.parametrize(("allowed", "share"), [("straggler", 0.0), ("communication", 1.0)])
def test_imbalance_within_each_node_is_no_cause_of_scaling_loss(
    more_s: float, allowed: str, share: float
) -> None:
    """The first rank of every node computes longer, also if its node trains alone."""
    job = made.timings(MANY, needed_s=made.exposed_by(0.0165), line=0.15)
    job = made.later(job, lambda rank, count: 0.0 if rank % 8 else more_s)
    found = made.judged(job, allowed_causes=[allowed], fabric_fraction=0.1).counts[-1]
    assert found.explained == pytest.approx(share, abs=0.02), found.causes
    assert [c.culprit for c in found.causes if c.kind == "straggler"] == []
    assert sum(c.seconds for c in found.causes) == pytest.approx(found.parts.lost_s)
    assert min(c.seconds for c in found.causes) > -0.001


@pytest.mark.parametrize(
    ("nodes", "jitter", "least"), [(4, 0.03, 0.94), (4, 0.06, 0.9), (8, 0.04, 0.92)]
)
def test_random_imbalance_explains_no_more_than_its_cost(
    nodes: int, jitter: float, least: float
) -> None:
    plan = made.plan(nodes, 8)
    job = made.uneven(made.timings(plan, needed_s=made.exposed_by(0.0165), line=0.15), 0.2 * jitter)
    found = made.judged(job, allowed_causes=["communication"], fabric_fraction=0.1).counts[-1]
    assert found.explained > least, found.causes


def test_a_straggler_is_separated_from_imbalance_within_every_node() -> None:
    found = judged_many(lambda rank, _: 0.016 * (rank % 8 == 0) + 0.08 * (rank == 13))
    assert (found.causes[0].kind, found.causes[0].culprit) == ("straggler", "rank 13 on node1")
    assert found.causes[0].text.startswith("rank 13 on node1 computes 1.")
    assert found.causes[0].seconds == pytest.approx(0.064)
    assert all(cause.seconds == pytest.approx(0, abs=1e-3) for cause in found.causes[1:])


def test_skew_names_the_rank_that_is_the_slowest_most_often() -> None:
    chance = random.Random(3)

    def by(rank: int, count: int) -> float:
        often = rank == 24 and count > 1 and chance.random() < 0.7
        return 0.03 if often else chance.uniform(0, 1e-4)

    found = judged_many(by)
    assert found.causes[0].kind == "skew"
    assert found.causes[0].text.startswith(
        "ranks compute unevenly: the slowest of a step, most often rank 24 on node3, takes 30"
    )


@pytest.mark.parametrize("part", ["rest", "input", "optimiser"])
def test_one_rank_that_is_slower_in_any_part_is_named(part: str) -> None:
    found = judged_many(lambda rank, _: 0.04 * (rank == 13), part)
    assert (found.causes[0].kind, found.causes[0].culprit) == (part, "rank 13 on node1")
    assert found.causes[0].seconds == pytest.approx(0.04)


def test_other_time_of_all_ranks_names_no_rank() -> None:
    found = judged_many(lambda _, count: 0.04 * (count > 1), "rest")
    assert (found.causes[0].kind, found.causes[0].culprit) == ("rest", None)
    assert found.causes[0].text == "unattributed: 40 ms per step in the bookkeeping of ranks"


def test_a_straggler_is_not_alone_to_blame_where_the_largest_cause_is_nobodys() -> None:
    skew, straggler = Cause("skew", 0.03, "uneven"), Cause("straggler", 0.02, "", Culprit("a", "a"))
    found = made.judged(made.timings(made.plan(4)))
    last = found.counts[-1]
    row = replace(last.row, step_s=last.row.ideal_s + 0.05, efficiency=0.5, low=0.4, at_most=0.6)
    last = replace(last, row=row, causes=(skew, straggler))
    *_, one = judge_efficiency(replace(found, counts=(last,)))
    assert one.culprit is not None
    assert one.culprit.nodes == {"a"}
    assert frozenset() in one.culprit.either

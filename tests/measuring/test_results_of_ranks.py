"""The model that each rank trains, and ranks whose digests are in the minority."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pytest_mnode.checks.devices.training_step import judge_steps
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.results_of_ranks import RankSteps, SameSteps, job_of, models_of
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.model import train_alone
from pytest_mnode.spec.devices import TrainingStepPromise

CPU = torch.device("cpu")


def world(rank: int, nodes: int, per_node: int) -> World:
    names = tuple(f"node{i}" for i in range(nodes))
    return World(rank, nodes * per_node, rank % per_node, per_node, names[rank // per_node], names)


def rows(ranks: int, wrong: dict[int, tuple[int, ...]], kinds: str = "") -> SameSteps:
    """Results of ranks with one node each. wrong: by rank, its digests that no other rank has."""
    found = []
    for rank in range(ranks):
        models = models_of(world(rank, ranks, 1), kinds or "a" * ranks, 3)
        digests = tuple(
            f"{model} wrong on {rank}" if turn in wrong.get(rank, ()) else f"{model}"
            for turn, model in enumerate(models)
        )
        found.append(RankSteps(f"rank {rank}", "a", models, digests))
    return SameSteps(tuple(found), 4)


def test_each_model_is_trained_on_several_nodes() -> None:
    places = [models_of(world(rank, 2, 4), ["a"] * 8, 3) for rank in range(8)]
    assert places[0] == (0, 4, 1, 0)
    for model in range(8):
        ranks = [rank for rank, models in enumerate(places) if model in models]
        assert len(ranks) == 3
        assert len({rank // 4 for rank in ranks}) == 2


def test_partners_change_from_turn_to_turn() -> None:
    places = [models_of(world(0, 6, 1), ["a"] * 6, 3, turn) for turn in range(4)]
    assert places == [(0, 1, 2, 0), (0, 3, 4, 0), (0, 5, 1, 0), (0, 2, 3, 0)]
    assert models_of(world(1, 2, 1), ["a"] * 2, 3, 5) == (1, 0, 1)


def test_turns_add_up() -> None:
    [found] = judge_steps(rows(4, {}), rows(4, {2: (1,)}), rows(4, {2: (0, 3)}))
    assert (found.value, found.culprit) == (3, "rank 2 (3 of 12)")
    [found] = judge_steps(*[rows(4, {})] * 3)
    assert found.detection is not None
    assert found.detection.repeats == 3 * 16


def test_only_devices_of_one_kind_are_compared() -> None:
    kinds = ["a", "b", "a", "b"]
    assert models_of(world(0, 4, 1), kinds, 3) == (0, 2, 0)
    assert models_of(world(3, 4, 1), kinds, 3) == (3, 1, 3)


@pytest.mark.parametrize("wrong", [(0, 1, 2, 3), (0,), (1,), (2,), (3,)])
def test_the_outvoted_rank_is_named(wrong: tuple[int, ...]) -> None:
    found = rows(4, {2: wrong})
    [measurement] = judge_steps(found)
    assert measurement.verdict is Verdict.FAIL
    assert measurement.culprit == f"rank 2 ({len(wrong)} of 4)"


def test_equal_steps_pass_with_their_detection_limit() -> None:
    [measurement] = judge_steps(rows(4, {}))
    assert measurement.passed
    assert measurement.detection is not None
    assert measurement.detection.repeats == 16


def test_two_ranks_that_disagree_are_both_named_unless_one_contradicts_itself() -> None:
    [both] = judge_steps(rows(2, {1: (0, 1, 2)}))
    assert both.verdict is Verdict.FAIL
    assert both.culprit == "rank 0 or rank 1"
    [one] = judge_steps(rows(2, {1: (2,)}))
    assert one.culprit == "rank 1 (1 of 3)"


def test_a_rank_that_cannot_train_is_inconclusive() -> None:
    found = rows(3, {})
    failed = replace(found.rows[1], digests=(), why="out of memory")
    [measurement] = judge_steps(replace(found, rows=(found.rows[0], failed, found.rows[2])))
    assert measurement.verdict is Verdict.INCONCLUSIVE
    assert "could not be computed by rank 1: out of memory" in str(measurement)


def test_steps_are_equal_and_leave_the_random_states_alone() -> None:
    sizes = {"steps": 2, "width": 16, "layers": 1, "context": 8, "batch": 2}
    promise = TrainingStepPromise.model_validate(sizes)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    digests = [train_alone(job_of(promise, seed), CPU) for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.are_deterministic_algorithms_enabled()

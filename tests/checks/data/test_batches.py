"""Samples seen by the optimiser: number, weight, and agreement of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from pytest_mnode.checks.data import At, judge_batches
from pytest_mnode.checks.data.batches import Step
from pytest_mnode.measurement import Measurement, Verdict, equals

SIZE = "samples in a step of the optimiser"
MEAN = "gradients that are not the mean over the batch"
ALIKE = "gradients with unequal weights of samples"
SAME = "gradients unlike those of most ranks"
STEPS = "ranks with more or fewer steps"


def step(weights: dict[int, float], *fed: int) -> Step:
    return Step(
        np.array(list(weights), int), np.array(list(weights.values()), float), np.array(fed, int)
    )


def right(fed: Sequence[int], of_all: Sequence[int], weight: float | None = None) -> Step:
    each = 1 / len(of_all) if weight is None else weight
    return step(dict.fromkeys(sorted(of_all), each), *fed)


def seen(*ranks: Sequence[Step]) -> list[tuple[At, Sequence[Step]]]:
    return [(At(rank, f"node{rank}"), steps) for rank, steps in enumerate(ranks)]


def named(batch: Sequence[Measurement]) -> dict[str, Measurement]:
    return {one.name.partition(": ")[2]: one for one in batch}


def failed(batch: Sequence[Measurement]) -> dict[str, str | None]:
    return {n: m.culprit for n, m in named(batch).items() if m.verdict is Verdict.FAIL}


def test_two_micro_batches_of_two_on_two_ranks() -> None:
    every = range(8)
    steps = seen([right([0, 1, 2, 3], every)], [right([4, 5, 6, 7], every)])
    batch = judge_batches("optimiser", steps, local=2, accumulation=2)
    assert (batch[0].value, batch[0].source) == (8, "2 samples × 2 ranks × 2 micro-batches")
    assert {m.verdict for m in named(batch).values()} == {Verdict.PASS}


def test_an_optimiser_step_at_each_micro_batch() -> None:
    half = [0, 1, 4, 5]
    steps = seen([right([0, 1], half, 1 / 8)], [right([4, 5], half, 1 / 8)])
    found = failed(judge_batches("", steps, 2, 2))
    assert found[SIZE] == (
        "all 2 ranks: 4 samples in a step, expected 8; "
        "one micro-batch: it stepped at each, or dropped the others"
    )
    assert found[MEAN] == (
        "all 2 ranks: weights add up to 0.5, "
        "as if the loss were divided by the micro-batches once too often, "
        "or gradients were divided by the ranks once too often"
    )


def test_a_loss_that_is_not_divided_by_the_micro_batches() -> None:
    parts = ([0, 1], [2, 3], [4, 5])
    steps = seen(*[[right(part, range(6), 1 / 3)] for part in parts])
    found = failed(judge_batches("", steps, 1, 2))
    why = "as if the loss were not divided by the micro-batches"
    assert found == {MEAN: f"all 3 ranks: weights add up to 2, {why}"}


def test_gradients_that_were_not_reduced() -> None:
    one, other = [0, 1], [2, 3]
    steps = seen([right(one, one)], [right(other, other)])
    found = failed(judge_batches("", steps, 2, 1))
    assert found[SIZE] == (
        "all 2 ranks: 2 samples in a step, expected 4; "
        "its own only: gradients were not reduced over ranks"
    )
    assert found[SAME] == "all 2 ranks: a gradient that most ranks do not have"


def test_gradients_summed_over_ranks() -> None:
    steps = seen(*[[right([rank], range(4), 1.0)] for rank in range(4)])
    [culprit] = failed(judge_batches("", steps, 1, 1)).values()
    assert culprit == (
        "all 4 ranks: weights add up to 4, as if gradients were summed over ranks, not averaged"
    )


def test_one_sample_that_weighs_more() -> None:
    weights = {0: 0.25, 1: 0.25, 2: 0.125, 3: 0.375}
    found = failed(judge_batches("", seen([step(weights, 0, 1)], [step(weights, 2, 3)]), 2, 1))
    assert found == {ALIKE: "all 2 ranks: in step 1 2 of 4 samples, such as 2: 0.5 of the usual"}


def test_a_sample_that_came_twice_counts_twice() -> None:
    weights = {0: 0.5, 1: 0.25, 2: 0.25}
    batch = judge_batches("", seen([step(weights, 0, 1)], [step(weights, 0, 2)]), 2, 1)
    assert all(one.passed for one in batch)
    assert batch[0].value == 4


def test_a_rank_that_takes_more_steps() -> None:
    every = range(4)
    steps = seen([right([0, 1], every)] * 2, [right([2, 3], every)])
    batch = judge_batches("", steps, 2, 1)
    assert failed(batch) == {STEPS: "rank 0 on node0: 2 steps; rank 1 on node1: 1 step"}
    # Steps with one number are different steps there, so they are not compared.
    assert {m.verdict for n, m in named(batch).items() if n != STEPS} == {Verdict.INCONCLUSIVE}
    assert batch[0].note == "ranks took different numbers of steps"


def test_the_rank_that_differs_from_most_is_blamed() -> None:
    every = range(8)
    healthy = [[right([2 * rank, 2 * rank + 1], every)] * 3 for rank in range(4)]
    odd = [right([0, 1], every, 1 / 4), *healthy[0][1:]]
    found = failed(judge_batches("", seen(odd, *healthy[1:]), 2, 1))
    assert found[SAME] == "rank 0 on node0: a gradient that most ranks do not have"
    assert str(found[MEAN]).startswith("rank 0 on node0: weights add up to 2, ")
    early = seen(*healthy[:3], healthy[3][:2])
    assert failed(judge_batches("", early, 2, 1)) == {
        STEPS: "rank 3 on node3: 2 steps, most ranks 3"
    }
    never = seen(healthy[0], [], *healthy[2:])
    assert failed(judge_batches("", never, 2, 1)) == {
        STEPS: "rank 1 on node1: 0 steps, most ranks 3"
    }


def test_gradients_that_are_not_set_to_zero() -> None:
    def kept(rank: int) -> list[Step]:
        return [
            right(range(16 * n + rank * 8, 16 * n + rank * 8 + 8), range(16 * (n + 1)), 1 / 16)
            for n in range(3)
        ]

    batch = judge_batches("", seen(kept(0), kept(1)), 4, 2)
    assert (batch[0].value, batch[0].expected) == (48, equals(16))
    why = "gradients of earlier steps are in it: zero_grad"
    found = failed(batch)
    assert found[SIZE] == (
        f"all 2 ranks: 32 samples in a step, expected 16; {why}; "
        f"all 2 ranks: 48 samples in a step, expected 16; {why}"
    )
    assert found[MEAN] == (
        f"all 2 ranks: weights add up to 2, {why}; all 2 ranks: weights add up to 3, {why}"
    )


def test_a_sample_that_no_rank_computed() -> None:
    steps = seen([right([0, 1], range(5), 1 / 4)], [right([2, 3], range(5), 1 / 4)])
    found = failed(judge_batches("", steps, 2, 1))
    assert found[SIZE] == (
        "all 2 ranks: 5 samples in a step, expected 4; 1 of them no rank computed"
    )


def test_a_missing_step_or_gradient_does_not_pass() -> None:
    nothing = named(judge_batches("", seen([], []), 2, 1))
    assert {m.verdict for m in nothing.values()} == {Verdict.INCONCLUSIVE}
    assert {m.verdict for m in named(judge_batches("", [], 2, 1)).values()} == {
        Verdict.INCONCLUSIVE
    }
    empty = failed(judge_batches("", seen([step({}, 0, 1)], [step({}, 2, 3)]), 2, 1))
    assert set(empty) == {SIZE, MEAN}


@pytest.mark.parametrize(
    ("weights", "total", "odd"),
    [
        ((math.inf, -math.inf, 0.25, 0.25), "nan", "2 of 4 samples, such as 0: weight inf"),
        ((math.nan, 0.25, 0.25, 0.25), "nan", "1 of 4 samples, such as 0: weight nan"),
        ((0.25, 0.25, 0.25, math.inf), "inf", "1 of 4 samples, such as 3: weight inf"),
        ((1e308, 1e308, 1e308, 1e308), "inf", None),
        ((0.0, 0.0, 0.0, 1.0), None, "1 of 4 samples, such as 3: weight 1, usual 0"),
    ],
)
def test_weights_without_a_finite_sum_are_reported(
    weights: Sequence[float], total: str | None, odd: str | None
) -> None:
    of_all = step(dict(enumerate(weights)), 0, 1), step(dict(enumerate(weights)), 2, 3)
    found = failed(judge_batches("", seen(*([one] for one in of_all)), 2, 1))
    sums = {MEAN: f"all 2 ranks: weights add up to {total}, expected 1"} if total else {}
    each = {ALIKE: f"all 2 ranks: in step 1 {odd}"} if odd else {}
    assert found == sums | each

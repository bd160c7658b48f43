"""Means and sums over ranks: exact or not, and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.checks.data import At, judge_count, judge_mean
from pytest_mnode.checks.data.metrics import Reduced

VALUES = [[1.0, 2.0, 3.0], [10.0]]
MEAN = 4.0


def reduced(
    results: Sequence[float | None], values: Sequence[Sequence[float]] = VALUES
) -> list[Reduced]:
    return [
        Reduced(At(rank, f"node{rank}"), tuple(values[rank]), result)
        for rank, result in enumerate(results)
    ]


def test_the_mean_of_all_values() -> None:
    found = judge_mean("loss", reduced([MEAN, MEAN]))
    assert found.passed
    assert (found.name, found.note) == (
        "loss: ranks with a wrong mean",
        "4.0 of 4 values, 1 to 3 a rank",
    )


@pytest.mark.parametrize(
    ("results", "culprit", "values"),
    [
        ([6.0, 6.0], "all 2 ranks: the average of the ranks' averages", "rank 0 on node0: 6.0; "),
        ([MEAN, 10.0], "rank 1 on node1: one rank's own", "rank 1 on node1: 10.0; "),
        (
            [MEAN, MEAN * (1 + 1e-7)],
            "rank 1 on node1: as float32 has it",
            "rank 1 on node1: 4.0000004; ",
        ),
        ([MEAN, 4.5], "rank 1 on node1", "rank 1 on node1: 4.5; "),
        ([MEAN, float("nan")], "rank 1 on node1", "rank 1 on node1: nan; "),
    ],
)
def test_a_wrong_mean_and_why(results: list[float], culprit: str, values: str) -> None:
    found = judge_mean("loss", reduced(results))
    assert found.culprit == culprit
    assert found.note.startswith(values)
    assert found.value == sum(result != MEAN for result in results)


@pytest.mark.parametrize(
    ("results", "values", "note"),
    [
        ([MEAN, None], VALUES, "rank 1 on node1 has no result"),
        ([2.0, 2.0], [[1.0, 3.0], [2.0, 2.0]], "an average of the ranks' averages is the same"),
        ([None, None], [[], []], "no rank has a value"),
        ([5.0], [[4.0, 6.0]], "an average of the ranks' averages is the same"),
    ],
)
def test_metrics_that_cannot_be_judged(
    results: list[float | None], values: list[list[float]], note: str
) -> None:
    found = judge_mean("loss", reduced(results, values))
    assert found.value is None
    assert found.note.startswith(note)


@pytest.mark.parametrize(
    ("values", "result", "note"),
    [
        ([[inf, 1.0], [2.0]], 5.0, "rank 0 on node0 has inf, and the sum of all values is "),
        ([[inf, 1.0], [2.0]], inf, "rank 0 on node0 has inf, and the sum of all values is "),
        ([[inf], [1.0, -inf]], inf, "rank 0 on node0 has inf; rank 1 on node1 has -inf, and "),
        ([[1.0, 2.0], [nan]], nan, "rank 1 on node1 has nan, and the sum of all values is "),
        ([[1e308, 1e308], [1.0]], inf, "rank 0 on node0 has 1e+308, and the sum of all values is "),
        ([[1.0], [1e308], [1e308, 2.0]], 1.0, "rank 1 on node1 has 1e+308; rank 2 on node2 has "),
    ],
)
def test_values_that_have_no_mean(values: list[list[float]], result: float, note: str) -> None:
    found = judge_mean("loss", reduced([result] * len(values), values))
    assert (found.value, found.culprit) == (None, None)
    assert found.note.startswith(note)


@given(st.lists(st.lists(st.floats(0.5, 100), min_size=1, max_size=30), min_size=2, max_size=6))
def test_float64_is_exact_and_float32_sums_are_not(
    values: list[list[float]],
) -> None:
    every = [value for own in values for value in own]
    in_double = float(torch.tensor(every, dtype=torch.float64).sum()) / len(every)
    found = judge_mean("", reduced([in_double] * len(values), values))
    assert found.value in (0, None)
    off = fsum(every) / len(every) * (1 + 1e-6)
    assert judge_mean("", reduced([off] * len(values), values)).value != 0


def counted(*pairs: tuple[int, int | None]) -> list[Reduced]:
    return [
        Reduced(At(rank, f"node{rank}"), (own,), result) for rank, (own, result) in enumerate(pairs)
    ]


def test_sums_are_exact() -> None:
    large = 2**53
    assert judge_count("tokens", counted((large, large + 1), (1, large + 1))).passed
    found = judge_count("tokens", counted((large, large), (1, large + 1)))
    assert found.culprit == "rank 0 on node0: as float64 has it"
    assert found.note.startswith(f"rank 0 on node0: {large}; ")
    assert judge_count("", counted((3, 7), (4, 3))).culprit == "rank 1 on node1"
    assert judge_count("", counted((3, 3), (4, None))).value is None
    assert judge_count("", []).value is None

"""Final parameters of two runs beside each other."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_mnode.criteria.restart.warming import parameters_differ

ONES = {"a": np.ones(2), "b": np.ones(2)}


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_no_number_differs(odd: float, side: int) -> None:
    pair = [ONES, {**ONES, "b": np.array([1.0, odd])}]
    found = parameters_differ(pair[side], pair[1 - side], 0.01, "source")
    assert (found.value, found.at_most, found.culprit) == (1.0, 0.01, "b")
    assert found.note == "not finite: b"


def test_the_farthest_is_named_as_a_part_of_the_largest() -> None:
    found = parameters_differ(
        {"a": np.full(2, 4.0), "b": np.ones(1)},
        {"a": np.full(2, 4.0), "b": np.full(1, 1.5)},
        0.01,
        "",
    )
    assert (found.value, found.culprit) == (0.125, "b")


def test_all_zero_is_equal() -> None:
    zero = {"a": np.zeros(2), "empty": np.zeros(0)}
    assert parameters_differ(zero, zero, 0.01, "").value == 0.0


def test_others_than_there_were_cannot_be_compared() -> None:
    assert parameters_differ(ONES, {"a": np.ones(2)}, 0.01, "").value is None
    assert parameters_differ(ONES, {**ONES, "b": np.ones(3)}, 0.01, "").value is None

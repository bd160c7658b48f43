"""Comparison of the final parameters of two runs, and the cost of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_mnode.criteria.restart.comparing import Tolerance, compared_parameters
from pytest_mnode.criteria.restart.history import History, history_of
from pytest_mnode.criteria.restart.judging import checkpoint_costs
from pytest_mnode.measurement import at_most
from pytest_mnode.reference_job.records import CheckpointRecord
from tests.criteria.restart.made import KILLED, WHOLE, incarnation

ONES = {"a": np.ones(2), "b": np.ones(2)}
PERCENT = Tolerance(0.01, "source")


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_values_that_are_not_finite_differ(odd: float, side: int) -> None:
    pair = [ONES, {**ONES, "b": np.array([1.0, odd])}]
    found = compared_parameters(pair[side], pair[1 - side], PERCENT)
    assert (found.value, found.expected, found.culprit) == (1.0, at_most(0.01), "b")
    assert found.note == "not finite: b"


def test_the_largest_difference_is_named_relative_to_the_largest_value() -> None:
    one = {"a": np.array([1.0, -4.0]), "b": np.array([[1.0]])}
    found = compared_parameters(one, {**one, "b": np.array([[1.5]])}, PERCENT)
    assert (found.value, found.culprit) == (0.125, "b")
    assert compared_parameters(one, one, PERCENT).passed


def test_parameters_of_zero_are_equal() -> None:
    zero = {"a": np.zeros(2), "empty": np.zeros(0)}
    assert compared_parameters(zero, zero, PERCENT).value == 0.0


def test_other_names_or_shapes_cannot_be_compared() -> None:
    missing = compared_parameters(ONES, {"a": np.ones(2)}, PERCENT)
    assert (missing.value, missing.note) == (None, "parameters of only one run: ['b']")
    assert compared_parameters({}, {}, PERCENT).value is None
    shape = compared_parameters(ONES, {**ONES, "b": np.ones(3)}, PERCENT)
    assert (shape.value, shape.note) == (None, "the parameters of both runs differ in shape")


def test_the_longest_checkpoint_is_named() -> None:
    def course(write_s: float) -> History:
        def slow(record: Any) -> Any:
            """All ranks wait for the slowest and report its time."""
            if not isinstance(record, CheckpointRecord) or record.step != 8:
                return record
            return replace(record, seconds=3.0, write_s=write_s if record.rank == 1 else 0.5)

        return history_of(incarnation(1, 12, ends=True, change=slow))

    time, size = checkpoint_costs(course(2.5), 3, 2.0)
    assert (time.value, time.expected, time.culprit) == (
        3.0,
        at_most(2.0),
        "rank 1 on node1 wrote for 2.5 s, step 8",
    )
    alike, _ = checkpoint_costs(course(0.6), 3, 2.0)
    assert alike.culprit == "all ranks alike: they wrote for 0.6 s, step 8"
    assert (size.value, size.expected) == (10 / 1e6, None)


def test_missing_checkpoints_do_not_pass() -> None:
    [found] = checkpoint_costs(history_of(KILLED), 3, 2.0)
    assert (found.value, found.note) == (None, "1 of 3 checkpoints were written")
    [found] = checkpoint_costs(history_of([]), 3, 2.0)
    assert found.value is None
    assert len(checkpoint_costs(history_of(WHOLE), 3, None)) == 2

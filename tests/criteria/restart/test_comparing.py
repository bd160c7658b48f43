"""Comparison of the final parameters of two runs, and the cost of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_mnode.criteria.restart.comparing import Tolerance, compared_parameters
from pytest_mnode.criteria.restart.experiments import judge_size
from pytest_mnode.criteria.restart.history import History, history_of
from pytest_mnode.criteria.restart.judging import checkpoint_costs
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import RankError
from pytest_mnode.measurement import Measurement, at_most
from pytest_mnode.reference_job.records import CheckpointRecord, StepRecord
from tests.criteria.restart.made import KILLED, TERMS, WHOLE, incarnation, is_right, only, resumed

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


def test_all_nodes_that_wrote_long_are_named_whenever_they_did() -> None:
    wrote = {(4, 1): 2.2, (8, 2): 2.5, (8, 3): 2.4}

    def slow(record: Any) -> Any:
        """Rank 0 writes a little longer than usual."""
        if not isinstance(record, CheckpointRecord):
            return record
        own = wrote.get((record.step, record.rank), 0.2 if record.rank == 0 else 0.1)
        longest = max([s for (step, _), s in wrote.items() if step == record.step], default=0.2)
        return replace(record, seconds=longest + 0.1, write_s=own)

    whole = history_of(incarnation(1, 12, ranks=4, ends=True, change=slow))
    time, _ = checkpoint_costs(whole, 3, 2.0)
    assert isinstance(time.culprit, Culprit)
    assert time.culprit.nodes == {"node1", "node2", "node3"}


def test_missing_checkpoints_do_not_pass() -> None:
    [found] = checkpoint_costs(history_of(KILLED), 3, 2.0)
    assert (found.value, found.note) == (None, "1 of 3 checkpoints were written")
    [found] = checkpoint_costs(history_of([]), 3, 2.0)
    assert found.value is None
    assert len(checkpoint_costs(history_of(WHOLE), 3, None)) == 2


CONTINUED, LOST = "runs that did not continue", "steps lost"
FINAL = {"w": np.ones(2)}
FAILED = RankError("[rank 1 of 4 on node1]\nValueError: no shard")


def judged(
    final: dict[str, np.ndarray] | RankError = FINAL,
    expected: dict[str, np.ndarray] | RankError = FINAL,
    **resume: object,
) -> dict[str, Measurement]:
    cut = history_of(KILLED + resumed(**resume))  # type: ignore[arg-type]
    found = judge_size(expected, history_of(WHOLE), final, cut, TERMS)
    return {one.name: one for one in found}


def test_a_correct_resume_passes_and_is_judged_whole() -> None:
    found = judged()
    assert [name for name, one in found.items() if not is_right(one)] == []
    assert list(found)[:2] == [CONTINUED, LOST]
    assert len(found) > 5
    assert found["final parameters, largest difference"].value == 0
    assert found[LOST].note == "from 4"


def test_a_resume_from_an_earlier_checkpoint_lost_steps() -> None:
    lost = judged(first=1, loaded=None)[LOST]
    assert (lost.value, lost.passed) == (4, False)
    assert "continued from step 0, and step 4 was saved" in str(lost.culprit)


def test_the_last_checkpoint_counts() -> None:
    cut = history_of(incarnation(1, 10) + resumed(9, loaded=8))
    lost = {one.name: one for one in judge_size(FINAL, history_of(WHOLE), FINAL, cut, TERMS)}[LOST]
    assert (lost.value, lost.note) == (0, "from 8")


@pytest.mark.parametrize("changed", [{"w": np.zeros(2)}, {"w": np.full(2, 1.5)}])
def test_other_parameters_at_the_end_fail(changed: dict[str, np.ndarray]) -> None:
    assert not judged(final=changed)["final parameters, largest difference"].passed


def test_other_losses_after_the_resume_fail() -> None:
    wrong = judged(change=only(StepRecord, step=6, loss=99.0))
    assert any(not is_right(one) for name, one in wrong.items() if "loss" in name)


def test_a_run_that_fails_is_named_and_one_without_a_run_to_compare_is_unknown() -> None:
    [failed] = judged(final=FAILED).values()
    assert (failed.passed, str(failed.culprit)) == (False, "ValueError: no shard")
    [unknown] = judged(expected=FAILED).values()
    assert unknown.value is None

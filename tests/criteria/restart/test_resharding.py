"""A resume on another number of ranks: what is judged, and when nothing can be."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_mnode.criteria.restart.experiments import judge_size
from pytest_mnode.criteria.restart.history import history_of
from pytest_mnode.errors import RankError
from pytest_mnode.measurement import Measurement
from pytest_mnode.reference_job.records import StepRecord
from tests.criteria.restart.made import KILLED, TERMS, WHOLE, incarnation, is_right, only, resumed

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

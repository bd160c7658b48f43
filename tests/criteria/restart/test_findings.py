"""What a damaged checkpoint, and the cost of one, come to as findings."""

from __future__ import annotations

from pytest_mnode.criteria.restart.corrupting import refusal
from pytest_mnode.criteria.restart.counting import costs
from pytest_mnode.criteria.restart.findings import Figure
from pytest_mnode.criteria.restart.lives import history_of
from pytest_mnode.criteria.restart.warming import parameters_differ
from pytest_mnode.reference_job.records import CheckpointRecord, StartRecord
from tests.criteria.restart.made import KILLED, WHOLE, life, only, resumed

REASON = ("step-00000008: __0_0.distcp is not what was written: its SHA-256 differs",)


def test_a_refusal_that_is_right() -> None:
    cut = life(1, 9) + resumed(change=only(StartRecord, refused=REASON))
    found = refusal(history_of(cut), "whose file has a flipped bit")
    assert [one.count for one in found] == [0, 0, 0]
    assert found[2].note == REASON[0]


def test_a_damaged_checkpoint_that_was_used_and_one_passed_over() -> None:
    cut = life(1, 9) + resumed(change=only(StartRecord, rank=1, loaded=8))
    used, others, unsaid = refusal(history_of(cut), "whose file has a flipped bit")
    assert used.culprit == "rank 1 on node1 loaded step 8, whose file has a flipped bit"
    assert (used.count, others.count, unsaid.count) == (1, 0, 2)
    cut = life(1, 9) + resumed(loaded=None)
    used, others, _ = refusal(history_of(cut), "")
    assert (used.count, others.count) == (0, 2)
    assert others.culprit is not None
    assert others.culprit.startswith("rank 0 on node0 loaded step None, step 4 was whole")


def test_the_longest_checkpoint_is_named() -> None:
    slow = only(CheckpointRecord, step=8, rank=1, seconds=3.0)
    whole = life(1, 12, ends=True, change=slow)
    time, size = costs(history_of(whole), 3, 2.0)
    assert isinstance(time, Figure)
    assert isinstance(size, Figure)
    assert (time.value, time.at_most, time.culprit) == (3.0, 2.0, "rank 1 on node1, step 8")
    assert (size.value, size.at_most) == (10 / 1e6, None)


def test_checkpoints_that_are_missing_are_not_quick() -> None:
    [figure] = costs(history_of(KILLED), 3, 2.0)
    assert isinstance(figure, Figure)
    assert (figure.value, figure.note) == (None, "1 of 3 checkpoints were written")
    [figure] = costs(history_of([]), 3, 2.0)
    assert isinstance(figure, Figure)
    assert figure.value is None
    assert len(costs(history_of(WHOLE), 3, None)) == 2


def test_parameters_are_compared_with_the_largest() -> None:
    import numpy as np

    one = {"a": np.array([1.0, -4.0]), "b": np.array([[0.5]])}
    other = {"a": np.array([1.0, -4.0]), "b": np.array([[0.7]])}
    figure = parameters_differ(one, other, 0.01, "x")
    assert abs((figure.value or 0) - 0.05) < 1e-12
    assert figure.culprit == "b"
    assert parameters_differ(one, one, 0.01, "x").value == 0
    missing = parameters_differ(one, {"a": one["a"]}, 0.01, "x")
    assert (missing.value, missing.note) == (None, "only in one: ['b']")
    assert parameters_differ({}, {}, 0.01, "x").value is None
    odd = {"a": one["a"], "b": np.array([[0.5, 0.5]])}
    assert parameters_differ(one, odd, 0.01, "x").value is None

"""What the reference job's own code can lose in a resume is found by its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_mnode.criteria.restart.comparing import Tolerance
from pytest_mnode.criteria.restart.history import history_of
from pytest_mnode.criteria.restart.judging import judge
from pytest_mnode.measurement import Measurement
from pytest_mnode.reference_job.records import EndRecord, Record, StartRecord, StepRecord
from tests.criteria.restart.bookkeeping import bookkeeping
from tests.criteria.restart.made import (
    BATCH,
    EPOCH,
    KILL,
    KILLED,
    TERMS,
    WHOLE,
    Change,
    incarnation,
    is_right,
    only,
    resumed,
)

SAMPLES = "samples not seen exactly once"


def wrong(cut: Sequence[Record], tolerance: Tolerance = TERMS.tolerance) -> dict[str, Measurement]:
    """What the job's own code did wrong, by name."""
    terms = replace(TERMS, tolerance=tolerance)
    runs = history_of(WHOLE), history_of([*KILLED, *cut])
    found = bookkeeping(*runs, terms, samples=EPOCH * BATCH, batch=BATCH)
    assert not {one.name for one in found} & {one.name for one in judge(*runs, KILL, terms)}
    return {one.name: one for one in found if not is_right(one)}


def test_a_correct_resume_has_nothing_wrong() -> None:
    assert wrong(resumed()) == {}


@pytest.mark.parametrize(
    ("name", "count", "culprit", "change"),
    [
        ("random states", 8, "rank 1 on node1 from step 5 on", only(StepRecord, 5, 1, rng="new")),
        # The schedule begins anew.
        (
            "learning rates",
            16,
            "rank 0 on node0 from step 5",
            only(StepRecord, lr=lambda r: 0.1 * (r.step - 4)),
        ),
        (
            SAMPLES,
            27,
            "sample 0 of epoch 0: 3 times, step 1 on rank 0, step 5 on rank 0, step 5 on rank 1",
            only(StepRecord, 5, samples=lambda r: (r.step - 5, 30 - r.rank)),
        ),
        ("steps with other samples", 8, "step 5: samples [27", only(StepRecord, 5, samples=(27,))),
        ("final optimiser", 2, "rank 0 on node0; rank 1 on node1", only(EndRecord, optimiser="q")),
        ("final learning rates that differ", 2, "rank 0 on node0", only(EndRecord, lr=1.0)),
        (
            "loaded checkpoint saved after the start",
            -100,
            "the checkpoint of step 4, which is older than the run",
            only(StartRecord, saved_at=900.0),
        ),
    ],
)
def test_each_loss_of_state_is_named(name: str, count: int, culprit: str, change: Change) -> None:
    found = wrong(resumed(change=change))
    [one] = [one for title, one in found.items() if title.startswith(name)]
    assert one.value == count
    assert (one.culprit or "").startswith(culprit), one


def test_steps_after_the_last_one_are_found() -> None:
    more = incarnation(5, 15, loaded=4, began=1025.0, number=1, ends=True)
    found = wrong(more)["ends at another step"]
    assert found.value == 5
    assert (found.culprit or "").startswith("step 13 of 12; ")
    assert "rank 0 on node0 ended with 15 of 12 steps" in (found.culprit or "")


@pytest.mark.parametrize("ranks", [1, 4])
def test_on_other_numbers_of_ranks_only_shared_values_count(ranks: int) -> None:
    like = Tolerance(0.01, "relative", same_ranks=False)
    assert wrong(resumed(ranks=ranks), like) == {}
    found = wrong(resumed(ranks=ranks, change=only(StepRecord, 9, samples=(0,))), like)
    assert {SAMPLES, "steps with other samples"} == found.keys()

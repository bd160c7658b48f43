"""What is made of a batch script's state in the queue."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_mnode.launching.sbatch import SbatchSubmission
from pytest_mnode.slurm import JobState

RUNS = JobState(7, "x", "RUNNING")


@pytest.mark.parametrize(
    ("answers", "state", "over"),
    [
        (False, None, False),  # nothing was ever heard of it
        (False, RUNS, False),
        (True, RUNS, False),
        (True, JobState(7, "x", "FAILED"), True),
        (True, None, True),
    ],
)
def test_a_slurm_that_does_not_answer_ends_nothing(
    answers: bool, state: JobState | None, over: bool
) -> None:
    submission = SbatchSubmission.__new__(SbatchSubmission)
    submission._queued = SimpleNamespace(answers=lambda: answers, state=state)  # type: ignore[assignment]
    assert submission._over() is over

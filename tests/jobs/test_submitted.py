"""The end of a submitted job, with values in place of queue and nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.slurm import files, submitted
from pytest_mnode.jobs.slurm.queued import JobHistory
from pytest_mnode.jobs.slurm.submitted import SubmittedJob
from pytest_mnode.launchers.slurm import JobState

NODES = ("node0", "node1")
WELL = files.Status(0, False, False)
COMPLETED = JobState(7, "x", "COMPLETED", nodes=NODES, restarts=0)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SubmittedJob:
    """A job that was observed running, with a queue that the test fills."""
    monkeypatch.setattr(submitted, "POLL_JOB_S", 0.0)
    made: Any = SubmittedJob.__new__(SubmittedJob)
    made._events, made._noted, made._requeue, made._preempted = [], set(), 0, False
    made._result = made._missing_since = None
    made._looked_at = -10.0
    made._job, made._history = Job(["t.py"]), JobHistory(1, NODES, 0)
    made._read = files.JobFiles(tmp_path)
    made._losses = SimpleNamespace(look=lambda _: {}, lost=())
    made._queued = SimpleNamespace(answers=lambda: True, number=7, state=COMPLETED)
    found: SubmittedJob = made
    return found


def test_status_files_may_arrive_late(job: SubmittedJob, tmp_path: Path) -> None:
    """Slurm reports the end of all tasks before their files are visible."""
    files.write_status(tmp_path, "node0", 0, WELL)
    assert job.poll() is None
    assert job.poll() is None
    files.write_status(tmp_path, "node1", 0, WELL)
    result = job.poll()
    assert result is not None
    assert result.returncodes == {"node0": 0, "node1": 0}
    assert [event.what for event in job.events] == ["ended", "ended"]


def test_a_status_file_that_never_arrives(
    job: SubmittedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitted, "NFS_DELAY_S", 0.0)
    files.write_status(tmp_path, "node0", 0, WELL)
    result = job.poll()
    assert result is not None
    assert result.returncodes == {"node0": 0, "node1": 137}


def test_no_wait_for_files_of_a_job_that_slurm_ended(job: SubmittedJob) -> None:
    job._queued.state = JobState(7, "x", "NODE_FAIL", nodes=NODES, restarts=0)
    result = job.poll()
    assert result is not None
    assert result.returncodes == {"node0": 137, "node1": 137}

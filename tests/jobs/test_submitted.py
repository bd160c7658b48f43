"""What a submitted job makes of its end: values in place of queue and nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.jobs.described import Job
from pytest_mnode.jobs.slurm import files, submitted, traces
from pytest_mnode.jobs.slurm.following import Course
from pytest_mnode.jobs.slurm.submitted import SubmittedJob
from pytest_mnode.jobs.slurm.traces import Late, Traces
from pytest_mnode.launchers.slurm import JobState

NODES = ("node0", "node1")
WELL = files.Status(0, False, False)
COMPLETED = JobState(7, "x", "COMPLETED", nodes=NODES, restarts=0)


@pytest.fixture
def job(tmp_path: Path) -> SubmittedJob:
    """A job that was seen to run; of the queue only what is put there is known."""
    made = SubmittedJob.__new__(SubmittedJob)
    parts: dict[str, Any] = {
        "_events": [],
        "_requeue": 0,
        "_noted": set(),
        "_result": None,
        "_looked_at": -10.0,
        "_preempted": False,
        "_job": Job(["t.py"]),
        "_course": Course(1, NODES, 0),
        "_traces": Traces(tmp_path),
        "_losses": SimpleNamespace(look=lambda _: {}, lost=()),
        "_queued": SimpleNamespace(answers=lambda: True, number=7, state=COMPLETED),
        "_late": Late(),
    }
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def test_what_a_node_wrote_last_may_be_seen_late(
    job: SubmittedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's word that all tasks ended well comes before their files do."""
    monkeypatch.setattr(submitted, "LOOK_S", 0.0)
    files.write_status(tmp_path, "node0", 0, WELL)
    assert job.poll() is None
    assert job.poll() is None
    files.write_status(tmp_path, "node1", 0, WELL)
    result = job.poll()
    assert result is not None
    assert result.returncodes == {"node0": 0, "node1": 0}
    assert [event.what for event in job.events] == ["ended", "ended"]


def test_what_never_comes_is_not_waited_for_without_end(
    job: SubmittedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitted, "LOOK_S", 0.0)
    monkeypatch.setattr(traces, "LATE_S", 0.0)
    files.write_status(tmp_path, "node0", 0, WELL)
    result = job.poll()
    assert result is not None
    assert result.returncodes == {"node0": 0, "node1": 137}


def test_a_job_that_slurm_ended_wrote_nothing_more(job: SubmittedJob) -> None:
    job._queued.state = JobState(7, "x", "NODE_FAIL", nodes=NODES, restarts=0)
    result = job.poll()
    assert result is not None
    assert result.returncodes == {"node0": 137, "node1": 137}

"""The end of a submitted job, with values in place of queue and nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.errors import TimeLimitError
from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.launched import NFS_DELAY_S
from pytest_mnode.jobs.slurm import files, submitted
from pytest_mnode.jobs.slurm.nodes import Losses, Names
from pytest_mnode.jobs.slurm.queued import JobHistory
from pytest_mnode.jobs.slurm.submitted import SubmittedJob
from pytest_mnode.launchers.slurm import JobState, NodeState

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
    made.down, made.done = list[str](), list[str]()
    slurm: Any = SimpleNamespace(
        nodes=lambda names: [
            NodeState(name, "DOWN" if name in made.down else "IDLE") for name in names
        ],
        run=lambda *words: made.done.append(words[-1]),
    )
    names = Names({name: name for name in NODES})
    made._losses = Losses(slurm, names, pinned=True)
    made._queued = SimpleNamespace(
        answers=lambda: True,
        number=7,
        state=COMPLETED,
        cancel=lambda: made.done.append("cancelled"),
        look=lambda: made._queued.state,
        await_end=lambda lost: made.done.append(f"lost {lost}"),
    )
    made._kill = lambda on: made.done.append(f"killed on {' '.join(on)}")
    found: SubmittedJob = made
    return found


def state(name: str, restarts: int = 0, **given: Any) -> JobState:
    nodes = () if name == "PENDING" else NODES
    return JobState(7, "x", name, nodes=nodes, restarts=restarts, **given)


def seen(job: Any, *states: JobState) -> list[str]:
    """Events after the job was seen in each of these states."""
    for one in states:
        job._queued.state = one
        job.poll()
    return [f"{event.what} {event.requeue}: {event.detail}" for event in job.events]


RUNNING, AGAIN = state("RUNNING"), state("RUNNING", 1)


def test_what_slurm_requeues(job: Any) -> None:
    job._job, job._preempted = Job(["t.py"], requeues=1), True
    assert seen(job, RUNNING, state("PENDING", 1), AGAIN, state("FAILED", 1)) == [
        "requeued 1: preempted",
        "started 1: node0, node1",
    ]
    assert job.poll().returncodes == dict.fromkeys(NODES, 137)
    assert job.done == []


def test_a_loss_is_the_cause_of_its_own_requeue_alone(job: Any) -> None:
    """Slurm requeues it between two checks; the next start ends for another reason."""
    job._job = Job(["t.py"], requeues=1)
    seen(job, RUNNING)
    job.down.append("node1")
    seen(job, AGAIN)
    job.down.clear()
    assert seen(job, state("TIMEOUT", 1)) == [
        "node lost 0: Slurm says DOWN",
        "requeued 1: node1 is gone",
        "started 1: node0, node1",
        "gave up 1: Slurm ended it: TIMEOUT, after 1 requeues",
    ]


def test_the_output_of_slurm_is_beside_that_of_the_first_node(job: Any, tmp_path: Path) -> None:
    (tmp_path / files.OUTPUT).write_text("srun: error\n")
    assert [job.output(node) for node in NODES] == ["srun: error\n", ""]


def test_a_job_that_is_started_too_often_is_ended(job: Any) -> None:
    job._job = Job(["t.py"], requeues=1)
    assert seen(job, AGAIN, state("RUNNING", 2))[-1] == (
        "gave up 2: started again 2 times, 1 were allowed"
    )
    assert job.done == ["cancelled", "killed on node0 node1", "lost False"]


@pytest.mark.parametrize(
    ("back_within_s", "done"), [(60.0, ["ReqNodeList="]), (0.0, ["ReqNodeList=", "lost True"])]
)
def test_a_requeued_job_leaves_a_lost_node_or_waits_for_it(
    job: Any, back_within_s: float, done: list[str]
) -> None:
    job._job = Job(["t.py"], requeues=1, back_within_s=back_within_s)
    job.down.append("node1")
    events = seen(job, RUNNING, state("PENDING", 1), state("PENDING", 1))
    assert events[:2] == ["node lost 0: Slurm says DOWN", "requeued 1: node1 is gone"]
    assert [one for one in job.done if one != "cancelled"] == done
    assert events[2:] == (["gave up 1: node1 not back within 0 s"] if back_within_s == 0 else [])


def test_a_first_start_keeps_its_nodes(job: Any) -> None:
    job._history = JobHistory(0, NODES, 0)
    job.down.append("node1")
    assert seen(job, state("PENDING", reason="Resources")) == ["node lost 0: Slurm says DOWN"]
    assert job.done == []


@pytest.mark.parametrize(
    ("now", "ended", "where"),
    [
        (state("PENDING", reason="Resources"), (), r"job 7 waits in the queue \(Resources\)"),
        (None, (), "job 7 waits in the queue after"),
        (RUNNING, ("node0",), "the job still runs on node1 after"),
        (RUNNING, NODES, "the job still runs on node0, node1 after"),  # Slurm has not ended it
    ],
)
def test_a_job_that_is_not_over_is_somewhere(
    job: Any, tmp_path: Path, now: JobState | None, ended: tuple[str, ...], where: str
) -> None:
    for node in ended:
        files.write_status(tmp_path, node, 0, WELL)
    job._queued.state, job._queued.answers = now, lambda: False
    with pytest.raises(TimeLimitError, match=where):
        job.wait(0.0)


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
    files.write_status(tmp_path, "node0", 0, WELL)
    assert job.poll() is None
    missing_since = job._missing_since
    assert missing_since is not None
    monkeypatch.setattr("time.monotonic", lambda: missing_since + NFS_DELAY_S)
    result = job.poll()
    assert result is not None
    assert result.returncodes == {"node0": 0, "node1": 137}


def test_no_wait_for_files_of_a_job_that_slurm_ended(job: SubmittedJob) -> None:
    job._queued.state = JobState(7, "x", "NODE_FAIL", nodes=NODES, restarts=0)
    result = job.poll()
    assert result is not None
    assert result.returncodes == {"node0": 137, "node1": 137}

"""What is left of a job once it is closed, restarted or given up: nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode import processes
from pytest_mnode.backends.slurm import SlurmBackend
from pytest_mnode.errors import ClusterError, NodeLostError, TimeLimitError
from pytest_mnode.jobs import job_processes, running
from pytest_mnode.jobs.job import Decision, Job
from pytest_mnode.jobs.kubernetes import pod_job, pod_start
from pytest_mnode.jobs.kubernetes.pod_job import PodJob
from pytest_mnode.jobs.kubernetes.pod_start import NotPlaced, PodStart
from pytest_mnode.jobs.running import RunningJob
from pytest_mnode.jobs.slurm import queued
from pytest_mnode.jobs.slurm.nodes import Names
from pytest_mnode.jobs.slurm.queued import Queued
from pytest_mnode.jobs.slurm.sbatch import Request
from pytest_mnode.jobs.slurm.submitted import SubmittedJob
from pytest_mnode.launchers.kubernetes.api import ApiError
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.launchers.slurm import JobState
from tests.jobs.ranks import NAMES, QUICK, Here
from tests.waiting import soon, until

RANK = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hidden = subprocess.Popen(["sleep", "300"], start_new_session=True)
place = pathlib.Path(sys.argv[1])
name = f"{os.environ['RANK']}.{os.environ['MNODE_REQUEUE']}"
(place / f"{name}.new").write_text(f"{os.getpid()} {hidden.pid}")
(place / f"{name}.new").rename(place / f"{name}.pids")
time.sleep(300)
"""
"""It ignores SIGTERM, and has a child in a session of its own."""


@pytest.fixture
def here(tmp_path: Path) -> Here:
    (tmp_path / "scratch").mkdir()
    return Here(tmp_path / "scratch")


class Ranks:
    """A job of the plain launchers, with one stubborn rank per node."""

    def __init__(self, here: Here, directory: Path, nodes: int = 2) -> None:
        self.directory, self.here = directory, here
        (directory / "rank.py").write_text(RANK)
        argv = [str(directory / "rank.py"), str(directory)]
        self.job = Job(argv, nodes=nodes, requeues=1, env=QUICK, back_within_s=0.0)

    def start(self) -> RunningJob:
        made = RunningJob.start(Nodes(self.here, NAMES), self.job)
        until(lambda: len(self.pids()) == 4, "all ranks are up")
        return made

    def pids(self, requeue: int = 0) -> list[int]:
        files = self.directory.glob(f"*.{requeue}.pids")
        return [int(pid) for path in files for pid in path.read_text().split()]

    def gone(self, requeue: int = 0) -> bool:
        return all(map(processes.has_ended, self.pids(requeue)))


@pytest.fixture
def ranks(here: Here, tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(here, tmp_path)
    yield made
    for pid in (*made.pids(), *made.pids(1)):
        processes.kill(pid)


def test_a_job_ends_with_its_test(ranks: Ranks, here: Here) -> None:
    made = ranks.start()
    made.close()
    assert ranks.gone()
    assert list(here.scratch.iterdir()) == []


def test_a_job_that_starts_on_some_nodes_only_is_ended(ranks: Ranks, here: Here) -> None:
    here.gone = ("n1",)
    before = processes.children(os.getpid())
    with pytest.raises(NodeLostError, match="n1 is gone"):
        RunningJob.start(Nodes(here, NAMES), ranks.job)
    assert set(processes.children(os.getpid())) <= set(before)
    assert list(here.scratch.iterdir()) == []


def test_a_job_ends_on_all_nodes_of_its_starts(ranks: Ranks) -> None:
    made = ranks.start()
    made._nodes = NAMES[:1]  # it moved
    made.close()
    assert ranks.gone()


def test_a_preempted_job_that_ends_is_not_awaited_longer(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, left = ranks.start(), iter(([*NAMES], [NAMES[1]], [], []))
    monkeypatch.setattr(made, "_still_running", lambda: next(left))
    with soon():
        assert made.preempt(60.0) == []
    made.close()


def test_a_preempted_job_is_ended_after_its_time(ranks: Ranks) -> None:
    made = ranks.start()
    assert made.preempt(0.1) == list(NAMES)
    assert ranks.gone()
    made.close()


@pytest.mark.parametrize(
    ("decision", "starts"), [(Decision(nodes=NAMES, why="x"), 2), (Decision(why="x"), 1)]
)
def test_what_an_earlier_start_left_is_ended(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, decision: Decision, starts: int
) -> None:
    """Before the next start, and while there is none for lack of nodes."""
    made = ranks.start()
    os.kill(next(pid for pid in torchruns() if b"node-rank\0000" in cmdline(pid)), signal.SIGKILL)
    monkeypatch.setattr(running, "decide", lambda *_: decision)

    def started() -> int:
        return sum(event.what == "started" for event in made.events)

    until(lambda: made.poll() or started() == 2, "the end of a start is seen")
    assert ranks.gone()
    assert started() == starts
    made.close()


def test_a_new_start_knows_nothing_of_the_last(ranks: Ranks) -> None:
    made = ranks.start()
    made._waiting_since, made._preempted = 1.0, True
    made._requeue_on(NAMES, "x")
    with pytest.raises(TimeLimitError, match="the job still runs on n0, n1 after"):
        made.wait(0.0)
    assert not made._snapshot().preempted
    made.close()


def test_lost_nodes_are_asked_now_and_then(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    made, decides, calls = ranks.start(), Mock(return_value=Decision()), list[int]()
    monkeypatch.setattr(running, "decide", decides)
    for waiting_since, ago_s in ((None, 9.0), (0.0, 0.0), (0.0, 9.0)):
        made._waiting_since, made._asked_at = waiting_since, time.monotonic() - ago_s
        assert made.poll() is None
        calls.append(decides.call_count)
    assert calls == [0, 0, 1]
    made.close()


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def torchruns() -> list[int]:
    """Children of this process that run it."""
    below = processes.children(os.getpid())
    return [pid for pid in below if b"distributed.run" in cmdline(pid)]


def test_local_commands_end_if_their_nodes_do_not_answer(
    ranks: Ranks, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ranks.start()
    local = torchruns()
    assert len(local) == 2

    def silent(*_: object) -> None:
        raise ClusterError("n0: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(job_processes, "end", silent)
        patch.setattr(running, "_FOLLOW_S", 0.1)
        with pytest.raises(ClusterError, match="no answer"):
            made.close()
    assert all(map(processes.has_ended, local))
    assert list(here.scratch.iterdir()) == []


# Jobs in the queue of Slurm.


class Queue:
    """A job in a queue that answers. refuses: whether sbatch fails. stays: after scancel."""

    refuses = stays = False
    made: list[Queue]

    def __init__(self, slurm: Any) -> None:
        self.slurm, self.name = slurm, "mnode-x"
        self.number: int | None = None
        self.state: JobState | None = None
        self.done: list[object] = []
        Queue.made.append(self)

    def submit(self, *_: object) -> None:
        if Queue.refuses:
            raise ClusterError("no room")
        self.number = 7
        self.state = JobState(7, "x", "RUNNING", nodes=NAMES, restarts=0)

    def look(self) -> JobState | None:
        return self.state

    def answers(self) -> bool:
        return True

    def cancel(self) -> None:
        self.done.append("cancelled")

    def await_end(self, lost: bool) -> None:
        if Queue.stays:
            raise ClusterError("still RUNNING")
        self.done.append("waited")

    def close(self, done: bool) -> None:
        self.done.append(f"closed {done}")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A Slurm, and the nodes on which processes of a job were killed."""
    killed: list[str] = []
    monkeypatch.setattr(Queue, "made", [], raising=False)
    monkeypatch.setattr(Queue, "refuses", False)
    monkeypatch.setattr(job_processes, "living", lambda _, on: list(on))

    def end(_: object, on: list[str], __: str) -> tuple[dict[str, tuple[int, ...]], list[str]]:
        killed.extend(on)
        return {}, []

    monkeypatch.setattr(job_processes, "end", end)
    return SimpleNamespace(run=lambda *_: "", nodes=lambda *_: (), killed=killed)


def in_queue(here: Here, slurm: Any) -> SubmittedJob:
    request = Request("x", 2, "x", "/", begin_on=NAMES)
    names = Names({name: name for name in NAMES})
    job, queue = Job(["t.py"], nodes=2), Queue(slurm)
    return SubmittedJob.start(Nodes(here, NAMES), job, request, names, queue)  # type: ignore[arg-type]


def test_a_queued_job_ends_with_its_test(here: Here, slurm: SimpleNamespace) -> None:
    made = in_queue(here, slurm)
    made.close()
    assert Queue.made[0].done == ["cancelled", "waited", "closed True"]
    assert slurm.killed == list(NAMES)
    assert list(here.scratch.iterdir()) == []


def test_a_job_that_stays_in_the_queue_is_left_to_the_clean_up(
    here: Here, slurm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queue, "stays", True)
    made = in_queue(here, slurm)
    with pytest.raises(ClusterError, match="still RUNNING"):
        made.close()
    assert Queue.made[0].done == ["cancelled", "closed False"]
    assert list(here.scratch.iterdir()) == []


def test_a_refused_job_leaves_nothing(here: Here, slurm: SimpleNamespace) -> None:
    Queue.refuses = True
    with pytest.raises(ClusterError, match="no room"):
        in_queue(here, slurm)
    assert Queue.made[0].done == ["cancelled", "waited", "closed True"]
    assert list(here.scratch.iterdir()) == []


def test_a_queued_job_that_cannot_end_well_is_cancelled(
    here: Here, slurm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = in_queue(here, slurm)
    monkeypatch.setattr(queued, "never_starts", lambda _: "held")
    assert made.poll() is not None
    assert Queue.made[0].done == ["cancelled", "waited"]
    made.close()


def test_ranks_that_outlive_a_preemption_are_killed(here: Here, slurm: SimpleNamespace) -> None:
    made = in_queue(here, slurm)
    read: Any = SimpleNamespace(running=lambda *_: ["n1"], sigterms=lambda *_: {})
    made._read = read
    assert made.preempt(0.0) == ["n1"]
    assert slurm.killed == list(NAMES)
    slurm.killed.clear()
    left = iter((["n1"], [], []))
    read.running = lambda *_: next(left)
    with soon():
        assert made.preempt(60.0) == []
    assert slurm.killed == []
    made.close()


def test_the_end_of_a_job_in_the_queue_is_left_to_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[object] = []
    cleanup = SimpleNamespace(close=done.append)
    monkeypatch.setattr(queued, "Cleanup", lambda _: cleanup)
    left = SlurmBackend().leftovers("mnode-x")
    made = Queued(SimpleNamespace(cancel=done.append), Names({}), left)  # type: ignore[arg-type]
    made.cancel()
    assert done == [], "it was not submitted"
    made.number = 7
    made.cancel()
    made.close(True)
    assert done == [7, True]


# Jobs with pods of their own.


class Api:
    """The API server; with REFUSES it makes no object."""

    def __init__(self, *_: object) -> None: ...

    def path(self, *_: object) -> str:
        return "/jobs"

    def request(self, method: str, path: str, *_: object) -> None:
        ASKED.append(f"{method} {path}")
        if method == "POST" and REFUSES:
            raise ApiError(403, "no")


TEMPLATE: dict[str, object] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {"template": {"spec": {"containers": [{"name": "main"}]}}},
}
ASKED: list[str] = []
REFUSES: list[bool] = []


class JobPods:
    """Pods that have their nodes, and end at once."""

    closed: list[JobPods]

    def __init__(self, *_: object, **__: object) -> None: ...

    def by_node(self) -> dict[str, object]:
        return dict.fromkeys(NAMES)

    def statuses(self) -> dict[str, int]:
        return dict.fromkeys(NAMES, 0)

    def output(self, _: str) -> str:
        return ""

    def close(self) -> None:
        JobPods.closed.append(self)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    ASKED.clear()
    REFUSES.clear()
    monkeypatch.setattr(JobPods, "closed", [], raising=False)
    monkeypatch.setattr(pod_start, "Api", Api)
    monkeypatch.setattr(pod_start, "JobPods", JobPods)
    monkeypatch.setattr(pod_start, "check_logs", lambda _: None)


def pods(here: Here) -> PodStart:
    run: Any = SimpleNamespace(
        context="", namespace="", manifest=TEMPLATE, engine=None, queue=None, owner={}, packages={}
    )
    return PodStart(Nodes(here, NAMES), run, "x", NAMES, 1.0)


@pytest.mark.usefixtures("server")
def test_the_object_of_a_job_is_deleted(here: Here) -> None:
    made = pods(here)
    made.close()
    assert ASKED == ["POST /jobs", "DELETE /jobs/x"]
    assert len(JobPods.closed) == 1


@pytest.mark.usefixtures("server")
def test_a_refused_object_is_not_watched(here: Here) -> None:
    REFUSES.append(True)
    with pytest.raises(ApiError, match="no"):
        pods(here)
    assert len(JobPods.closed) == 1


class Start:
    """One start of a job with pods; with REFUSES, no node has room for them."""

    what = "Job x"

    def __init__(self, *given: Any) -> None:
        self.pods = JobPods()
        self.pods.statuses = dict  # type: ignore[method-assign]
        self.limits_s = [given[-1]]

    def await_placed(self) -> None:
        if REFUSES:
            raise NotPlaced("no room")

    def await_run(self, limit_s: float = 0.0) -> None:
        self.limits_s.append(limit_s)

    def addresses(self) -> dict[str, str]:
        return dict.fromkeys(NAMES, "127.0.0.1")

    def order(self, _: object) -> None: ...

    def close(self) -> None:
        ASKED.append("deleted")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("refuses", [False, True])
def test_pods_of_a_job_end_with_their_test(
    here: Here, slurm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    monkeypatch.setattr(pod_job, "PodStart", Start)
    run: Any = SimpleNamespace(packages={})
    job = Job(["t.py"], nodes=2)
    if refuses:
        REFUSES.append(True)
        with pytest.raises(NotPlaced):
            PodJob.start(Nodes(here, NAMES), job, run)
    else:
        made = PodJob.start(Nodes(here, NAMES), job, run)
        made.close()
        made.close()
    assert ASKED == ["deleted"]
    assert set(slurm.killed) == set(NAMES)


@pytest.mark.usefixtures("server", "slurm")
@pytest.mark.parametrize(("back_within_s", "placed_s"), [(5.0, 30.0), (600.0, 600.0)])
def test_pods_that_start_again_may_wait_for_the_job_that_took_their_nodes(
    here: Here, monkeypatch: pytest.MonkeyPatch, back_within_s: float, placed_s: float
) -> None:
    monkeypatch.setattr(pod_job, "PodStart", Start)
    run: Any = SimpleNamespace(packages={})
    job = Job(["t.py"], nodes=2, back_within_s=back_within_s)
    with contextlib.closing(PodJob.start(Nodes(here, NAMES), job, run)) as made:
        for requeue, limits_s in ((0, [30.0, 0.0]), (1, [placed_s, placed_s + 90.0])):
            made._requeue = requeue
            made._start_torchruns(NAMES)
            start: Any = made._pod_start
            assert start.limits_s == limits_s

"""Why a job ended before its kill or did not resume: reasons from its output."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.restart import run_files
from pytest_mnode.criteria.restart.history import History
from pytest_mnode.criteria.restart.kill_run import KillRun, _how_ended, _queued_s
from pytest_mnode.errors import ClusterError, TimeLimitError
from pytest_mnode.jobs import JobEvent, JobResult
from pytest_mnode.jobs.torchrun import last_line

ERROR = (
    "E1123 17:19:46.279000 12712 torch/distributed/elastic/multiprocessing/api.py:1002] failed "
    "(exitcode: 3) local_rank: 0 (pid: 13370) of binary: /usr/bin/python3\n"
)
TORCHRUN = f"""\
{ERROR}Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
    return f(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  host      : node0
  rank      : 0 (local_rank: 0)
  exitcode  : 3 (pid: 13370)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""  # noqa: W291
FULL = "OSError: [Errno 28] No space left on device\n"
MESSAGE = "train: /shared/3 has no file of rank 1\n"
OOM = "python3: Signal 9 (SIGKILL) received by PID 7\n"


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (TORCHRUN, ""),
        (f"a\n{ERROR}b\n\n{TORCHRUN}", "b"),
        (f"a\n{TORCHRUN}b\n{TORCHRUN}", "b"),
        (f"a\n{TORCHRUN}Traceback (most recent call last):\n  x\nKeyError: 7\n", "KeyError: 7"),
    ],
)
def test_the_last_line_shown_is_not_from_torchrun(output: str, last: str) -> None:
    assert last_line(output) == last


class Job:
    """A job of two nodes that ended with `outputs`, or still runs (None)."""

    nodes = ("node0", "node1")

    def __init__(self, *outputs: str, codes: Sequence[int] = (1, 1), events: Any = ()) -> None:
        self.events = events
        self.result = JobResult(
            dict(zip(self.nodes, codes, strict=True)), dict(zip(self.nodes, outputs, strict=True))
        ) if outputs else None  # fmt: skip

    def wait(self, limit_s: float) -> JobResult:
        if self.result is None:
            raise TimeLimitError("the job still runs")
        return self.result

    def kill(self, **_: Any) -> None:
        raise ClusterError("no rank 1 is running on node0, node1")


KILLED = (JobEvent(0.0, "signalled", 0, "node1"),)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (Job("", TORCHRUN + FULL + TORCHRUN), "node1: disk full"),
        (Job(MESSAGE + TORCHRUN, FULL), "node1: disk full"),
        (Job(f"{MESSAGE}{TORCHRUN}", TORCHRUN), MESSAGE.strip()),
        (Job(f"a\n{TORCHRUN}", f"bye\n{TORCHRUN}", codes=(0, 1)),
         "the last line on node1: 'bye'"),
        (Job(TORCHRUN, f"bye\n{TORCHRUN}"), "the last line on node1: 'bye'"),
        (Job(TORCHRUN, TORCHRUN), "it printed nothing"),
        (Job(f"a\n{OOM}", TORCHRUN), "node0: killed"),
        # That was the kill; its output is no reason for a later failure.
        (Job(f"{OOM}b\n{TORCHRUN}", TORCHRUN, events=KILLED), "the last line on node0: 'b'"),
    ],
)  # fmt: skip
def test_known_cause_or_message_or_last_line(job: Any, why: str) -> None:
    codes = ", ".join(f"{code} on {node}" for node, code in job.result.returncodes.items())
    assert _how_ended(job, job.result).startswith(f"torchrun ended with {codes}; {why}")


def test_a_job_that_ended_well_or_runs_has_no_reason() -> None:
    done: Any = Job(FULL, "a\n", codes=(0, 0))
    assert _how_ended(done, done.result) == "torchrun ended with 0 on node0, 0 on node1"
    runs: Any = Job()
    assert _how_ended(runs, None) == "the job still ran on node0, node1"


@pytest.mark.parametrize(
    ("job", "more"),
    [
        (Job(MESSAGE, ""), f"; torchrun ended with 1 on node0, 1 on node1; {MESSAGE.strip()}"),
        (Job(), ""),
    ],
)
def test_a_job_that_ends_before_its_kill(job: Any, more: str) -> None:
    made: Any = SimpleNamespace(plan=SimpleNamespace(ranks=2))
    report = KillRun._kill(made, job, "rank")
    assert report.missed == f"there was no kill: no rank 1 is running on node0, node1{more}"


def test_a_lost_node_is_switched_off() -> None:
    off: list[str] = []
    cluster = SimpleNamespace(power_off=off.append)
    made: Any = SimpleNamespace(plan=SimpleNamespace(victim="node1"), cluster=cluster)
    job: Any = Job()
    report = KillRun._kill(made, job, "node")
    assert (off, report.what, report.missed) == (["node1"], "power-off of node1", "")


@pytest.mark.parametrize(
    ("events", "queued_s"),
    [
        ([], 0),
        (["requeued"], math.inf),
        (["requeued", "started"], 6),
        (["requeued", "started", "requeued"], math.inf),
    ],
)
def test_how_long_a_job_was_queued(events: list[str], queued_s: float) -> None:
    before = [JobEvent(1.0, "started", 0), JobEvent(2.0, "requeued", 1)]
    later = [JobEvent(10.0 + 3 * i, what, 1) for i, what in enumerate(events, 1)]
    job: Any = SimpleNamespace(events=[*before, *later])
    assert _queued_s(job, 10.0) == queued_s


REFUSED = (
    "[E101 00:01:01.1 socket.cpp:1019] [c10d] The client socket has timed out after "
    "60000ms while trying to connect to (trainer-0, 23456).\n"
)


def _run(into: Path, monkeypatch: pytest.MonkeyPatch, await_steps: Callable[..., None]) -> KillRun:
    """A run of three kills that has ended; its job never wrote a record."""
    job = SimpleNamespace(
        nodes=("node0",), events=(), poll=lambda: None, output=lambda _: REFUSED, close=lambda: None
    )
    job.wait = Job().wait
    monkeypatch.setattr(run_files, "await_steps", await_steps)
    monkeypatch.setattr(run_files, "write_config", lambda *_: "config.json")
    monkeypatch.setattr(run_files, "read_history", lambda *_: History(()))
    plan: Any = SimpleNamespace(
        cut=lambda *_: None, job=lambda *_: None, observer_node="node1", ranks=2
    )
    cluster: Any = SimpleNamespace(launch=lambda _: job)
    promise: Any = None
    run = KillRun(["rank", "checkpoint", "node"], promise, plan, cluster, "", into)
    run.run()
    return run


def test_a_job_that_reaches_no_step_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kill would wait as long as the first, and the run takes over ten minutes."""
    waits: list[str] = []
    run = _run(tmp_path, monkeypatch, lambda *_, **__: waits.append("a wait"))
    assert waits == ["a wait"]
    assert list(run.reports) == ["rank", "checkpoint", "node"]
    for report in run.reports.values():
        assert "step 6 was not reached in start 1 of the run; waited 180 s; " in report.missed
        assert "trainer-0" in report.missed


@pytest.mark.parametrize(("restarted", "back"), [(False, None), (True, False)])
def test_a_job_that_waits_in_a_queue_may_come_back_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool, back: bool | None
) -> None:
    what = ("signalled", "requeued", "started")[: 2 + restarted]
    preempted = [JobEvent(time.time() + 60, one, 0, "node0") for one in what]
    job: Any = SimpleNamespace(events=[], poll=lambda: None, nodes=("node0",))
    job.preempt = lambda _: job.events.extend(preempted) or []
    seen = iter([True])
    monkeypatch.setattr(run_files, "await_steps", lambda *_, **__: next(seen, None))
    monkeypatch.setattr(run_files, "list_store", lambda *_: None)
    monkeypatch.setattr(run_files, "read_history", lambda *_: History(()))
    plan: Any = SimpleNamespace(observer_node="node0", ranks=2, ranks_after=lambda _: 2)
    promise: Any = SimpleNamespace(within_s=5.0, grace_s=1.0, node_loss="spare")
    run = KillRun(["preemption"], promise, plan, SimpleNamespace(), "", tmp_path)  # type: ignore[arg-type]
    report = run._kill_and_wait(job, "preemption", 0)
    assert report.came_back is back
    assert ("not started again within 10 s" in report.ended_how) is not restarted


def test_a_run_that_cannot_be_watched_is_not_taken_for_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def await_steps(*_: object, **__: object) -> None:
        raise ClusterError("node1: no answer")

    reports = _run(tmp_path, monkeypatch, await_steps).reports
    assert [one.stalled for one in reports.values()] == [False] * 3
    assert reports["rank"].missed.endswith("in start 1 of the run; node1: no answer")

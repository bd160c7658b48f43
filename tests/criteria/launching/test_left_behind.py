"""What is left of a submitted job once its submission is closed, or could not be made: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode.criteria.launching import direct, login, starting
from pytest_mnode.criteria.launching import kubernetes as pods
from pytest_mnode.criteria.launching.direct import DirectSubmission
from pytest_mnode.criteria.launching.kubernetes import PodSubmission
from pytest_mnode.criteria.launching.paths import Submitted
from pytest_mnode.criteria.launching.slurm import submission as sbatch
from pytest_mnode.criteria.launching.slurm.submission import SbatchSubmission, StepSubmission
from pytest_mnode.criteria.launching.styles import LaunchJob
from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.slurm.sbatch import Request
from pytest_mnode.processes import end_programs
from tests.programs import write_program
from tests.waiting import until

JOB = LaunchJob.model_validate(
    {"name": "a", "nodes": 2, "accelerators_per_node": 0, "style": "plain", "command": ["x"]}
).placed(2, 0)
DEAF = "trap '' TERM; echo up; while true; do sleep 0.1; done"
WORDY = "trap 'echo ended; exit' TERM; echo up; while true; do sleep 0.1; done"


class Nodes:
    """Starts shell scripts, given in place of plans, on this machine."""

    python = sys.executable
    allocation = 7
    fails_after = 99

    def __init__(self, scratch: Path) -> None:
        self.scratch = str(scratch)
        self.started: list[subprocess.Popen[Any]] = []

    def start(self, program: object, node: str, env: object, text: str, output: Path) -> Any:
        if len(self.started) == self.fails_after:
            raise ClusterError(f"{node} is gone")
        argv = ["sh", "-c", text]
        with output.open("ab") as log:
            self.started.append(subprocess.Popen(argv, stdout=log, start_new_session=True))
        return self.started[-1]

    def fabric_interface(self, node: str) -> None:
        return None

    def address(self, node: str) -> str:
        return "127.0.0.1"

    def free_port(self, node: str) -> int:
        if self.fails_after == 0:
            raise ClusterError(f"{node} is gone")
        return 29511

    def until_up(self, count: int) -> None:
        logs = Path(self.scratch).glob
        until(lambda: sum(one.read_text().endswith("up\n") for one in logs("*/*")) == count)

    def nothing_left(self) -> bool:
        assert all(one.poll() is not None for one in self.started)
        return not os.listdir(self.scratch)  # noqa: PTH208


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setattr(direct, "_END_S", 0.3)
    (tmp_path / "scratch").mkdir()
    made = Nodes(tmp_path / "scratch")
    yield made
    end_programs(made.started)


def logins(nodes: Any, script: str) -> DirectSubmission:
    return DirectSubmission(nodes, Submitted(("n0", "n1")), {"n0": script, "n1": script})


@pytest.mark.parametrize("script", [DEAF, WORDY])
def test_logins_that_miss_their_limit_are_ended(nodes: Nodes, script: str) -> None:
    made = logins(nodes, script)
    nodes.until_up(2)
    outcome = made.wait(0.0)
    assert nodes.nothing_left()
    assert outcome.codes == {"n0": None, "n1": None}
    assert ("ended" in outcome.output["n1"]) == (script == WORDY)


def test_logins_that_are_closed_are_ended(nodes: Nodes) -> None:
    made = logins(nodes, DEAF)
    nodes.until_up(2)
    made.close()
    assert nodes.nothing_left()
    assert {one.returncode for one in nodes.started} == {-signal.SIGKILL}


def test_logins_are_ended_if_one_cannot_be_started(nodes: Nodes) -> None:
    nodes.fails_after = 1
    with pytest.raises(ClusterError, match="n1 is gone"):
        logins(nodes, DEAF)
    assert len(nodes.started) == 1
    assert nodes.nothing_left()


class Queued:
    """A job in the queue of a Slurm that answers."""

    name, number, state, refuses = "mnode-x", 7, None, False

    def __init__(self) -> None:
        self.done: list[str] = []
        QUEUED.append(self)

    def submit(self, *_: object) -> None:
        if self.refuses:
            raise ClusterError("no room")

    def answers(self) -> bool:
        return True

    def cancel(self) -> None:
        self.done.append("cancelled")

    def await_end(self) -> None: ...

    def close(self, done: bool) -> None:
        self.done.append(f"closed {done}")


QUEUED: list[Queued] = []


@pytest.fixture
def script(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Callable[[], SbatchSubmission]:
    """Submits a batch script."""
    monkeypatch.setattr(sbatch, "_login", lambda _: {"PATH": os.environ["PATH"]})
    QUEUED.clear()
    request = Request(name="x", nodes=2, tasks_per_node=1, export="NONE", output="x", directory="/")
    names = SimpleNamespace(slurm={"n0": "n0", "n1": "n1"})

    def submit() -> SbatchSubmission:
        given: list[Any] = [nodes, JOB, request, names, Queued()]
        return SbatchSubmission(*given)

    return submit


@pytest.mark.parametrize("ends", ["wait", "close"])
def test_a_script_is_cancelled(
    script: Callable[[], SbatchSubmission], nodes: Nodes, ends: str
) -> None:
    made = script()
    made.wait(0.0) if ends == "wait" else made.close()
    assert QUEUED[0].done == ["cancelled", "closed True"]
    assert nodes.nothing_left()


def test_a_script_that_is_refused_leaves_nothing(
    script: Callable[[], SbatchSubmission], nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queued, "refuses", True)
    with pytest.raises(ClusterError, match="no room"):
        script()
    assert QUEUED[0].done == ["cancelled", "closed True"]
    assert nodes.nothing_left()


@pytest.fixture
def step(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], StepSubmission]:
    """Starts a step whose srun is this shell script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(sbatch, "_login", lambda _: {"PATH": os.environ["PATH"]})

    def started(srun: str) -> StepSubmission:
        for name, text in (("srun", srun), ("scontrol", "echo n0")):
            write_program(programs / name, f"#!/bin/sh\n{text}\n")
        given: list[Any] = [nodes, JOB, SimpleNamespace(slurm={"n0": "n0"}), 0, "full"]
        made = StepSubmission(*given)
        assert made._program is not None
        nodes.started.append(made._program)
        return made

    return started


def test_a_step_is_ended_before_its_output_is_read(
    nodes: Nodes, step: Callable[[str], StepSubmission]
) -> None:
    made = step(WORDY)
    nodes.until_up(1)
    assert "ended" in made.wait(0.0).output["n0"]
    assert nodes.nothing_left()


def test_a_step_that_is_closed_is_ended(
    nodes: Nodes, step: Callable[[str], StepSubmission]
) -> None:
    made = step(WORDY)
    nodes.until_up(1)
    made.close()
    assert nodes.nothing_left()


def test_a_step_that_cannot_be_started_leaves_nothing(
    nodes: Nodes, step: Callable[[str], StepSubmission]
) -> None:
    nodes.fails_after = 0
    with pytest.raises(ClusterError, match="n0 is gone") as error:
        step(WORDY)
    assert nodes.nothing_left()
    assert error  # its frames have the submission, whose directory would go with it


@pytest.mark.parametrize("ends", ["start", "wait", "close"])
def test_pods_of_a_job_are_deleted(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Those of an object whose pods never get an order."""
    start = Mock(what="Job x")
    start.pods.await_that.return_value = False
    start.pods.statuses.return_value = start.pods.by_node.return_value = {}
    start.pods.output.return_value = ""
    start.addresses.return_value = {"n0": "127.0.0.1", "n1": "127.0.0.1"}
    monkeypatch.setattr(pods, "PodStart", lambda *_: start)
    given: list[Any] = [nodes, SimpleNamespace(packages={}), JOB, ["n0", "n1"]]
    if ends == "start":
        start.await_placed.side_effect = ClusterError("no room")
        with pytest.raises(ClusterError, match="no room"):
            PodSubmission(*given)
    else:
        made = PodSubmission(*given)
        if ends == "wait":
            made.wait(0.0)
            start.close.assert_called_once_with()
        made.close()
    start.close.assert_called_once_with()


def test_a_submission_whose_wait_is_broken_off_is_closed() -> None:
    closed: list[bool] = []

    def cut(_: float) -> None:
        raise KeyboardInterrupt

    submission = SimpleNamespace(wait=cut, close=lambda: closed.append(True))
    path: Any = SimpleNamespace(submit=lambda *_: submission)
    with pytest.raises(KeyboardInterrupt):
        starting.start(path, JOB, ["n0", "n1"], "a", 1.0)
    assert closed == [True]


LOGIN = f"""
import importlib.util, os, time
found = importlib.util.spec_from_file_location("login", {login.__file__!r})
login = importlib.util.module_from_spec(found)
found.loader.exec_module(login)
login._FOLLOW_S = login._KILL_S = 0.2
children = []
for code in (1, 0):
    children.append(os.fork())
    if not children[-1]:
        time.sleep(0 if code else 60)
        os._exit(code)
print(login.wait_for(set(children)), flush=True)
kill, login.os.kill = os.kill, lambda *_: None
login.kill_descendants()
print("not awaited", flush=True)
kill(children[1], 9)
os._exit(0)
"""


def test_processes_beside_a_failed_one_are_not_awaited_for_long() -> None:
    argv = [sys.executable, "-S", "-c", LOGIN]
    assert subprocess.check_output(argv, timeout=40).split(b"\n")[:-1] == [b"[1]", b"not awaited"]

"""What a batch script's state in the queue means for its run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode.criteria.launching import sbatch as module
from pytest_mnode.criteria.launching.job_file import LaunchJob
from pytest_mnode.criteria.launching.paths import NotSubmittedError, Submitted
from pytest_mnode.criteria.launching.sbatch import Sbatch, SbatchSubmission, StepSubmission
from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.slurm.nodes import Names
from pytest_mnode.launchers.slurm import JobState, nodes_from_text
from pytest_mnode.processes import has_ended
from tests.programs import write_program
from tests.waiting import until

RUNS = JobState(7, "x", "RUNNING")


@pytest.mark.parametrize(
    ("answers", "state", "over"),
    [
        (False, None, False),  # nothing was ever heard of the job
        (False, RUNS, False),
        (True, RUNS, False),
        (True, JobState(7, "x", "FAILED"), True),
        (True, None, True),
    ],
)
def test_without_an_answer_of_slurm_the_wait_goes_on(
    answers: bool, state: JobState | None, over: bool
) -> None:
    submission = SbatchSubmission.__new__(SbatchSubmission)
    submission._queued = SimpleNamespace(answers=lambda: answers, state=state)  # type: ignore[assignment]
    assert submission._over() is over


def submission(files: Path, **texts: str) -> SbatchSubmission:
    """Two tasks on each of two nodes; one node has the same name as the start of the other."""
    page = {"name": "a", "nodes": 2, "accelerators_per_node": 0, "ranks_per_node": 2}
    made = SbatchSubmission.__new__(SbatchSubmission)
    made._job = LaunchJob.model_validate(page | {"command": ["x"], "style": "deepspeed"})
    made._files = files
    names = {"here": "gpu-1", "there": "gpu-1-2"}
    made._names = SimpleNamespace(slurm=names)  # type: ignore[assignment]
    made.submitted = SimpleNamespace(nodes=("here", "there"))  # type: ignore[assignment]
    for name, text in texts.items():
        (files / name.replace("_", "-")).write_text(text)
    return made


@pytest.mark.parametrize(("configured", "requested"), [("gpu:8", 8), ("(null)", 0)])
def test_a_script_without_room_becomes_a_step_with_the_gpus_that_slurm_has(
    configured: str, requested: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = nodes_from_text(f"NodeName=n1 State=IDLE Gres={configured}")
    held = JobState(7, "x", "RUNNING", nodes=("n1", "n2"))
    slurm = Mock(**{"nodes.return_value": there, "job.return_value": held})
    slurm.run.return_value = "JobId=7 Partition=gpu"
    why_not_submitted, step = Mock(return_value="full"), Mock()
    monkeypatch.setattr(module, "why_not_submitted", why_not_submitted)
    monkeypatch.setattr(module, "StepSubmission", step)
    Sbatch(Mock(slurm_names={"n1": "n1"}), 7, slurm).submit(GPU_JOB, ["n1"])
    [[request, _]] = [call.args for call in why_not_submitted.mock_calls]
    [[_, _, names, gpus_per_node, note]] = [call.args for call in step.mock_calls]
    assert request.gpus_per_node == gpus_per_node == requested
    assert dict(names.slurm) == {"n1": "n1"}
    assert note == "srun started it as a step of allocation 7: full"


GPU_JOB = LaunchJob.model_validate(
    {"name": "a", "nodes": 1, "accelerators_per_node": 8, "command": ["x"], "style": "torchrun"}
).placed(1, 8)


def a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, srun: str) -> SbatchSubmission:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", srun), ("scontrol", "echo n1")):
        write_program(programs / name, f"#!/bin/sh\n{text}\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "_login", lambda _: {"PATH": os.environ["PATH"]})
    monkeypatch.setenv("SLURM_NNODES", "9")
    cluster: Any = SimpleNamespace(
        allocation=7,
        scratch=str(tmp_path),
        python=sys.executable,
        free_port=lambda _: 29511,
        fabric_interface=lambda _: None,
    )
    return StepSubmission(cluster, GPU_JOB, Names({"host1": "n1"}), 8, "the queue is full")


def test_a_script_runs_as_a_step_on_the_nodes_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record"
    made = a_step(tmp_path, monkeypatch, f'env >{record}; echo "ARGV $*" >>{record}; exit 1')
    with pytest.raises(NotSubmittedError):
        made.wait(20.0)
    text = record.read_text()
    options = text.partition("ARGV ")[2]
    for word in ("--jobid=7", "--nodes=1", "--nodelist=n1", "--overlap", "--gres=gpu:8"):
        assert word in options.split()
    exports = [word for word in options.split() if word.startswith("--export=")]
    assert exports[-1] == "--export=HOME,LANG,PATH,USER,MASTER_ADDR,MASTER_PORT"
    assert "MNODE_CANARY=" in text
    for line in ("SLURM_JOB_ID=7", "SLURM_NNODES=1", "SLURM_JOB_NODELIST=n1", "MASTER_PORT=29511"):
        assert line in text.splitlines()
    made.close()
    assert not list(tmp_path.glob("launch-*"))


def test_a_step_that_slurm_does_not_start_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = a_step(tmp_path, monkeypatch, "echo 'srun: error: no room in job 7' >&2; exit 1")
    why = "^not submitted: the queue is full; srun: no room in job 7; let the run's allocation "
    remedy = r"leave room .*, or set criteria\.launch\.path: direct in the spec if users start"
    with pytest.raises(NotSubmittedError, match=why + remedy):
        made.wait(20.0)
    made.close()


def test_a_step_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = a_step(tmp_path, monkeypatch, "exec sleep 60")
    outcome = made.wait(0.5)
    assert outcome.codes == {"host1": None}
    assert made._program.poll() is not None  # type: ignore[attr-defined]


def test_output_is_separated_by_node(tmp_path: Path) -> None:
    output = {"out_gpu_1_0": "a", "out_gpu_1_10": "b", "out_gpu_1_2_11": "c", "out_gpu_1_2_9": "d"}
    made = submission(tmp_path, **output)
    (tmp_path / "slurm.out").write_text("!")
    assert (made._output("here"), made._output("there")) == ("ab!", "dc")


def test_exit_statuses_are_counted_by_node(tmp_path: Path) -> None:
    codes = {"code_gpu_1_0": "0", "code_gpu_1_1": "0", "code_gpu_1_2_2": "3", "code_gpu_1_2_3": ""}
    made = submission(tmp_path, **codes)
    assert (made._code("here", True), made._code("there", True)) == (0, 3)
    assert made._code("there", False) == 3  # the other task waits for it
    (tmp_path / "code-gpu-1-2-2").unlink()
    assert (made._code("there", False), made._code("there", True)) == (None, 137)


def waiting(files: Path, state: JobState) -> SbatchSubmission:
    made = submission(files)
    made.submitted = Submitted(("here", "there"))
    made._directory = SimpleNamespace(cleanup=lambda: None)  # type: ignore[assignment]
    made._queued = Mock(state=state, number=7)
    made._began = time.monotonic()
    return made


def test_a_held_script_is_not_waited_for(tmp_path: Path) -> None:
    held = JobState(7, "x", "PENDING", reason="user_env_retrieval_failed_requeued_held")
    made = waiting(tmp_path, held)
    outcome = made.wait(60)
    assert outcome.codes == {"here": None, "there": None}
    assert outcome.waits == f"job 7 waits in the queue: PENDING ({held.reason})"
    calls = [name for name, *_ in made._queued.mock_calls]  # type: ignore[attr-defined]
    assert [name for name in calls if name != "answers"] == ["cancel", "await_end", "close"]


def test_a_script_that_waits_for_room_waits_until_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(time, "sleep", looks.append)
    made = waiting(tmp_path, JobState(7, "x", "PENDING", reason="Resources"))
    assert made.wait(0.05).waits == "job 7 waits in the queue: PENDING (Resources)"
    assert len(looks) > 1
    assert waiting(tmp_path, RUNS).wait(0.0).waits == ""


def test_a_step_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP_END_S", 0.2)
    made = a_step(tmp_path, monkeypatch, f"trap '' TERM; echo $$ > {tmp_path}/up; exec sleep 60")
    until(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text())
    with pytest.raises(ClusterError, match=r"did not end its step within 0\.2 s"):
        made.close()
    assert has_ended(int((tmp_path / "up").read_text()))

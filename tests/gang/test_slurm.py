"""What the engine makes of Slurm's states and a spec's names, and how it ends what it left."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.gang import guarding
from pytest_mnode.gang.engine import Phase
from pytest_mnode.gang.slurm import options_of, partition_of, phase_of, record_of, script
from pytest_mnode.slurm import JobState

NODES = ("node0", "node1")


@pytest.mark.parametrize(
    ("state", "flags", "phase"),
    [
        ("PENDING", [], Phase.WAITING),
        ("REQUEUE_HOLD", [], Phase.WAITING),
        ("RUNNING", [], Phase.HOLDING),
        ("RUNNING", ["CONFIGURING"], Phase.HOLDING),
        ("SUSPENDED", [], Phase.HOLDING),
        ("COMPLETING", [], Phase.ENDING),
        ("COMPLETED", ["COMPLETING"], Phase.ENDING),
        ("PENDING", ["COMPLETING"], Phase.ENDING),
        ("COMPLETED", [], Phase.OVER),
        ("NODE_FAIL", [], Phase.OVER),
        ("CANCELLED", [], Phase.OVER),
    ],
)
def test_what_a_job_does_with_nodes(state: str, flags: list[str], phase: Phase) -> None:
    job = JobState(7, "x", state, frozenset(flags), nodes=NODES)
    assert phase_of(job) is phase
    held = NODES if phase in (Phase.HOLDING, Phase.ENDING) else ()
    assert record_of(job).nodes == held


def test_a_state_that_nothing_is_known_of() -> None:
    with pytest.raises(ClusterError, match="job 7 is DREAMING, which nothing is known of"):
        phase_of(JobState(7, "x", "DREAMING"))


def test_slurms_own_words_go_with_the_record() -> None:
    waits = record_of(JobState(7, "x", "PENDING", reason="Resources", restarts=2))
    assert (waits.job, waits.said, waits.life) == ("7", "PENDING (Resources)", 2)
    runs = record_of(JobState(7, "x", "RUNNING", reason=None, nodes=NODES))
    assert (runs.said, runs.life) == ("RUNNING", 0)


def test_names_of_the_spec_become_options() -> None:
    assert options_of({"partition": "gpu", "qos": "high"}) == ["--partition=gpu", "--qos=high"]
    with pytest.raises(UsageError) as caught:
        options_of({"queue": "x"})
    assert str(caught.value).startswith("scheduler.names: queue: accepted for slurm: partition, ")


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ([], None),
        (["--account=x"], None),
        (["--partition=gpu", "--account=x"], "gpu"),
        (["--partition", "gpu"], "gpu"),
        (["-p", "gpu", "-A", "x"], "gpu"),
        (["-pgpu"], "gpu"),
        (["-p"], None),
        # As sbatch has it: the spec's names come after what the command line says.
        (["--partition=gpu", "--partition=all"], "all"),
    ],
)
def test_the_partition_that_jobs_go_to(options: list[str], partition: str | None) -> None:
    assert partition_of(options) == partition


def test_what_is_submitted(tmp_path: Path) -> None:
    directory = tmp_path / "it's here"
    text = script("/usr/bin/python3", directory, 5.0)
    first, command = text.split("\n", 1)
    words = shlex.split(command)
    assert first == "#!/bin/sh"
    assert words[:3] == ["exec", "srun", "--ntasks-per-node=1"]
    assert words[-6:-4] == [str(directory), "5.000"]
    assert words[-4:] == ["SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_PROCID", "SLURMD_NODENAME"]
    compile(words[words.index("-c") + 1], "rank", "exec")


def start_guard(directory: Path, *command: str) -> subprocess.Popen[Any]:
    argv = [sys.executable, "-I", "-S", guarding.__file__, str(directory), *command]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)


def test_the_guard_acts_when_the_controller_is_gone(tmp_path: Path) -> None:
    directory, flag = tmp_path / "run", tmp_path / "flag"
    directory.mkdir()
    guard = start_guard(directory, "touch", str(flag))
    until = time.monotonic() + 20
    while not _ignores(guard.pid, signal.SIGTERM) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(guard.pid, signal.SIGTERM)
    time.sleep(0.3)
    assert guard.poll() is None
    assert not flag.exists()
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(20) == 0
    assert flag.exists()
    assert not directory.exists()


def _ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_guard_that_could_not_says_so(tmp_path: Path) -> None:
    guard = start_guard(tmp_path / "none", "false")
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(60) == 1

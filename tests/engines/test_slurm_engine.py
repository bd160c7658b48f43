"""The tests' real Slurm: our readers understand its output, and it leaves nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil

from pytest_mnode.launchers.slurm.jobs import SHORT, jobs_from_lines
from tests.engines.slurm import SlurmOnRack


def submit(slurm: SlurmOnRack, directory: Path, command: str, *options: str) -> int:
    """Submit a batch job; its number."""
    output = directory / "%j.out"
    done = slurm.run("sbatch", "--parsable", f"--output={output}", *options, f"--wrap={command}")
    return int(done.stdout)


def test_both_readers_agree_on_running_and_waiting_jobs(slurm: SlurmOnRack, tmp_path: Path) -> None:
    first = submit(slurm, tmp_path, "sleep 60", "--nodes=3", "--exclusive", "--job-name=a b")
    slurm.await_that(lambda: slurm.job(first).state == "RUNNING", 30, "the first job runs")
    second = submit(slurm, tmp_path, "sleep 60", "--nodes=2", "--exclusive")
    slurm.await_that(lambda: slurm.job(second).reason == "Resources", 30, "it waits for room")
    by_text = {job.job_id: job for job in slurm.jobs()}
    lines = slurm.run("squeue", "--all", "--states=all", "--noheader", SHORT).stdout
    by_lines = {job.job_id: job for job in jobs_from_lines(lines)}
    assert replace(by_text[first], gpus=None) == by_lines[first]
    assert len(by_lines[first].nodes) == 3
    assert by_lines[first].restarts == 0
    assert by_lines[first].name == "a b"
    assert by_lines[second].waits
    assert by_lines[second].nodes == ()
    assert by_text[second].nodes == ()
    assert by_text[second].reason == by_lines[second].reason
    slurm.run("scancel", str(first))
    slurm.await_that(lambda: slurm.job(second).runs, 30, "the second takes its place")
    assert slurm.job(first).state == "CANCELLED"


def of_it(directory: str | Path) -> list[str]:
    """Processes of the Slurm with this directory, on any of its nodes."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(directory) in process.environ().get("SLURM_CONF", ""):
                found.append(process.name())
    return found


OWNER = """
import sys, time
from tests.engines.slurm import SlurmOnRack
with SlurmOnRack(1) as slurm:
    slurm.run("sbatch", "--output=/dev/null", "--wrap=sleep 300")
    print(slurm.directory, flush=True)
    time.sleep(300)
"""


def test_a_slurm_whose_owner_is_killed_leaves_nothing(slurm: SlurmOnRack) -> None:
    path = os.pathsep.join(filter(None, sys.path))
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=Path(__file__).parents[2],
    )
    assert owner.stdout is not None
    directory = owner.stdout.readline().strip()
    assert Path(directory).is_dir()
    assert {"slurmctld", "slurmd", "munged"} <= set(of_it(directory))
    owner.kill()
    owner.communicate()
    slurm.await_that(
        lambda: not of_it(directory) and not Path(directory).exists(), 30, "all of it is gone"
    )

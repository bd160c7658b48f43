"""Files written by the programs of a submitted job on its nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.slurm import files
from pytest_mnode.jobs.slurm.on_node import is_requeued, step
from pytest_mnode.jobs.torchrun import Start

NODES = ("node0", "node1")
WELL, SIGTERM = files.Status(0, False, False), files.Status(143, False, True)


@pytest.mark.parametrize(
    ("statuses", "requeue", "allowed", "again"),
    [
        ([WELL, WELL], 0, 3, False),
        ([SIGTERM, SIGTERM], 0, 1, True),
        ([SIGTERM, SIGTERM], 1, 1, False),
        ([SIGTERM, None], 0, 1, True),
        ([files.Status(1, True, False), WELL], 0, 1, True),
        ([files.Status(1, False, False), WELL], 0, 1, False),
        ([files.Status(0, False, True), WELL], 0, 1, False),
        ([None, files.Status(1, False, False)], 0, 1, False),
    ],
)
def test_when_a_job_requeues_itself(
    statuses: list[files.Status | None], requeue: int, allowed: int, again: bool
) -> None:
    assert is_requeued(statuses, requeue, allowed) is again


def test_one_task_per_node_that_outlives_a_failed_one() -> None:
    how = (3, {"SLURM_CPUS_PER_TASK": "4"}, ["--container-image=a"])
    argv = list(step(*how, "python9", Path("p"), Path("q")))
    assert argv[:4] == ["srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1"]
    assert {"--cpus-per-task=4", "--kill-on-bad-exit=0", "--wait=0"} <= set(argv)
    assert argv[-7] == "--container-image=a"
    assert argv[-6:-2] == ["python9", "-m", "pytest_mnode.jobs.slurm.on_node", "task"]
    assert argv[-2:] == ["p", "q"]


def test_files_of_a_job_read_back(tmp_path: Path) -> None:
    words: list[Any] = [Path("t.py"), "a b"]
    job = Job(words, procs_per_node=2, env={"A": "1"}, restarts=1, requeues=2)
    plan = files.Plan("abc", job, {"node0": files.JobNode("n0.lab", "10.0.0.1", "fab0")}, ("-v",))
    assert files.Plan.read(plan.write(tmp_path)) == plan
    start = Start("abc", NODES, 1, "10.0.0.1", 4711)
    assert files.read_start(files.write_start(tmp_path, start)) == start
    assert files.read_status(tmp_path, "node0", 1) is None
    files.write_status(tmp_path, "node0", 1, SIGTERM)
    assert files.read_status(tmp_path, "node0", 1) == SIGTERM
    assert files.read_sigterm(tmp_path, "node0", 1) is None
    files.write_sigterm(tmp_path, "node0", 1, 42, 12.5)
    assert files.read_sigterm(tmp_path, "node0", 1) == (42, 12.5)
    assert json.loads((tmp_path / "plan.json").read_text())["job_id"] == "abc"
    assert not list(tmp_path.glob(".*"))


def test_reading_the_files_of_a_job(tmp_path: Path) -> None:
    read = files.JobFiles(tmp_path)
    assert read.running(NODES, 0) == ["node0", "node1"]
    files.write_status(tmp_path, "node0", 0, SIGTERM)
    files.write_sigterm(tmp_path, "node0", 0, 42, 12.5)
    assert (read.running(NODES, 0), read.sigterms(NODES, 0)) == (["node1"], {"node0": (42, 12.5)})
    assert read.codes(NODES, 0) == {"node0": 143, "node1": 137}
    assert (read.preempted(NODES, 0), read.preempted(NODES, 1)) == (True, False)
    for requeue, text in enumerate(["a\n", "b\n"]):
        files.log_of(tmp_path, "node0", requeue).write_text(text)
    (tmp_path / files.OUTPUT).write_text("srun: …\n")
    assert read.output("node0", 1, True) == "a\nb\nsrun: …\n"
    assert read.output("node0", 0, False) == "a\n"
    assert read.output("node9", 1, False) == ""


def test_missing_files_are_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An NFS client caches a failed lookup of a name for half a minute."""
    asked: list[str] = []
    read_text, there = Path.read_text, Path.exists

    def noted(path: Path, *args: Any, **options: Any) -> str:
        asked.append(path.name)
        return read_text(path, *args, **options)

    def looked(path: Path) -> bool:
        asked.append(path.name)
        return there(path)

    monkeypatch.setattr(Path, "read_text", noted)
    monkeypatch.setattr(Path, "exists", looked)
    read = files.JobFiles(tmp_path)
    for _ in range(2):
        assert read.running(NODES, 0) == list(NODES)
        assert read.sigterms(NODES, 0) == {}
        assert read.output("node0", 1, True) == ""
    assert asked == []
    files.write_status(tmp_path, "node0", 0, WELL)
    files.log_of(tmp_path, "node0", 0).write_text("a\n")
    assert read.running(NODES, 0) == ["node1"]
    assert read.output("node0", 1, True) == "a\n"
    assert asked == ["node0.0.status", "node0.0"]


def test_the_program_on_nodes_needs_neither_torch_nor_pytest() -> None:
    code = (
        "import sys, pytest_mnode.jobs.slurm.on_node\n"
        "print(*sorted({'torch', 'pytest', 'pydantic', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

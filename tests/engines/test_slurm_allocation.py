"""Allocations: found, requested, refused in one line, and always returned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.controller import PROGRAM, Controller
from tests.engines.slurm import SlurmOnRack, need_slurm


def test_a_surrounding_allocation_is_used_and_left_alone(
    slurm: SlurmOnRack, tmp_path: Path
) -> None:
    salloc = ["salloc", "--nodelist=node[0-2]", "--exclusive"]
    controller = Controller(slurm, tmp_path, 2, ([], salloc))
    assert controller.report["held"] is False
    assert [node[0] for node in controller.report["nodes"]] == ["node0", "node1"]
    [job] = slurm.queue()
    assert job.job_id == controller.report["job"]
    assert controller("launcher.close()") is None
    assert [job.state for job in slurm.queue()] == ["RUNNING"]
    controller.close()


INSIDE = ["salloc", "--nodelist=node[0-1]", "--exclusive", "--quiet"]


@pytest.mark.parametrize(
    ("nodes", "words", "message"),
    [
        (3, ([], INSIDE),
         "3 nodes requested, but allocation {job} has 2: node0, node1; missing: 1; allocate them "
         "with --nodes=3"),
        (2, (["-pgpu"], INSIDE),
         "UsageError: --mnode-slurm-args=-pgpu: this run is inside allocation {job}"),
        (2, (["--partition=gpu"], []), "ClusterError: slurm: 2 nodes not allocated: "),
        (1, ([], ["salloc", "--quiet", "--nodelist=node0", ":", "--nodelist=node1"]),
         "is a heterogeneous job of 2 components (group 0: node0; group 1: node1), and a run"),
    ],
    ids=["too few", "arguments inside", "no such partition", "components"],
)  # fmt: skip
def test_an_impossible_request_is_one_line(
    slurm: SlurmOnRack, tmp_path: Path, nodes: int, words: tuple[list[str], list[str]], message: str
) -> None:
    controller = Controller(slurm, tmp_path, nodes, words)
    controller.close()
    job = max(job.job_id for job in slurm.jobs())
    assert message.replace("{job}", str(job)) in controller.report["error"]
    assert "\n" not in controller.report["error"]
    assert slurm.queue() == []


def test_nodes_that_are_down_are_named_and_not_waited_for(
    slurm: SlurmOnRack, tmp_path: Path
) -> None:
    slurm.down("node2", "broken fan")
    controller = Controller(slurm, tmp_path, 4)
    controller.close()
    assert controller.report["error"] == (
        "ClusterError: slurm: 4 nodes requested: partition all has 3 usable of 4 nodes; "
        "missing: node2 (DOWN: broken fan)"
    )
    assert slurm.queue() == []


def test_a_pending_request_is_withdrawn(slurm: SlurmOnRack, tmp_path: Path) -> None:
    busy = slurm.start(
        "srun", "--nodes=4", "--exclusive", "sleep", "300", stderr=subprocess.DEVNULL
    )
    slurm.await_that(lambda: len(slurm.queue()) == 1, 30, "all nodes are busy")
    waiting = slurm.start(
        sys.executable, "-c", PROGRAM, "2", "[]", cwd=tmp_path, stdin=subprocess.PIPE
    )
    slurm.await_that(lambda: len(slurm.queue()) == 2, 30, "the request waits")
    waiting.kill()
    slurm.await_that(lambda: len(slurm.queue()) == 1, 30, "the request is withdrawn")
    busy.kill()
    waiting.communicate()
    busy.wait()


def test_steps_of_an_exclusive_allocation_have_its_gpus(tmp_path: Path) -> None:
    """The allocation holds them without a request, and Slurm gives a step only what it requests."""
    need_slurm()
    with SlurmOnRack(2, gpus=2) as slurm:
        inside = ["salloc", "--nodes=2", "--exclusive", "--quiet"]
        controller = Controller(slurm, tmp_path, 2, ([], inside))
        shown = 'run(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], 1)'
        assert controller(shown) == [0, "0,1\n", ""]
        controller('begin(["sleep", "60"], 1)')
        assert controller(shown) == [0, "0,1\n", ""]  # beside other steps
        controller.close()
        inside = ["salloc", "--nodes=2", "--gpus-per-node=1", "--quiet"]
        controller = Controller(slurm, tmp_path, 2, ([], inside))
        assert controller(shown) == [0, "0\n", ""]
        controller.close()

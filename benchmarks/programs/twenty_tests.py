"""Twenty tests on two nodes, for `benchmarks.kills`: in kept and in fresh worlds, with jobs."""

# ruff: noqa: ARG001  a test asks for a world, and need not use it
from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pytest_mnode import Cluster, Job, World

# A stand-in for torchrun: torch would be imported sixteen times, which takes most of the time.
QUICK = str(Path(__file__).parents[2] / "tests" / "jobs" / "quick")
JOB = str(Path(__file__).with_name("sleeping_job.py"))
# Every kind of process is there during the whole run, because rounds follow each other.
rounds = pytest.mark.parametrize("number", range(4), scope="module")


@rounds
@pytest.mark.parametrize("again", [False, True])
def test_sum(world: World, process_group: object, number: int, again: bool) -> None:
    for _ in range(5):
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == world.size
        time.sleep(0.05)


@rounds
@pytest.mark.mnode(reuse="fresh")
def test_fresh(world: World, process_group: object, number: int) -> None:
    dist.barrier()
    time.sleep(0.2)


@rounds
def test_job(cluster: Cluster, number: int) -> None:
    result = cluster.launch(Job([JOB], env={"PYTHONPATH": QUICK})).wait(60)
    assert result.ok, f"{result.returncodes} {result.output}"


@rounds
def test_commands(cluster: Cluster, number: int) -> None:
    for result in cluster.run(["sleep", "0.2"], timeout=60):
        assert result.ok, result

"""Which nodes of an allocation a run still has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.slurm import JobState, NodeState
from pytest_mnode.launchers.slurm.allocation import Granted
from pytest_mnode.launchers.slurm.allocation_state import lost, present, too_few_gpus

IDLE, DOWN = NodeState("n0", "ALLOCATED"), NodeState("n1", "DOWN", reason="Not responding")
STATES = {"n0": IDLE, "n1": DOWN, "n2": NodeState("n2", "ALLOCATED")}
NAMES = {"host0": "n0", "host2": "n2"}
RUNS = JobState(7, "x", "RUNNING", nodes=("n0", "n1", "n2"))


def test_takes_the_first_nodes_that_are_up() -> None:
    granted = Granted(7, ("n0", "n1", "n2"))
    assert present(granted, STATES, 1) == ("n0",)
    assert present(granted, STATES, 2) == ("n0", "n2")


def test_names_those_that_are_missing() -> None:
    with pytest.raises(ClusterError) as error:
        present(Granted(7, ("n0", "n1", "n9")), STATES, 3)
    assert str(error.value) == (
        "slurm: 3 nodes asked for, and allocation 7 has 1 that are up: n0; "
        "missing: n1 (DOWN: Not responding), n9 (unknown to Slurm)"
    )


def test_nothing_is_lost() -> None:
    assert lost(RUNS, 7, STATES, NAMES) == {}
    silent = STATES | {"n2": NodeState("n2", "ALLOCATED", frozenset({"NOT_RESPONDING"}))}
    assert lost(RUNS, 7, silent, NAMES) == {}


def test_a_node_that_slurm_gave_up() -> None:
    names = NAMES | {"host1": "n1"}
    assert lost(RUNS, 7, STATES, names) == {"host1": "Slurm says DOWN: Not responding"}


def test_a_node_that_was_taken_out_of_the_allocation() -> None:
    job = JobState(7, "x", "RUNNING", nodes=("n0", "n1"))
    assert lost(job, 7, STATES, NAMES) == {"host2": "Slurm took it out of allocation 7"}


@pytest.mark.parametrize(
    ("job", "how"),
    [
        (None, "it is unknown to Slurm"),
        (JobState(7, "x", "TIMEOUT"), "TIMEOUT"),
        (JobState(7, "x", "COMPLETING", reason="TimeLimit"), "COMPLETING (TimeLimit)"),
        (JobState(7, "x", "COMPLETING"), "COMPLETING"),
        (JobState(7, "x", "NODE_FAIL"), "NODE_FAIL"),
    ],
)
def test_an_allocation_that_ended(job: JobState | None, how: str) -> None:
    why = f"allocation 7 ended: {how}"
    assert lost(job, 7, STATES, NAMES) == {"host0": why, "host2": why}


GPU_NODES = tuple(NodeState(name, "MIXED", gpus=8, counts_gpus=True) for name in ("n0", "n1"))


def test_fewer_gpus_than_the_spec_promises() -> None:
    job = JobState(7, "x", "RUNNING", nodes=("n0", "n1"), gpus=8)
    assert too_few_gpus(job, GPU_NODES, 8) == (
        "slurm: allocation 7 has 8 GPUs on 2 nodes, and the spec promises 8 per node; "
        "ask for them with --gpus-per-node=8"
    )
    assert too_few_gpus(job, GPU_NODES, 4) is None


def test_nodes_of_the_allocation_that_the_run_does_not_use_may_have_fewer_gpus() -> None:
    job = JobState(7, "x", "RUNNING", nodes=("cpu0", "n0", "n1"), gpus=16)
    cpu, small = NodeState("cpu0", "MIXED"), NodeState("cpu0", "MIXED", gpus=4)
    assert too_few_gpus(job, GPU_NODES, 8, [cpu]) is None
    assert too_few_gpus(replace(job, gpus=20), GPU_NODES, 8, [small]) is None
    told = too_few_gpus(job, GPU_NODES, 8, [small])
    assert told is not None
    assert told.startswith("slurm: allocation 7 has 16 GPUs on 3 nodes, and the spec promises 8")
    # Half of what each has is half of what the run needs, wherever it runs.
    third = replace(GPU_NODES[0], name="cpu0")
    assert too_few_gpus(job, GPU_NODES, 8, [third]) is not None


def test_gpus_that_slurm_does_not_count_are_not_missed() -> None:
    none = JobState(7, "x", "RUNNING", nodes=("n0", "n1"))
    assert too_few_gpus(none, (IDLE,), 8) is None
    # As without AccountingStorageTRES=gres/gpu: the nodes have them, no job is said to.
    uncounted = [replace(node, counts_gpus=False) for node in GPU_NODES]
    assert too_few_gpus(none, uncounted, 8) is None
    assert too_few_gpus(none, [GPU_NODES[0], uncounted[1]], 8) is None
    assert too_few_gpus(None, GPU_NODES, 8) is None


def test_a_job_that_was_given_none_of_the_gpus_that_are_counted() -> None:
    told = too_few_gpus(JobState(7, "x", "RUNNING", nodes=("n0", "n1")), GPU_NODES, 8)
    assert told is not None
    assert told.startswith("slurm: allocation 7 has 0 GPUs on 2 nodes, and the spec promises 8")

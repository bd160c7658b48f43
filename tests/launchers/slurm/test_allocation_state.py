"""Nodes of an allocation that a run can still use, and detection of losses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.slurm import JobState, NodeState, Slurm, SlurmError
from pytest_mnode.launchers.slurm import allocation_state as module
from pytest_mnode.launchers.slurm.allocation import Granted
from pytest_mnode.launchers.slurm.allocation_state import Watch, lost, present, too_few_gpus
from tests.programs import write_program
from tests.waiting import until

IDLE, DOWN = NodeState("n0", "ALLOCATED"), NodeState("n1", "DOWN", reason="Not responding")
STATES = {"n0": IDLE, "n1": DOWN, "n2": NodeState("n2", "ALLOCATED")}
NAMES = {"host0": "n0", "host2": "n2"}
RUNS = JobState(7, "x", "RUNNING", nodes=("n0", "n1", "n2"))
OF_TWO = replace(RUNS, nodes=("n0", "n1"))


def test_the_first_nodes_that_are_up_are_used() -> None:
    granted = Granted(7, ("n0", "n1", "n2"))
    assert present(granted, STATES, 1) == ("n0",)
    assert present(granted, STATES, 2) == ("n0", "n2")


def test_nodes_that_slurm_hides_are_used_as_they_were_allocated() -> None:
    assert present(Granted(7, ("n0", "n1", "n2")), None, 2) == ("n0", "n1")


def test_a_watch_of_hidden_nodes_looks_at_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = "echo 'slurm_load_node error: Access/permission denied' >&2; exit 1"
    job = "echo JobId=7 JobName=x JobState=RUNNING 'NodeList=n[0-1]'"
    script = f'#!/bin/sh\ncase "$*" in *node*) {denied};; *) {job};; esac\n'
    write_program(tmp_path / "scontrol", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch = Watch(Slurm(), 7, lambda *_: None, lambda: None)
    watch._names = NAMES
    assert watch._found() == {"host2": "Slurm removed it from allocation 7"}


def test_missing_nodes_are_named() -> None:
    with pytest.raises(ClusterError) as error:
        present(Granted(7, ("n0", "n1", "n9")), STATES, 3)
    assert str(error.value).endswith(
        "allocation 7 has 1 up: n0; missing: n1 (DOWN: Not responding), n9 (unknown to Slurm)"
    )


def test_only_nodes_that_slurm_gave_up_are_lost() -> None:
    assert lost(RUNS, 7, STATES, NAMES) == {}
    silent = STATES | {"n2": NodeState("n2", "ALLOCATED", frozenset({"NOT_RESPONDING"}))}
    assert lost(RUNS, 7, silent, NAMES) == {}
    names = NAMES | {"host1": "n1"}
    assert lost(RUNS, 7, STATES, names) == {"host1": "Slurm says DOWN: Not responding"}
    assert lost(OF_TWO, 7, STATES, NAMES) == {"host2": "Slurm removed it from allocation 7"}


@pytest.mark.parametrize(
    ("job", "how"),
    [
        (None, "it is unknown to Slurm"),
        (JobState(7, "x", "TIMEOUT"), "TIMEOUT"),
        (JobState(7, "x", "COMPLETING", reason="TimeLimit"), "COMPLETING (TimeLimit)"),
        (JobState(7, "x", "STAGE_OUT"), "STAGE_OUT"),
        (JobState(7, "x", "NODE_FAIL"), "NODE_FAIL"),
    ],
)
def test_an_allocation_that_ended(job: JobState | None, how: str) -> None:
    why = f"allocation 7 ended: {how}"
    assert lost(job, 7, STATES, NAMES) == {"host0": why, "host2": why}


GPU_NODES = tuple(NodeState(name, "MIXED", gpus=8, counts_gpus=True) for name in ("n0", "n1"))


@pytest.mark.parametrize("gpus", [8, None])
def test_fewer_gpus_than_the_spec_promises(gpus: int | None) -> None:
    job = replace(OF_TWO, gpus=gpus)
    assert too_few_gpus(job, GPU_NODES, 8) == (
        f"slurm: allocation 7 has {gpus or 0} GPUs on 2 nodes, but the spec promises 8 per node; "
        "request them with --gpus-per-node=8"
    )
    assert too_few_gpus(replace(job, gpus=8), GPU_NODES, 4) is None


def test_nodes_of_the_allocation_that_the_run_does_not_use_may_have_fewer_gpus() -> None:
    job = JobState(7, "x", "RUNNING", nodes=("cpu0", "n0", "n1"), gpus=16)
    cpu, small = NodeState("cpu0", "MIXED"), NodeState("cpu0", "MIXED", gpus=4)
    assert too_few_gpus(job, GPU_NODES, 8, [cpu]) is None
    assert too_few_gpus(replace(job, gpus=20), GPU_NODES, 8, [small]) is None
    assert "has 16 GPUs on 3 nodes" in str(too_few_gpus(job, GPU_NODES, 8, [small]))
    # Half of each node is half of what the run needs, on any nodes.
    third = replace(GPU_NODES[0], name="cpu0")
    assert too_few_gpus(job, GPU_NODES, 8, [third]) is not None


def test_gpus_that_slurm_does_not_account_for_are_not_missing() -> None:
    assert too_few_gpus(OF_TWO, (IDLE,), 8) is None
    # Without AccountingStorageTRES=gres/gpu nodes have GPUs, but jobs do not show them.
    uncounted = [replace(node, counts_gpus=False) for node in GPU_NODES]
    assert too_few_gpus(OF_TWO, uncounted, 8) is None
    assert too_few_gpus(OF_TWO, [GPU_NODES[0], uncounted[1]], 8) is None
    assert too_few_gpus(None, GPU_NODES, 8) is None


BOTH = {"host0": "n0", "host1": "n1"}


class AnsweringSlurm(Slurm):
    """A Slurm that answers with given values, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.answer: JobState | None = OF_TWO
        self.states = {name: NodeState(name, "ALLOCATED") for name in BOTH.values()}
        self.silent = False

    def job(self, job_id: int) -> JobState | None:
        self.asked += 1
        if self.silent:
            raise SlurmError("scontrol", None, "no answer in 20 s")
        return self.answer

    def nodes(self, names: object = ()) -> tuple[NodeState, ...]:
        return tuple(self.states.values())

    def await_looks(self) -> None:
        before = self.asked
        until(lambda: self.asked > before + 3)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> AnsweringSlurm:
    monkeypatch.setattr(module, "POLL_NODES_S", 0.01)
    return AnsweringSlurm()


Lost = dict[str, str]


@pytest.fixture
def losses() -> Lost:
    return {}


@pytest.fixture
def watch(slurm: AnsweringSlurm, losses: Lost) -> Iterator[Watch]:
    watch = Watch(slurm, 7, losses.__setitem__, lambda: None)
    watch.start(BOTH)
    yield watch
    watch.close()


@pytest.mark.usefixtures("watch")
def test_a_loss_is_reported(slurm: AnsweringSlurm, losses: Lost) -> None:
    slurm.await_looks()
    assert losses == {}
    slurm.states["n1"] = NodeState("n1", "DOWN", reason="Not responding")
    until(lambda: losses)
    assert losses == {"host1": "Slurm says DOWN: Not responding"}


@pytest.mark.usefixtures("watch")
def test_a_silent_slurm_reports_no_loss(slurm: AnsweringSlurm, losses: Lost) -> None:
    slurm.silent = True
    slurm.await_looks()
    assert losses == {}
    slurm.silent, slurm.answer = False, None
    until(lambda: len(losses) == 2)
    assert losses["host0"] == "allocation 7 ended: it is unknown to Slurm"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (JobState(7, "x", "TIMEOUT", reason="TimeLimit"), "TIMEOUT (TimeLimit)"),
        (JobState(7, "x", "COMPLETING", reason="TimeLimit"), "COMPLETING (TimeLimit)"),
        (JobState(7, "x", "COMPLETING"), "COMPLETING"),
        (None, "it is unknown to Slurm"),
    ],
)
def test_the_reason_of_an_ended_allocation_comes_from_slurm(
    slurm: AnsweringSlurm, watch: Watch, answer: JobState | None, why: str
) -> None:
    slurm.answer = answer
    watch._names = BOTH
    assert watch._found() == dict.fromkeys(BOTH, f"allocation 7 ended: {why}")

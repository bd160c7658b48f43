"""Mapping of Slurm's states and a spec's names, and cancelling of leftovers."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.gang.engine import Phase
from pytest_mnode.gang.slurm import options_of, others_of, phase_of, record_of, script
from pytest_mnode.gang.slurm_options import is_free
from pytest_mnode.launchers.slurm import JobState, NodeState

NODES = ("node0", "node1")


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", Phase.WAITING),
        ("REQUEUE_HOLD", Phase.WAITING),
        ("RUNNING", Phase.HOLDING),
        ("CONFIGURING", Phase.HOLDING),
        ("SUSPENDED", Phase.HOLDING),
        ("COMPLETING", Phase.ENDING),
        ("STAGE_OUT", Phase.ENDING),
        ("COMPLETED", Phase.OVER),
        ("NODE_FAIL", Phase.OVER),
        ("CANCELLED", Phase.OVER),
    ],
)
def test_phases_of_jobs(state: str, phase: Phase) -> None:
    job = JobState(7, "x", state, nodes=NODES)
    assert phase_of(job) is phase
    held = NODES if phase in (Phase.HOLDING, Phase.ENDING) else ()
    assert record_of(job).nodes == held


def test_an_unknown_state() -> None:
    with pytest.raises(ClusterError, match="job 7 is in the unknown state DREAMING"):
        phase_of(JobState(7, "x", "DREAMING"))


def test_slurm_states_are_kept_in_the_record() -> None:
    waits = record_of(JobState(7, "x", "PENDING", reason="Resources", restarts=2))
    assert (waits.job, waits.status, waits.restarts) == ("7", "PENDING (Resources)", 2)
    runs = record_of(JobState(7, "x", "RUNNING", reason=None, nodes=NODES))
    assert (runs.status, runs.restarts) == ("RUNNING", 0)


def test_names_of_the_spec_become_options() -> None:
    assert options_of({"partition": "gpu", "qos": "high"}) == ["--partition=gpu", "--qos=high"]


def test_the_batch_script(tmp_path: Path) -> None:
    directory = tmp_path / "it's here"
    text = script("/usr/bin/python3", directory, 5.0)
    first, command = text.split("\n", 1)
    words = shlex.split(command)
    assert first == "#!/bin/sh"
    assert words[:3] == ["exec", "srun", "--ntasks-per-node=1"]
    assert words[-6:-4] == [str(directory), "5.000"]
    assert words[-4:] == ["SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_PROCID", "SLURMD_NODENAME"]
    compile(words[words.index("-c") + 1], "rank", "exec")


def test_a_failure_has_the_words_of_slurm() -> None:
    def failed(state: str) -> bool:
        return record_of(JobState(7, "x", state)).failed

    assert [failed(s) for s in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY")] == [True] * 3
    assert not any(failed(s) for s in ("COMPLETED", "CANCELLED", "NODE_FAIL", "RUNNING"))


def test_other_users_of_the_nodes() -> None:
    jobs = [
        JobState(7, "ours", "RUNNING", nodes=("n0",)),
        JobState(8, "theirs", "RUNNING", nodes=("n1", "n8"), user="bob"),
        JobState(9, "theirs", "COMPLETED", nodes=("n2",), user="bob"),
        JobState(10, "theirs", "PENDING", user="bob"),
    ]
    there = [
        NodeState("n2", "IDLE", frozenset({"DRAIN"}), reason="fan"),
        NodeState("n3", "IDLE", frozenset({"DRAIN"}), reason="Kill task failed"),
        NodeState("n4", "DOWN", frozenset({"NOT_RESPONDING"}), reason="Not responding"),
        NodeState("n5", "IDLE", frozenset({"NOT_RESPONDING"})),
        NodeState("n6", "IDLE", frozenset({"PLANNED"})),
        NodeState("n7", "IDLE", frozenset({"BLOCKED"})),
    ]
    found = others_of(tuple(f"n{n}" for n in range(8)), jobs, there, "ours")
    assert found == {
        "n1": "job 8 of bob",
        "n2": "IDLE+DRAIN: fan",
        "n4": "DOWN+NOT_RESPONDING: Not responding",
        "n5": "IDLE+NOT_RESPONDING",
        "n7": "IDLE+BLOCKED",
    }


def test_a_node_that_another_jobs_topology_blocks_is_not_free() -> None:
    assert is_free(NodeState("n0", "IDLE", cpus_allocated=0))
    assert not is_free(NodeState("n0", "IDLE", frozenset({"BLOCKED"}), cpus_allocated=0))

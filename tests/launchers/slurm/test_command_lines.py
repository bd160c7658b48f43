"""Command lines of salloc and srun."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.node_env import node_env
from pytest_mnode.launchers.slurm import JobState, NodeState
from pytest_mnode.launchers.slurm.command_lines import (
    gpus_option,
    hopeless,
    on_nodes,
    queue_limit_s,
    salloc,
    step_command,
)

GPUS = (NodeState("login", "IDLE"), NodeState("n0", "IDLE", gpus=8))


def test_whole_nodes_are_requested_and_user_options_come_last() -> None:
    assert salloc("x", 4, ["--partition=gpu"], ["--gpus-per-node=8"]) == [
        *("salloc", "--no-shell", "--job-name=x"),
        *("--nodes=4", "--exclusive", "--no-kill", "--no-bell"),
        *("--wait-all-nodes=1", "--mem=0", "--gpus-per-node=8", "--partition=gpu"),
        "--job-name=x",
    ]


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        (["--mem=64G"], False),
        (["--mem-per-cpu=4G"], False),
        (["--mem-per-gpu=80G"], False),
        (["--exclusive"], True),
        (["--exclusive=user", "--cpus-per-task=8"], False),  # other jobs need memory too
        (["--oversubscribe"], False),
        (["--account=mem"], True),
    ],
)
def test_whole_nodes_have_all_their_memory(arguments: list[str], whole: bool) -> None:
    assert ("--mem=0" in salloc("x", 4, arguments)) is whole


def test_components_of_a_heterogeneous_job_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^--mnode-slurm-args: `:` separates the components"):
        salloc("x", 4, ["--nodes=1", ":", "--nodes=1"])


def test_a_step_requests_gpus_that_the_allocation_holds_without_a_request() -> None:
    assert "--gres=gpu:4" in step_command(7, "n0", ["true"], 4)
    assert not [word for word in step_command(7, "n0", ["true"]) if word.startswith("--gres")]


def test_a_users_options_of_a_step_come_last() -> None:
    command = step_command(7, "n0", ["true"], 4, ["--container-image=train.sqsh", "--mem=8G"])
    assert command[-4:] == ["--container-image=train.sqsh", "--mem=8G", "--", "true"]


def test_free_nodes_are_requested_by_name_without_waiting() -> None:
    assert on_nodes(["-w", "n[0-9]"], ["n3", "n1"]) == [
        *("--immediate=60", "-w", "n[0-9]", "--nodelist=n[1,3]"),
    ]
    assert on_nodes(["--immediate=5"], []) == ["--immediate=5"]
    assert queue_limit_s(on_nodes(["--immediate=5"], ["n1"])) == 15.0


def test_names_with_text_after_their_number_are_not_written_as_ranges() -> None:
    assert on_nodes([], ["n1-ib", "n2-ib", "n3", "n4"])[-1] == "--nodelist=n1-ib,n2-ib,n[3-4]"


def test_gpus_are_requested_if_slurm_counts_them() -> None:
    assert gpus_option(8, ["--partition=gpu"], GPUS) == ["--gpus-per-node=8"]
    assert gpus_option(8, [], None) == ["--gpus-per-node=8"]
    assert gpus_option(8, [], GPUS[:1]) == []
    assert gpus_option(0, [], GPUS) == []
    for word in ("--gres=gpu:4", "--gpus=32", "-G32"):
        assert gpus_option(8, [word], GPUS) == []


def test_limit_for_a_pending_request() -> None:
    assert queue_limit_s([]) == 3600
    assert queue_limit_s(["--immediate=60", "-p", "gpu"]) == 70
    assert queue_limit_s(["-I600"]) == 610


@pytest.mark.parametrize(
    ("job", "missing"),
    [
        ({}, "partition gpu has 1 usable of 2 nodes; missing: n1 (DOWN)"),
        ({"partition": "gpu,all"}, None),
        ({"partition": None}, None),
        ({"reservation": "maint_1"}, None),
        ({"state": "CONFIGURING"}, None),
        ({"state": "RUNNING"}, None),
    ],
)
def test_a_request_is_hopeless_only_while_it_is_pending(
    job: dict[str, Any], missing: str | None
) -> None:
    nodes = [
        NodeState("n0", "IDLE", partitions=("gpu",)),
        NodeState("n1", "DOWN", partitions=("gpu",)),
        NodeState("n2", "IDLE", partitions=("all",)),
    ]
    waits = JobState(7, "x", "PENDING", partition="gpu")
    assert hopeless(replace(waits, **job), nodes, 2) == missing
    assert hopeless(None, nodes, 2) is None


def test_a_step_gets_the_whole_node_and_shares_it() -> None:
    command = step_command(7, "n1", ["python", "-c", "x"])
    step = {"--jobid=7", "--nodelist=n1", "--nodes=1", "--ntasks=1", "--overlap", "--mem=0"}
    assert step <= set(command)
    assert command[0] == "srun"
    assert command[-4:] == ["--", "python", "-c", "x"]


def test_options_of_a_job_script_limit_no_step() -> None:
    """Such variables would limit the step to a part of the node, or change its streams."""
    of_the_job = ("SLURM_CPUS_PER_TASK", "SLURM_EXACT", "SLURM_LABELIO", "SRUN_CPUS_PER_TASK")
    environ = {**dict.fromkeys(of_the_job, "1"), "SLURM_CONF": "/c"}
    assert node_env(environ) == {"SLURM_CONF": "/c"}

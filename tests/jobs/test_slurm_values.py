"""Submitted jobs as values: requests, queue states, files, requeues."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.slurm.nodes import Names, names_of
from pytest_mnode.jobs.slurm.queued import (
    Change,
    JobHistory,
    changes,
    never_starts,
    why_over,
    why_requeued,
)
from pytest_mnode.jobs.slurm.sbatch import (
    Request,
    Site,
    no_room,
    request_of,
    script,
    site_of,
    submitting,
)
from pytest_mnode.launchers.slurm import JobState, NodeState

NODES = ("node0", "node1")


def _state(state: str, **given: Any) -> JobState:
    return JobState(7, "mnode-1", state, **given)


def _request(**given: Any) -> Request:
    return Request("mnode-1", 2, output="/shared/slurm.out", directory="/home/u", **given)


def test_options_of_sbatch() -> None:
    assert _request().options() == [
        *("--job-name=mnode-1", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1"),
        *("--output=/shared/slurm.out", "--open-mode=append", "--chdir=/home/u", "--no-requeue"),
    ]
    found = _request(
        fewest=1,
        begin_on=NODES,
        never_on=["login", "node9"],
        tasks_per_node=8,
        cpus_per_task=4,
        gpus_per_node=8,
        again=True,
        export="NONE",
        site=Site("gpu", "lab", "high", None),
    ).options()
    assert {"--nodes=1-2", "--nodelist=node0,node1", "--exclude=login,node9"} <= set(found)
    assert {"--ntasks-per-node=8", "--cpus-per-task=4", "--gpus-per-node=8"} <= set(found)
    assert {"--partition=gpu", "--account=lab", "--qos=high", "--export=NONE"} <= set(found)
    assert found[-1] == "--requeue"
    assert not any("reservation" in word for word in found)
    assert "--nodes=2" in _request(fewest=2).options()


def test_a_script_that_a_user_could_submit(tmp_path: Path) -> None:
    text = script(_request(), ["exec true"])
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("#!/bin/sh", "exec true")
    assert all(line.startswith("#SBATCH --") for line in lines[1:-1])
    odd = tmp_path / "a b'c"
    quoted = script(_request(begin_on=[str(odd)]), []).splitlines()
    assert any(line.startswith("#SBATCH '--nodelist=") for line in quoted)


def test_a_job_that_may_move_excludes_nodes_outside_the_run() -> None:
    names = Names({"node0": "n0", "node1": "n1", "node2": "n2"}, ("n3",))
    still = request_of(Job(["t"], requeues=1), NODES, names, Site(), gpus=0, directory="/")
    assert (still.begin_on, still.never_on, still.moves) == (("n0", "n1"), (), False)
    assert (still.nodes, still.fewest, still.again) == (2, None, True)
    job = Job(["t"], requeues=1, spares=["node2"], fewest_nodes=1, procs_per_node=4)
    moving = request_of(job, NODES, names, Site("gpu"), gpus=4, directory="/")
    assert (moving.never_on, moving.moves, moving.fewest) == (("n3",), True, 1)
    assert (moving.cpus_per_task, moving.gpus_per_node, moving.site.partition) == (4, 4, "gpu")
    once = request_of(Job(["t"], spares=["node2"]), NODES, names, Site(), gpus=0, directory="/")
    assert (once.again, once.moves, once.never_on) == (False, False, ())


def test_names_of_nodes_in_slurm_and_in_the_run() -> None:
    nodes = [NodeState("n0", "IDLE", hostname="node0"), NodeState("n1", "IDLE", hostname="b.lab")]
    names = names_of([*nodes, NodeState("n9", "DOWN")], ["node0", "n1", "n9.lab"])
    assert names.slurm == {"node0": "n0", "n1": "n1", "n9.lab": "n9"}
    assert names.for_slurm(["n9.lab", "node0"]) == ("n9", "n0")
    assert names.for_run(["n0", "x"]) == ("node0", "x")
    assert names_of(nodes, ["b.lab"]).others == ("n0",)
    with pytest.raises(ClusterError, match=r"Slurm has no node 'node7' \(scontrol show node\)"):
        names_of(nodes, ["node7"])


def test_names_that_the_launcher_knows() -> None:
    nodes = [NodeState("gpu1", "IDLE", hostname="gpu1"), NodeState("gpu2", "IDLE")]
    known = {"ip-10-0-0-1": "gpu1", "gpu1": "gpu2", "gone": "gpu9"}
    names = names_of(nodes, ["ip-10-0-0-1", "gpu1"], known)
    assert names.slurm == {"ip-10-0-0-1": "gpu1", "gpu1": "gpu2"}
    with pytest.raises(ClusterError, match="no node 'gone'"):
        names_of(nodes, ["gone"], known)


def test_a_short_name_of_one_node() -> None:
    nodes = [
        NodeState("gpu1.a.org", "IDLE", hostname="gpu1.a.org"),
        NodeState("gpu2.a.org", "IDLE"),
        NodeState("gpu2.b.org", "IDLE"),
    ]
    assert names_of(nodes, ["gpu1"]).slurm == {"gpu1": "gpu1.a.org"}
    assert names_of(nodes, ["gpu2.b.org"]).slurm == {"gpu2.b.org": "gpu2.b.org"}
    with pytest.raises(ClusterError, match="no node 'gpu2'"):
        names_of(nodes, ["gpu2"])
    # The domain differs, so it is another node.
    with pytest.raises(ClusterError, match=r"no node 'gpu1\.b\.org'"):
        names_of(nodes, ["gpu1.b.org"])


def test_site_of_an_allocation() -> None:
    text = (
        "JobId=12 JobName=x UserId=u(1) QOS=normal Account=(null) JobState=RUNNING "
        "Partition=gpu AllocNode:Sid=login:1 Reservation=tonight\n"
    )
    assert site_of(text) == Site("gpu", None, "normal", "tonight")
    assert site_of("") == Site()


def test_variables_of_the_runs_allocation_are_not_submitted() -> None:
    given = {"PATH": "/bin", "SLURM_JOB_ID": "1", "SLURM_CONF": "/etc/s", "SBATCH_ACCOUNT": "lab"}
    assert submitting(given) == {"PATH": "/bin", "SLURM_CONF": "/etc/s", "SBATCH_ACCOUNT": "lab"}


MOVED = ("node1", "node2")
ONCE = JobHistory(1, NODES)
REQUEUED = _state("COMPLETING", restarts=1)


@pytest.mark.parametrize(
    ("before", "state", "after", "expected"),
    [
        (JobHistory(0, NODES), _state("PENDING", reason="Resources"), JobHistory(0, NODES), []),
        (
            *(JobHistory(nodes=NODES), _state("RUNNING", nodes=MOVED, restarts=0)),
            *(JobHistory(1, MOVED, 0), [Change("started", 0, MOVED)]),
        ),
        (JobHistory(nodes=NODES), _state("CONFIGURING", nodes=NODES), JobHistory(0, NODES, 0), []),
        (JobHistory(), _state("POWER_UP_NODE", nodes=NODES), JobHistory(), []),
        (JobHistory(), _state("STAGE_OUT", nodes=NODES), JobHistory(), []),
        (ONCE, _state("RUNNING", nodes=NODES, restarts=0), ONCE, []),
        (ONCE, REQUEUED, JobHistory(1, NODES, 1), [Change("requeued", 1)]),
        (
            *(JobHistory(1, NODES, 1), _state("RUNNING", nodes=MOVED, restarts=1)),
            *(JobHistory(2, MOVED, 1), [Change("started", 1, MOVED)]),
        ),
        (  # requeued and started between two observations
            *(ONCE, _state("RUNNING", nodes=NODES, restarts=1), JobHistory(2, NODES, 1)),
            [Change("requeued", 1), Change("started", 1, NODES)],
        ),
        (ONCE, _state("RUNNING", nodes=NODES), ONCE, []),
        (  # the last start is completing
            *(JobHistory(1, NODES, 1), _state("COMPLETING", nodes=("node0",), restarts=1)),
            *(JobHistory(1, NODES, 1), []),
        ),
        (ONCE, _state("WHATEVER"), ONCE, []),
    ],
)
def test_changes_between_two_observations(
    before: JobHistory, state: JobState, after: JobHistory, expected: list[Change]
) -> None:
    assert changes(before, state) == (after, expected)


def test_the_last_start_of_a_job_that_ended_unseen() -> None:
    seen = JobHistory(1, NODES, 0)
    over = _state("COMPLETED", nodes=MOVED, restarts=2)
    expected = [Change("requeued", 2), Change("started", 2, MOVED)]
    assert changes(seen, over) == (JobHistory(3, MOVED, 2), expected)
    # Cancelled before it started again: no node has processes of that start.
    cancelled = _state("CANCELLED", restarts=1)
    assert changes(seen, cancelled) == (JobHistory(1, NODES, 1), [Change("requeued", 1)])
    # An unobserved first start is known by its end, on its nodes.
    short = _state("COMPLETED", nodes=NODES[:1], restarts=0)
    assert changes(JobHistory(0, NODES, 0), short) == (JobHistory(1, NODES[:1], 0), [])
    assert changes(seen, _state("FAILED", nodes=NODES[:1], restarts=0)) == (seen, [])


@pytest.mark.parametrize(
    ("state", "reason", "why"),
    [
        ("PENDING", "Resources", ""),
        ("PENDING", "BeginTime", ""),
        ("PENDING", None, ""),
        ("PENDING", "JobHeldUser", "it would never start: JobHeldUser"),
        *(
            ("PENDING", reason, f"it would never start: {reason}")
            for reason in (
                *("launch_failed_requeued_held", "user_env_retrieval_failed_requeued_held"),
                *("job_requeued_in_held_state", "(QOSMaxNodePerJobLimit)", "ReservationDeleted"),
                *("AssocMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSMaxMemoryPerJob"),
                "AssocMaxWallDurationPerJobLimit",
            )
        ),
        ("PENDING", "QOSMaxNodePerUserLimit", ""),
        ("PENDING", "QOSMaxJobsPerUserLimit", ""),
        ("REQUEUE_HOLD", "launch failed", "it is held: REQUEUE_HOLD (launch failed)"),
        ("SPECIAL_EXIT", None, "it is held: SPECIAL_EXIT"),
        ("RUNNING", "JobHeldUser", ""),
    ],
)
def test_pending_reasons_that_never_pass(state: str, reason: str | None, why: str) -> None:
    found = never_starts(_state(state, reason=reason))
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_reasons_of_a_requeue() -> None:
    state = _state("PENDING", reason="BeginTime")
    assert why_requeued(["node1"], True, state) == "node1 is gone"
    assert why_requeued([], True, state) == "preempted"
    assert why_requeued([], False, state) == "by the scheduler (BeginTime)"
    assert why_requeued([], False, _state("PENDING")) == "by the scheduler"
    # The reason of an ended job is the reason of its end.
    assert why_requeued([], False, _state("TIMEOUT", reason="TimeLimit")) == "by the scheduler"


@pytest.mark.parametrize(
    ("state", "lost", "preempted", "why"),
    [
        (_state("COMPLETED"), ["node1"], True, ""),
        (_state("FAILED"), [], False, ""),
        (_state("FAILED"), [], True, "preempted"),
        (_state("NODE_FAIL"), ["node1", "node2"], True, "node1, node2 is gone"),
        (_state("NODE_FAIL"), [], False, "Slurm ended it: NODE_FAIL"),
        (_state("TIMEOUT", reason="TimeLimit"), [], True, "Slurm ended it: TIMEOUT (TimeLimit)"),
        (None, [], False, ""),
        (None, [], True, "preempted"),
    ],
)
def test_reasons_of_an_ended_job(
    state: JobState | None, lost: list[str], preempted: bool, why: str
) -> None:
    assert why_over(state, lost, preempted) == why


NOW = datetime(2026, 11, 21, 12, 0, 0)
INVALID = "Batch job submission failed: Invalid account"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sbatch: Job 5 to start at 2026-11-21T12:00:03 using 2 processors on nodes n[0-1]\n", ""),
        ("sbatch: Job 5 to start at 2026-11-21T11:00:00 using 2 processors\n", ""),
        (
            "sbatch: Job 5 to start at 2026-11-21T14:00:00 using 2 processors\n",
            "allocation 12 of this run holds the nodes: a submitted job would start at "
            "2026-11-21 14:00:00 only",
        ),
        *(
            (text, f"Slurm would not start it beside allocation 12 of this run ({reason})")
            for text, reason in (
                ("allocation failure: Not available\n", "allocation failure: Not available"),
                (f"sbatch: error: {INVALID}\n", INVALID),
                ("", "no output"),
            )
        ),
    ],
)
def test_a_job_that_would_start_now(text: str, why: str) -> None:
    assert no_room(text, NOW, 12) == why

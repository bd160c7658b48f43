"""What is asked of sbatch, what the queue says, and when a job goes again: values."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.described import Job
from pytest_mnode.jobs.slurm import files
from pytest_mnode.jobs.slurm.following import (
    Change,
    Course,
    changes,
    never_starts,
    why_over,
    why_requeued,
)
from pytest_mnode.jobs.slurm.lead import goes_again, step
from pytest_mnode.jobs.slurm.names import Names, names_of
from pytest_mnode.jobs.slurm.request import (
    Request,
    Site,
    request_of,
    script,
    site_of,
    submitting,
)
from pytest_mnode.jobs.slurm.room import Foretold, foretold, no_room
from pytest_mnode.jobs.slurm.traces import Traces
from pytest_mnode.jobs.torchrun import Start
from pytest_mnode.launchers.slurm import JobState, NodeState

NODES = ("node0", "node1")


def _state(state: str, **given: Any) -> JobState:
    return JobState(7, "mnode-1", state, **given)


def _request(**given: Any) -> Request:
    return Request("mnode-1", 2, output="/shared/slurm.out", directory="/home/u", **given)


def test_options_say_what_is_asked_and_nothing_else() -> None:
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


def test_a_job_that_may_move_is_kept_from_nodes_that_are_not_its_own() -> None:
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


def test_slurms_names_of_nodes_and_the_runs() -> None:
    nodes = [NodeState("n0", "IDLE", hostname="node0"), NodeState("n1", "IDLE", hostname="b.lab")]
    names = names_of([*nodes, NodeState("n9", "DOWN")], ["node0", "n1", "n9.lab"])
    assert names.slurm == {"node0": "n0", "n1": "n1", "n9.lab": "n9"}
    assert names.for_slurm(["n9.lab", "node0"]) == ("n9", "n0")
    assert names.for_run(["n0", "x"]) == ("node0", "x")
    assert names_of(nodes, ["b.lab"]).others == ("n0",)
    with pytest.raises(ClusterError, match=r"Slurm has no node 'node7' \(scontrol show node\)"):
        names_of(nodes, ["node7"])


def test_names_that_the_launcher_knows_already_are_not_guessed() -> None:
    nodes = [NodeState("gpu1", "IDLE", hostname="gpu1"), NodeState("gpu2", "IDLE")]
    known = {"ip-10-0-0-1": "gpu1", "gpu1": "gpu2", "gone": "gpu9"}
    names = names_of(nodes, ["ip-10-0-0-1", "gpu1"], known)
    assert names.slurm == {"ip-10-0-0-1": "gpu1", "gpu1": "gpu2"}
    with pytest.raises(ClusterError, match="no node 'gone'"):
        names_of(nodes, ["gone"], known)


def test_a_short_name_stands_for_the_one_node_that_has_it() -> None:
    nodes = [
        NodeState("gpu1.a.org", "IDLE", hostname="gpu1.a.org"),
        NodeState("gpu2.a.org", "IDLE"),
        NodeState("gpu2.b.org", "IDLE"),
    ]
    assert names_of(nodes, ["gpu1"]).slurm == {"gpu1": "gpu1.a.org"}
    assert names_of(nodes, ["gpu2.b.org"]).slurm == {"gpu2.b.org": "gpu2.b.org"}
    with pytest.raises(ClusterError, match="no node 'gpu2'"):
        names_of(nodes, ["gpu2"])
    # Another domain is another node.
    with pytest.raises(ClusterError, match=r"no node 'gpu1\.b\.org'"):
        names_of(nodes, ["gpu1.b.org"])


def test_what_an_allocation_was_given() -> None:
    text = (
        "JobId=12 JobName=x UserId=u(1) QOS=normal Account=(null) JobState=RUNNING "
        "Partition=gpu AllocNode:Sid=login:1 Reservation=tonight\n"
    )
    assert site_of(text) == Site("gpu", None, "normal", "tonight")
    assert site_of("") == Site()


def test_facts_of_the_runs_own_allocation_are_not_submitted() -> None:
    given = {"PATH": "/bin", "SLURM_JOB_ID": "1", "SLURM_CONF": "/etc/s", "SBATCH_ACCOUNT": "lab"}
    assert submitting(given) == {"PATH": "/bin", "SLURM_CONF": "/etc/s", "SBATCH_ACCOUNT": "lab"}


@pytest.mark.parametrize(
    ("before", "state", "after", "expected"),
    [
        (Course(nodes=NODES), _state("PENDING", reason="Resources"), Course(0, NODES, 0), []),
        (
            Course(nodes=NODES),
            _state("RUNNING", nodes=("node1", "node2"), restarts=0),
            Course(1, ("node1", "node2"), 0),
            [Change("started", 0, ("node1", "node2"))],
        ),
        (Course(nodes=NODES), _state("CONFIGURING", nodes=NODES), Course(0, NODES, 0), []),
        (Course(1, NODES), _state("RUNNING", nodes=NODES, restarts=0), Course(1, NODES), []),
        (
            Course(1, NODES),
            _state("PENDING", flags=frozenset(["COMPLETING"]), restarts=1),
            Course(1, NODES, 1),
            [Change("requeued", 1)],
        ),
        (
            Course(1, NODES, 1),
            _state("RUNNING", nodes=("node0", "node3"), restarts=1),
            Course(2, ("node0", "node3"), 1),
            [Change("started", 1, ("node0", "node3"))],
        ),
        (  # requeued and started between two looks
            Course(1, NODES),
            _state("RUNNING", nodes=NODES, restarts=1),
            Course(2, NODES, 1),
            [Change("requeued", 1), Change("started", 1, NODES)],
        ),
        (Course(1, NODES), _state("RUNNING", nodes=NODES), Course(1, NODES), []),
        (  # the last start is being taken down
            Course(1, NODES, 1),
            _state("COMPLETING", nodes=("node0",), restarts=1),
            Course(1, NODES, 1),
            [],
        ),
        (Course(1, NODES), _state("WHATEVER"), Course(1, NODES), []),
    ],
)
def test_what_happened_between_two_looks(
    before: Course, state: JobState, after: Course, expected: list[Change]
) -> None:
    assert changes(before, state) == (after, expected)


def test_the_last_start_of_a_job_that_ended_unseen() -> None:
    moved = ("node1", "node2")
    over = _state("COMPLETED", nodes=moved, restarts=2)
    assert changes(Course(1, NODES, 0), over) == (
        Course(3, moved, 2),
        [Change("requeued", 2), Change("started", 2, moved)],
    )
    # Cancelled before it started again: nothing of that start is on any node.
    cancelled = _state("CANCELLED", restarts=1)
    assert changes(Course(1, NODES, 0), cancelled) == (
        Course(1, NODES, 1),
        [Change("requeued", 1)],
    )
    # A first start that was not seen is told by how it ended, on the nodes that it had.
    short = _state("COMPLETED", nodes=NODES[:1], restarts=0)
    assert changes(Course(0, NODES, 0), short) == (Course(1, NODES[:1], 0), [])
    seen = Course(1, NODES, 0)
    assert changes(seen, _state("FAILED", nodes=NODES[:1], restarts=0)) == (seen, [])


@pytest.mark.parametrize(
    ("state", "reason", "why"),
    [
        ("PENDING", "Resources", ""),
        ("PENDING", "BeginTime", ""),
        ("PENDING", None, ""),
        ("PENDING", "JobHeldUser", "it would never start: JobHeldUser"),
        ("PENDING", "launch_failed_requeued_held", "it would never start: launch_failed_req"),
        *(
            ("PENDING", reason, f"it would never start: {reason}")
            for reason in (
                "user_env_retrieval_failed_requeued_held",
                "job_requeued_in_held_state",
                "(QOSMaxNodePerJobLimit)",
                "AssocMaxNodePerJobLimit",
                "QOSMaxWallDurationPerJobLimit",
                "AssocMaxWallDurationPerJobLimit",
                "QOSMaxMemoryPerJob",
            )
        ),
        ("PENDING", "QOSMaxNodePerUserLimit", ""),
        ("PENDING", "QOSMaxJobsPerUserLimit", ""),
        ("REQUEUE_HOLD", "launch failed", "it is held: REQUEUE_HOLD (launch failed)"),
        ("SPECIAL_EXIT", None, "it is held: SPECIAL_EXIT"),
        ("RUNNING", "JobHeldUser", ""),
    ],
)
def test_what_waits_in_vain(state: str, reason: str | None, why: str) -> None:
    found = never_starts(_state(state, reason=reason))
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_why_it_was_requeued() -> None:
    state = _state("PENDING", reason="BeginTime")
    assert why_requeued(["node1"], True, state) == "node1 is gone"
    assert why_requeued([], True, state) == "preempted"
    assert why_requeued([], False, state) == "by the scheduler (BeginTime)"
    assert why_requeued([], False, _state("PENDING")) == "by the scheduler"
    # The reason of a job that is over is that of its end.
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
def test_why_it_is_over(state: JobState | None, lost: list[str], preempted: bool, why: str) -> None:
    assert why_over(state, lost, preempted) == why


NOW = datetime(2026, 11, 21, 12, 0, 0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "sbatch: Job 5 to start at 2026-11-21T12:00:03 using 2 processors on nodes "
            "node[0-1] in partition all\n",
            Foretold(datetime(2026, 11, 21, 12, 0, 3)),
        ),
        (
            "allocation failure: Requested node configuration is not available\n",
            Foretold(None, "allocation failure: Requested node configuration is not available"),
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid account\n",
            Foretold(None, "Batch job submission failed: Invalid account"),
        ),
        ("", Foretold(None, "it said nothing")),
    ],
)
def test_what_the_scheduler_foretells(text: str, found: Foretold) -> None:
    assert foretold(text) == found


def test_a_job_that_would_start_late_or_never_has_no_room() -> None:
    assert no_room(Foretold(NOW.replace(second=3)), NOW, "12") == ""
    assert no_room(Foretold(NOW.replace(hour=11)), NOW, "12") == ""
    late = no_room(Foretold(NOW.replace(hour=14)), NOW, "12")
    assert late.startswith("allocation 12 of this run holds the nodes whole: submitted, it would")
    assert late.endswith("start at 2026-11-21 14:00:00 only")
    never = no_room(Foretold(None, "Invalid account"), NOW, "12")
    assert never == "Slurm would not start it beside allocation 12 of this run (Invalid account)"


WELL, TOLD = files.Status(0, False, False), files.Status(143, False, True)


@pytest.mark.parametrize(
    ("statuses", "requeue", "allowed", "again"),
    [
        ([WELL, WELL], 0, 3, False),
        ([TOLD, TOLD], 0, 1, True),
        ([TOLD, TOLD], 1, 1, False),
        ([TOLD, None], 0, 1, True),
        ([files.Status(1, True, False), WELL], 0, 1, True),
        ([files.Status(1, False, False), WELL], 0, 1, False),
        ([files.Status(0, False, True), WELL], 0, 1, False),
        ([None, files.Status(1, False, False)], 0, 1, False),
    ],
)
def test_when_the_job_asks_to_be_started_again(
    statuses: list[files.Status | None], requeue: int, allowed: int, again: bool
) -> None:
    assert goes_again(statuses, requeue, allowed) is again


def test_one_task_a_node_that_outlives_the_failure_of_another() -> None:
    argv = list(step(3, {"SLURM_CPUS_PER_TASK": "4"}, "python9", Path("/s/p"), Path("/s/q")))
    assert argv[:4] == ["srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1"]
    assert {"--cpus-per-task=4", "--kill-on-bad-exit=0", "--wait=0"} <= set(argv)
    assert argv[-5:] == ["python9", "-m", "pytest_mnode.jobs.slurm.onnode", "/s/p", "/s/q"]


def test_files_of_a_job_come_back_as_they_were_written(tmp_path: Path) -> None:
    job = Job(["t.py", "a b"], procs_per_node=2, env={"A": "1"}, restarts=1, requeues=2)
    plan = files.Plan("abc", job, {"node0": files.Place("n0.lab", "10.0.0.1", "fab0")})
    assert files.Plan.read(plan.write(tmp_path)) == plan
    start = Start("abc", NODES, 1, "10.0.0.1", 4711)
    assert files.read_start(files.write_start(tmp_path, start)) == start
    assert files.read_status(tmp_path, "node0", 1) is None
    files.write_status(tmp_path, "node0", 1, TOLD)
    assert files.read_status(tmp_path, "node0", 1) == TOLD
    assert files.read_told(tmp_path, "node0", 1) is None
    files.write_told(tmp_path, "node0", 1, 42, 12.5)
    assert files.read_told(tmp_path, "node0", 1) == (42, 12.5)
    assert json.loads((tmp_path / "plan.json").read_text())["job_id"] == "abc"
    assert not list(tmp_path.glob(".*"))


def test_what_a_job_left_is_told_by_node_and_start(tmp_path: Path) -> None:
    traces = Traces(tmp_path)
    assert traces.running(NODES, 0) == ["node0", "node1"]
    files.write_status(tmp_path, "node0", 0, TOLD)
    files.write_told(tmp_path, "node0", 0, 42, 12.5)
    assert (traces.running(NODES, 0), traces.told(NODES, 0)) == (["node1"], {"node0": (42, 12.5)})
    assert traces.codes(NODES, 0) == {"node0": 143, "node1": 137}
    assert (traces.preempted(NODES, 0), traces.preempted(NODES, 1)) == (True, False)
    for requeue, text in enumerate(["a\n", "b\n"]):
        files.log_of(tmp_path, "node0", requeue).write_text(text)
    (tmp_path / files.OUTPUT).write_text("srun: …\n")
    assert traces.output("node0", 1, True) == "a\nb\nsrun: …\n"
    assert traces.output("node0", 0, False) == "a\n"
    assert traces.output("node9", 1, False) == ""


def test_what_is_not_there_yet_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS remembers for half a minute that a name was not there; a directory it reads anew."""
    asked: list[str] = []
    read, there = Path.read_text, Path.exists

    def noted(path: Path, *args: Any, **options: Any) -> str:
        asked.append(path.name)
        return read(path, *args, **options)

    def looked(path: Path) -> bool:
        asked.append(path.name)
        return there(path)

    monkeypatch.setattr(Path, "read_text", noted)
    monkeypatch.setattr(Path, "exists", looked)
    traces = Traces(tmp_path)
    for _ in range(2):
        assert traces.running(NODES, 0) == list(NODES)
        assert traces.told(NODES, 0) == {}
        assert traces.output("node0", 1, True) == ""
    assert asked == []
    files.write_status(tmp_path, "node0", 0, WELL)
    files.log_of(tmp_path, "node0", 0).write_text("a\n")
    assert traces.running(NODES, 0) == ["node1"]
    assert traces.output("node0", 1, True) == "a\n"
    assert asked == ["node0.0.status", "node0.0"]


def test_far_programs_do_without_torch_and_pytest() -> None:
    code = (
        "import sys, pytest_mnode.jobs.slurm.lead, pytest_mnode.jobs.slurm.onnode\n"
        "print(*sorted({'torch', 'pytest', 'pydantic', 'zmq'} & set(sys.modules)))"
    )
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

"""Jobs on the rack that are restarted, preempted and requeued; their ranks need no torch."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.jobs.job import Job
from pytest_mnode.jobs.running import RunningJob
from pytest_mnode.launchers.nodes import Nodes
from tests.inner import InnerRun, need_rack, run_pytest, write_files
from tests.jobs.ranks import NAMES, QUICK, RANK, Here
from tests.waiting import soon, until

TESTS = """
    import signal, time
    import pytest
    from pytest_mnode import Job
    from pytest_mnode.errors import ClusterError, TimeLimitError, UsageError

    @pytest.fixture
    def argv(tmp_path):
        script = tmp_path / "rank.py"
        script.write_text(RANK)
        return [str(script), str(tmp_path)]

    def until(job, text, nodes=None, limit=120):
        end = time.monotonic() + limit
        while not all(text in job.output(n) for n in nodes or job.nodes):
            assert time.monotonic() < end, {n: job.output(n) for n in job.nodes}
            assert job.poll() is None, job.poll()
            time.sleep(0.02)

    def whats(job):
        return [e.what for e in job.events]

    def test_a_dead_rank_is_restarted_with_all_others(cluster, argv, tmp_path):
        job = cluster.launch(Job(argv, nodes=2, restarts=2))
        until(job, " 0 0 2 fab0 =fab0 node")
        assert len(job.kill(rank=1)) == 1
        (tmp_path / "broken.0.0").touch()
        until(job, " 0 1 2 fab0 =fab0 node")
        (tmp_path / "done").touch()
        assert job.wait(120).returncodes == {"node0": 0, "node1": 0}
        assert whats(job) == ["started", "signalled", "ended", "ended"]
        [sent] = [e for e in job.events if e.what == "signalled"]
        assert (sent.detail, len(sent.pids)) == ("SIGKILL", 1)
        assert abs(sent.time_s - time.time()) < 300

    def test_a_lost_node_is_replaced(cluster, argv, tmp_path):
        job = cluster.launch(Job(argv, nodes=2, env=quick, requeues=1, spares=["node3"]))
        until(job, " 0 0 2 fab0 =fab0 node")
        before = {n: job.pids(n) for n in job.nodes}
        local = job._torchruns["node1"]
        cluster.power_off("node1")
        end = time.monotonic() + 120
        while job.requeue == 0 and time.monotonic() < end: job.poll(); time.sleep(0.02)
        assert job.nodes == ("node0", "node3") and local.poll() is not None
        assert not set(before["node0"]) & set(job.pids("node0"))
        until(job, " 1 0 2 fab0 =fab0 node")
        (tmp_path / "done").touch()
        assert job.wait(120).ok
        assert whats(job)[:3] == ["started", "ended", "node lost"]
        assert [e.node for e in job.events if e.what == "node lost"] == ["node1"]
        killed = next(e for e in job.events if e.what == "killed")
        assert killed.node == "node0" and set(before["node0"]) == set(killed.pids)

    def test_fewer_nodes_then_none_left(cluster, argv, tmp_path):
        job = cluster.launch(Job(argv, nodes=2, env=quick, requeues=1, fewest_nodes=1))
        until(job, " 0 0 2 fab0")
        cluster.power_off("node0")
        until(job, " 1 0 1 fab0", ["node1"])
        assert job.nodes == ("node1",)
        cluster.power_off("node1")
        result = job.wait(120)
        assert not result.ok and job.events[-1].what == "gave up", job.events
        assert job.events[-1].detail == "node1 is gone, after 1 requeues"

    def test_preempted_and_started_again_when_the_node_is_back(cluster, argv, tmp_path):
        job = cluster.launch(Job(argv, nodes=2, env=quick, requeues=2))
        until(job, " 0 0 2 fab0")
        job.preempt(10)
        assert "sigterm 0 0 0" in job.output("node0") and "sigterm 1 0 0" in job.output("node1")
        until(job, " 1 0 2 fab0")
        details = [e.detail for e in job.events if e.what in ("preempted", "requeued")]
        assert details == ["", "preempted"]
        cluster.power_off("node1")
        with pytest.raises(TimeLimitError, match="waits for node1 to come back after 0.5 s"):
            job.wait(0.5)
        assert job.pids("node0") == []
        cluster.power_on("node1")
        until(job, " 2 0 2 fab0")
        (tmp_path / "done").touch()
        assert job.wait(120).ok

    def test_stubborn_ranks_are_killed_and_a_failure_is_not_requeued(
        cluster, argv, tmp_path
    ):
        job = cluster.launch(Job([*argv, "stubborn"], nodes=1, env=quick, requeues=1))
        until(job, " 0 0 1 fab0")
        job.preempt(0.5)
        [preempted] = [e for e in job.events if e.what == "preempted"]
        assert preempted.detail == "node0 killed after 0.5 s"
        until(job, " 1 0 1 fab0")
        (tmp_path / "broken.1.0").touch()
        assert job.wait(120).returncodes == {"node0": 1} and job.requeue == 1

    def test_a_rank_with_exit_status_75_was_preempted(cluster, argv, tmp_path):
        env = {**quick, "GLOO_SOCKET_IFNAME": "mgmt0"}
        job = cluster.launch(Job(argv, nodes=["node2"], requeues=1, env=env))
        until(job, " 0 0 1 mgmt0 =fab0 node2")
        job.kill(rank=0, signal=signal.SIGTERM)
        until(job, " 1 0 1 mgmt0 =fab0 node2")
        (tmp_path / "done").touch()
        assert job.wait(120).ok

    def test_jobs_that_are_refused(cluster, argv):
        for job, message in [
            (Job(argv, nodes=4, spares=["node3"]), "this test has 4 nodes, 1 of them spares"),
            (Job(argv, spares=["node9"]), "no node 'node9' in this test"),
            (Job(argv, spares=cluster.nodes), "all nodes of this test; leave one for the job"),
        ]:
            with pytest.raises(UsageError, match=message):
                cluster.launch(job)
"""


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[tuple[Here, Callable[..., RunningJob]]]:
    """Two nodes, and what starts a job on them."""
    here = Here(tmp_path)
    script = tmp_path / "rank.py"
    script.write_text(RANK)

    def launch(**given: Any) -> RunningJob:
        job = Job([str(script), str(tmp_path)], env=QUICK, **given)
        return RunningJob.start(Nodes(here, NAMES), job)

    yield here, launch
    (tmp_path / "done").touch()


def test_a_job_waits_for_a_lost_node_as_long_as_promised(launched: Any, tmp_path: Path) -> None:
    here, launch = launched
    with contextlib.closing(launch(requeues=1, back_within_s=0.7)) as job:
        until(lambda: all("up" in job.output(name) for name in NAMES), "both ranks are up")
        here.gone = ("n1",)
        (tmp_path / "broken.0.0").touch()
        lost_at = time.monotonic()
        job.wait(120)
        assert time.monotonic() - lost_at > 0.7
        assert (job.events[-1].what, job.requeue) == ("gave up", 0)
        assert job.events[-1].detail == "n1 not back within 0.7 s"


def test_local_commands_of_a_job_end_without_their_nodes(launched: Any) -> None:
    """The processes on a lost node run on, out of reach."""
    here, launch = launched
    job = launch()
    commands = list(job._torchruns.values())
    here.gone = NAMES
    with soon():
        job.close()
    assert [command.wait(0) for command in commands] == [-signal.SIGKILL] * 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    need_rack()
    directory = tmp_path_factory.mktemp("job")
    write_files(directory, test_it=TESTS)
    path = directory / "test_it.py"
    path.write_text(f"RANK, quick = {RANK!r}, {QUICK!r}\n{path.read_text()}")
    return run_pytest(directory, "--mnode-nodes=4", "--mnode-launcher=rack", "--durations=8")


@pytest.mark.parametrize("name", re.findall(r"def (test_\w+)", TESTS))
def test_inner(run: InnerRun, name: str) -> None:
    assert run.outcomes().get(name) == "passed", run.output


def test_nothing_is_left(run: InnerRun) -> None:
    where = run.junit.parent.as_posix().encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environ = path.read_bytes()
            assert not (b"MNODE_JOB_NODE=" in environ and where in environ), path

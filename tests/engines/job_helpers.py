"""Source text that tests of launched jobs share in their runs on real engines.

An engine adds the fixture `place`, a directory that all nodes see, and `started(job)`: what differs
from start to start of the same job.
"""

from __future__ import annotations

from pathlib import Path

from tests.inner import InnerRun, write_files
from tests.jobs.ranks import RANK

_TESTS = Path(__file__).parents[1]
_CONSTANTS = {
    "RANK": RANK,
    "JOBS": str(_TESTS.parent / "fixtures" / "jobs"),
    "QUICK": str(_TESTS / "jobs" / "quick"),  # in place of torchrun
}
_CONSTANT_LINES = "".join(f"{name} = {value!r}\n" for name, value in _CONSTANTS.items())
JOB_HELPERS = """
    import os, subprocess, time
    from pathlib import Path
    import pytest
    from pytest_mnode import Job
    from pytest_mnode.criteria.launching.contract import leaked
    from pytest_mnode.criteria.launching.styles import LaunchJob, read_job
    from pytest_mnode.criteria.launching.starting import judged_place, judged_start
    from pytest_mnode.criteria.launching.starting import path_of, start
    from pytest_mnode.errors import TimeLimitError

    class Promise:
        within_s = 90.0

    def judge(cluster, measure, started, nodes):
        measure.record(judged_start(started, Promise(), "criteria.launch"))
        addresses = {node: cluster.address(node) for node in cluster.nodes}
        measure.record(judged_place(started, nodes, addresses))

    def plain(nodes, *command):
        page = {"name": "a", "nodes": nodes, "accelerators_per_node": 0, "style": "plain"}
        return LaunchJob.model_validate(page | {"command": command}).placed(nodes, 0)

    def quick(argv, **fields):
        # Its torchrun is a stand-in that starts in a moment.
        return Job(argv, env={"PYTHONPATH": QUICK}, **fields)

    def until(job, text, nodes=None, limit=120):
        end = time.monotonic() + limit
        while not all(text in job.output(n) for n in nodes or job.nodes):
            assert time.monotonic() < end, (job.events, {n: job.output(n) for n in job.nodes})
            assert job.poll() is None, (job.poll(), job.events)
            time.sleep(0.05)

    def whats(job):
        return [e.what for e in job.events]

    @pytest.fixture
    def argv(place):
        script = place / "rank.py"
        script.write_text(RANK)
        return [str(script), str(place)]
"""
PREEMPTED = """
    def test_preempted_and_started_again(cluster, argv):
        job = cluster.launch(quick(argv, nodes=2, requeues=1))
        until(job, " 0 0 2 fab0")
        first = started(job)
        assert job.preempt(20) == []
        assert "sigterm 0 0 0" in job.output("node0") and "sigterm 1 0 0" in job.output("node1")
        signalled = [e for e in job.events if e.what == "signalled"]
        assert [(e.node, e.detail, len(e.pids)) for e in signalled] == [
            ("node0", "SIGTERM", 1), ("node1", "SIGTERM", 1)]
        until(job, " 1 0 2 fab0")
        assert job.requeue == 1 and not first & started(job)
        assert "up 0 0 0" in job.output("node0")  # of the first start
        assert [e.detail for e in job.events if e.what == "requeued"] == ["preempted"]
        job.preempt(20)
        result = job.wait(40)
        assert not result.ok and job.events[-1].detail == "preempted, after 1 requeues"

    def test_what_does_not_end_is_killed_and_what_fails_is_not_requeued(cluster, argv, place):
        job = cluster.launch(quick([*argv, "stubborn"], nodes=1))
        until(job, " 0 0 1 fab0")
        assert job.preempt(0.5) == ["node0"]
        assert not job.wait(40).ok and job.events[-1].detail == "preempted, after 0 requeues"
        assert "killed" in whats(job)
        job = cluster.launch(quick(argv, nodes=1, requeues=1))
        until(job, " 0 0 1 fab0")
        (place / "broken.0.0").touch()
        assert job.wait(40).returncodes == {"node0": 1} and job.requeue == 0
        assert (job.events[-1].what, job.events[-1].detail) == ("ended", "status 1")
"""


def write(directory: Path, tests: str) -> None:
    """Write a test_it.py that begins with JOB_HELPERS."""
    write_files(directory, test_it=tests)
    path = directory / "test_it.py"
    path.write_text(_CONSTANT_LINES + path.read_text())


def assert_passed(run: InnerRun, tests: int) -> None:
    """All tests of a run passed, which are so many."""
    assert list(run.outcomes().values()) == ["passed"] * tests, run.output

"""After any end of a run, even a violent one, nothing of it is left.

After SIGTERM, also on the rack: tests/controller/test_terminated.py. After its own end:
tests/test_first_steps.py on the rack, and tests/test_coverage.py here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inner import need_rack, write_files
from tests.jobs.ranks import QUICK
from tests.watched import Watched

TESTS = """
    import os, pathlib, subprocess, time

    def test_long(world, process_group, request):
        # A child in a session of its own, as a stubborn data loader would be.
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        pathlib.Path(request.config.rootpath, f"busy{world.rank}").touch()
        time.sleep(120)
"""
JOB = """
    import os, pathlib, subprocess, sys, tempfile, time
    from pytest_mnode import Job

    def stays(directory, name):
        pathlib.Path(directory, f"busy-{name}").touch()
        time.sleep(120)

    def in_a_rank(directory, *, world):
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        stays(directory, f"rank{world.rank}")

    if __name__ == "__main__":
        tempfile.mkdtemp(prefix="mnode-test-")  # as training leaves it that is killed
        stays(sys.argv[1], f"job{os.environ['RANK']}")

    def test_job(cluster, request):
        directory = str(request.config.rootpath)
        cluster.launch(Job([__file__, directory], nodes=1, env=ENV))
        cluster.world().run(in_a_rank, directory)
"""


@pytest.fixture(params=["local", "rack"])
def launcher(request: pytest.FixtureRequest) -> str:
    if request.param == "rack":
        need_rack()
    return str(request.param)


@pytest.fixture
def busy(tmp_path: Path, launcher: str) -> Iterator[Watched]:
    write_files(tmp_path, test_it=TESTS)
    with Watched(tmp_path, "--mnode-nodes=2", f"--mnode-launcher={launcher}") as run:
        run.wait_until_busy(2)
        yield run


@pytest.mark.parametrize("launcher", ["local"])
def test_an_interrupted_run_leaves_nothing(busy: Watched) -> None:
    assert len(busy.alive()) > 5
    os.kill(busy.process.pid, signal.SIGINT)
    output = busy.output()
    busy.expect_nothing_left()
    assert "KeyboardInterrupt" in output
    assert busy.process.returncode == pytest.ExitCode.INTERRUPTED


def test_a_run_killed_with_ranks_and_a_job_leaves_nothing(tmp_path: Path, launcher: str) -> None:
    """On the rack torchrun itself, whose files are removed too."""
    env = QUICK if launcher == "local" else {}
    write_files(tmp_path, test_it=f"    ENV = {env!r}\n{JOB}")
    with Watched(tmp_path, "--mnode-nodes=2", f"--mnode-launcher={launcher}") as run:
        run.wait_until_busy(3)
        assert len(run.alive()) > 5
        run.kill()


def test_a_run_whose_agent_is_killed_leaves_nothing(busy: Watched) -> None:
    """The process that guards the ranks dies: the test fails with the reason, and the run ends."""
    [agent] = [int(line.split()[0]) for line in busy.alive() if line.endswith("mnode-agent")]
    os.kill(agent, signal.SIGKILL)
    output = busy.output()
    assert busy.process.returncode not in (0, None)
    assert "test_long" in output
    busy.expect_nothing_left()

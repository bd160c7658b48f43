"""After any end of a run, even a violent one, nothing of it is left."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.acceptance.certified import ACCEPTANCE
from tests.inner import clean_env, command, need_rack, write_files
from tests.waiting import until

TESTS = """
    import os, pathlib, subprocess, time

    def test_quick(world, process_group): pass

    def test_long(world, process_group, request):
        # A child in a session of its own, as a stubborn data loader would be.
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        pathlib.Path(request.config.rootpath, f"busy{world.rank}").touch()
        time.sleep(120)
"""
JOB = """
    import os, pathlib, subprocess, sys, tempfile, time

    def stays(directory, name):
        pathlib.Path(directory, f"busy-{name}").touch()
        time.sleep(120)

    def in_a_rank(directory, *, world):
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        stays(directory, f"rank{world.rank}")

    if __name__ == "__main__":
        tempfile.mkdtemp(prefix="mnode-test-")  # as a program leaves it that is killed
        stays(sys.argv[1], f"job{os.environ['RANK']}")

    def test_job(cluster, request):
        directory = str(request.config.rootpath)
        cluster.launch([__file__, directory])
        cluster.world().run(in_a_rank, directory)
"""
GONE_LIMIT_S = 60.0
"""A limit far below the minutes for which remaining processes would sleep."""


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


class Watched:
    """A pytest run whose processes are recognised by a variable in their environment."""

    def __init__(self, directory: Path, *args: str) -> None:
        self.directory = directory
        self.mark = f"MARK_{uuid.uuid4().hex}"
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        (directory / "pytest.ini").touch()
        self.interfaces = interfaces()
        self.process = subprocess.Popen(
            command("-q", *args),
            cwd=directory,
            env={**clean_env(), self.mark: "1", "TMPDIR": str(self.temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_until_busy(self, programs: int) -> None:
        until(lambda: len(list(self.directory.glob("busy*"))) == programs, "not all are busy", 60)

    def alive(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if self.mark in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.name()}")
            except psutil.Error:
                continue
        return found

    def left(self) -> list[str]:
        """Processes, temporary files and interfaces of the run that still exist."""
        names = ("mnode-*", "torchelastic*", "pytorch-errorfile*")
        files = [str(path) for name in names for path in self.temporary.glob(name)]
        return [*self.alive(), *files, *(interfaces() - self.interfaces)]

    def expect_nothing_left(self) -> None:
        until(lambda: not self.left(), self.left, GONE_LIMIT_S)

    def kill(self) -> None:
        """Kill the controller, and wait until nothing else of the run is there."""
        self.process.kill()
        self.process.communicate(timeout=30)
        self.expect_nothing_left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


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


@pytest.mark.parametrize(
    ("launcher", "number"),
    [("local", signal.SIGINT), ("rack", signal.SIGINT), ("rack", signal.SIGTERM)],
    indirect=["launcher"],
)
def test_an_ended_run_leaves_nothing(busy: Watched, number: signal.Signals) -> None:
    assert len(busy.alive()) > 5
    os.kill(busy.process.pid, number)
    output, _ = busy.process.communicate(timeout=30)
    busy.expect_nothing_left()
    if number is signal.SIGINT:
        assert "KeyboardInterrupt" in output
        assert busy.process.returncode == pytest.ExitCode.INTERRUPTED


def test_a_run_killed_with_ranks_and_a_job_leaves_nothing(tmp_path: Path, launcher: str) -> None:
    write_files(tmp_path, test_it=JOB)
    with Watched(tmp_path, "--mnode-nodes=2", f"--mnode-launcher={launcher}") as run:
        run.wait_until_busy(4)
        assert len(run.alive()) > 5
        run.kill()


def trains(temporary: Path) -> bool:
    """Whether there are records of steps; below /tmp where a socket has no room in TMPDIR."""
    below = itertools.chain.from_iterable(map(os.walk, [temporary, *Path("/tmp").glob("mnode-*")]))
    names = itertools.chain.from_iterable(names for _, _, names in below)
    return any(fnmatch(name, "rank*.jsonl") for name in names)


def test_a_run_killed_while_it_measures_training_steps_leaves_nothing(tmp_path: Path) -> None:
    need_rack()
    suite = str(ACCEPTANCE / "test_scaling.py")
    with Watched(tmp_path, "--mnode-nodes=2", "--mnode-launcher=rack", suite) as run:
        ended = run.process.poll
        until(lambda: trains(run.temporary) or ended() is not None, "no records of steps", 300)
        assert run.process.stdout is not None
        assert ended() is None, run.process.stdout.read()
        run.kill()


def test_a_run_whose_agent_is_killed_leaves_nothing(busy: Watched) -> None:
    """The process that guards the ranks dies: the test fails with the reason, and the run ends."""
    [agent] = [int(line.split()[0]) for line in busy.alive() if line.endswith("mnode-agent")]
    os.kill(agent, signal.SIGKILL)
    output, _ = busy.process.communicate(timeout=60)
    assert busy.process.returncode not in (0, None)
    assert "test_long" in output
    busy.expect_nothing_left()


def test_a_passed_run_leaves_nothing(tmp_path: Path, launcher: str) -> None:
    write_files(tmp_path, test_it=TESTS)
    run = Watched(tmp_path, "--mnode-nodes=2", f"--mnode-launcher={launcher}", "-k", "quick")
    output, _ = run.process.communicate(timeout=60)
    assert run.process.returncode == 0, output
    run.expect_nothing_left()

"""A rack leaves nothing behind, however it or its controller ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_mnode import processes
from pytest_mnode.launchers.rack import Rack
from tests.waiting import until

CONTROLLER = """
import subprocess, sys, time
from pytest_mnode.launchers.rack import Rack
rack = Rack(2, mode=sys.argv[1], cleanup_dirs=[sys.argv[2]])
rack.start()
argv = ["sh", "-c", "setsid sleep 61 & sleep 62"]
on_node = subprocess.Popen(rack.commands(rack.nodes[:1], argv)[0])
agent = subprocess.Popen(rack.agent_command(argv))
print(rack.daemon_pid, flush=True)
input()
if sys.argv[3] == "close":
    rack.close()
    print("closed", flush=True)
if sys.argv[3] != "end":
    time.sleep(60)
"""


def carriers(tag: str) -> set[int]:
    """Every process that has this tag in its environment."""
    return set(processes.started_with("MNODE_TEST_TAG", tag))


def interfaces() -> list[str]:
    return sorted(line.split(":")[0] for line in Path("/proc/net/dev").read_text().splitlines())


HANGS_S = 60.0


def await_none(tag: str, besides: int = 0) -> None:
    until(lambda: carriers(tag) <= {besides}, lambda: carriers(tag), HANGS_S)


Start = Callable[..., tuple["subprocess.Popen[str]", int]]


@pytest.fixture
def tag() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "run dir"
    (directory / "deep").mkdir(parents=True)
    (directory / "deep" / "socket").touch()
    return directory


@pytest.fixture
def start(_rack_possible: None, tag: str, run_dir: Path) -> Iterator[Start]:
    """start(then): a controller with a running rack, which then does this; and its daemon's pid."""
    started = []
    before = interfaces()

    def start(then: str, mode: str = "auto") -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, mode, str(run_dir), then],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MNODE_TEST_TAG": tag},
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdin is not None
        keeper = int(process.stdout.readline())
        # Controller, daemon, rack, 2 nodes, 2 commands of 5 processes each: otherwise the search
        # for leftovers would prove nothing.
        until(lambda: len(carriers(tag)) == 15, lambda: carriers(tag), HANGS_S)
        process.stdin.write("\n")
        process.stdin.flush()
        return process, keeper

    yield start
    for process in started:
        process.kill()
        process.communicate()
    await_none(tag)
    assert interfaces() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_controller_is_killed(
    start: Start, mode: str, tag: str, run_dir: Path, number: signal.Signals
) -> None:
    controller, _ = start("sleep", mode)
    controller.send_signal(number)
    controller.wait(HANGS_S)
    await_none(tag)
    assert not run_dir.exists()


def test_the_controller_exits_without_closing_the_rack(
    start: Start, tag: str, run_dir: Path
) -> None:
    controller, _ = start("end")
    controller.wait(HANGS_S)
    await_none(tag)
    assert not run_dir.exists()


def test_the_rack_is_closed(start: Start, tag: str, run_dir: Path) -> None:
    controller, _ = start("close")
    assert controller.stdout is not None
    assert controller.stdout.readline() == "closed\n"
    # Processes in the rack are dead; its two zombies have no environment.
    await_none(tag, besides=controller.pid)
    assert run_dir.exists()  # the controller lives and may still need the directory


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_cleanup_daemon_is_killed(
    start: Start, mode: str, tag: str, number: signal.Signals
) -> None:
    controller, keeper = start("sleep", mode)
    os.kill(keeper, number)
    await_none(tag, besides=controller.pid)
    assert controller.poll() is None


def test_controller_and_daemon_are_terminated_at_once(
    start: Start, tag: str, run_dir: Path
) -> None:
    controller, keeper = start("sleep")
    os.kill(keeper, signal.SIGTERM)
    controller.terminate()
    controller.wait(HANGS_S)
    await_none(tag)
    assert not run_dir.exists()


def test_the_racks_first_process_is_killed(start: Start, tag: str, run_dir: Path) -> None:
    controller, keeper = start("sleep")
    (inside,) = processes.children(keeper)
    os.kill(inside, signal.SIGKILL)
    # The daemon still has a directory to remove.
    until(lambda: carriers(tag) == {controller.pid, keeper}, "the rack has ended", HANGS_S)
    assert run_dir.exists()
    controller.kill()
    controller.wait(HANGS_S)
    await_none(tag)
    assert not run_dir.exists()


def test_a_rack_is_closed_once_and_without_force(mode: str) -> None:
    rack = Rack(4, mode=mode)
    rack.start()
    rack.close()
    assert rack._channel is not None
    keeper = rack._channel._daemon._process
    assert keeper is not None
    assert keeper.returncode == 0, "the rack was killed at the limit for its end"
    assert not rack._channel._thread.is_alive()
    rack.close()

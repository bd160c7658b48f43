"""What an agent of its own process ends and removes, however it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_mnode import processes
from pytest_mnode.protocol.channel import Switchboard
from pytest_mnode.protocol.messages import RUN, AgentOrder
from tests.inner import clean_env
from tests.waiting import until

LIMIT_S = 30.0
AGENT = """
import subprocess, sys
from pytest_mnode.agent import agent
subprocess.Popen(["sh", "-c", sys.argv[1]], stdin=subprocess.DEVNULL)
agent.main()
"""
"""A process of the agent itself, as a fork server that was killed leaves one."""
ORPHANED = (
    "(trap '' TERM; setsid sh -c 'echo $$ >orphan; exec sleep 300') & "
    "until [ -e leave ]; do sleep 0.1; done"
)
"""A process that ignores SIGTERM, whose parent leaves it once there is a file `leave`."""


def gone(pid: int) -> bool:
    return processes.has_ended(pid)


class RunningAgent:
    """An agent whose hub never answers. directory: the TMPDIR of its machine."""

    def __init__(self, directory: Path, *, remote: bool = False, below: str = "true") -> None:
        self.directory = directory
        self.run_dir = directory / "run of controller"
        self.machine = directory / "tmp"
        for made in (self.run_dir, self.machine):
            made.mkdir()
        (self.run_dir / "file").touch()
        self.hub = Switchboard(f"{directory}/hub", "token")
        order = AgentOrder(
            0, str(self.run_dir), str(directory), self.hub.path, "token", run_id=str(self.run_dir)
        )
        if remote:
            order = dataclasses.replace(order, run_dir="", path="", token="", remote=True)
        self.program = subprocess.Popen(
            [sys.executable, "-c", AGENT, below],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**clean_env(), "TMPDIR": str(self.machine)},
        )
        assert self.program.stdin is not None
        self.program.stdin.write(json.dumps(dataclasses.asdict(order)).encode() + b"\n")
        self.program.stdin.flush()
        until(self.fork_server, "the agent serves")

    def fork_server(self) -> int:
        """Its pid; 0 before it has started."""
        for one in psutil.Process(self.program.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # another child, which ends at once
                if one.name() == "mnode-fork":
                    return one.pid
        return 0

    def end(self) -> None:
        assert self.program.stdin is not None
        self.program.stdin.close()
        self.program.wait(LIMIT_S)
        self.hub.close()


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to end after the test."""
    made: list[subprocess.Popen[bytes]] = []
    yield made
    processes.end_programs(made)


def test_processes_below_an_agent_end_with_it(tmp_path: Path) -> None:
    agent = RunningAgent(tmp_path, below=ORPHANED)
    until(lambda: (tmp_path / "orphan").exists() and (tmp_path / "orphan").read_text(), "orphan")
    orphan = int((tmp_path / "orphan").read_text())
    (tmp_path / "leave").touch()
    until(lambda: psutil.Process(orphan).ppid() == agent.program.pid, "the agent adopts it")
    agent.end()
    assert gone(orphan)


def test_commands_of_the_run_end_with_the_agent(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """They run on its machine, and are below the controller, or below nobody."""
    agent = RunningAgent(tmp_path)
    for run in (str(agent.run_dir), f"{agent.run_dir}2"):
        started.append(subprocess.Popen(["sleep", "300"], env={**os.environ, RUN: run}))
    of_this_run, of_another = started
    agent.end()
    assert of_this_run.wait(LIMIT_S) == -signal.SIGTERM
    assert of_another.poll() is None


def test_the_directory_of_the_run_is_removed(tmp_path: Path) -> None:
    agent = RunningAgent(tmp_path)
    agent.end()
    assert not agent.run_dir.exists()
    assert agent.machine.exists()


def test_ranks_have_no_part_in_the_agents_own_streams(tmp_path: Path) -> None:
    """What a rank reads or prints is no message of the hub, and none holds the connection open."""
    agent = RunningAgent(tmp_path, remote=True)
    pids = agent.program.pid, agent.fork_server()
    in_agent, below = [
        {one.name: str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()} for pid in pids
    ]
    assert [in_agent["0"], below["0"]] == [os.devnull, os.devnull]
    assert below["1"] == below["2"]
    pipe = f"pipe:[{os.fstat(agent.program.stdin.fileno()).st_ino}]"  # type: ignore[union-attr]
    assert pipe in in_agent.values()
    assert pipe not in below.values()
    agent.end()


@pytest.mark.parametrize("here", [False, True], ids=["another machine", "the controller's"])
def test_an_agent_of_another_machine_removes_what_is_there(tmp_path: Path, *, here: bool) -> None:
    """Its own directory; that of the controller if commands made one at the same path."""
    agent = RunningAgent(tmp_path, remote=True)
    [own] = agent.machine.iterdir()
    if here:
        (agent.run_dir / "hub").touch()
    agent.end()
    assert not own.exists()
    assert agent.run_dir.exists() == here


def test_a_stopped_fork_server_ends_with_its_agent(tmp_path: Path) -> None:
    """It would not notice the end of its pipe."""
    agent = RunningAgent(tmp_path)
    fork_server = agent.fork_server()
    os.kill(fork_server, signal.SIGSTOP)
    agent.program.kill()
    agent.program.wait(LIMIT_S)
    until(lambda: gone(fork_server), "the fork server has ended")

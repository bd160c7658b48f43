"""Commands on nodes that have no process on this machine."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil
import pytest

from pytest_mnode import processes
from pytest_mnode.launchers.remote import node_process
from pytest_mnode.launchers.remote.node_command import LOST
from pytest_mnode.launchers.remote.node_process import LOCAL, NodeProcess, start
from pytest_mnode.launchers.remote.run_all import run_all
from tests.launchers.remote.proxies import LIMIT_S, SLEEPS, Way, leave_files
from tests.launchers.remote.test_commands import Marked
from tests.waiting import soon, until

STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; sleep 300"]
ENDED = "n1: the run's connection to its nodes has ended\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def started(
    command: Sequence[str], log: Path, first: bytes = b"ready\n", **env: str
) -> NodeProcess:
    """The command with pipes, once it has printed this; its errors are in the log."""
    made = start(command, {**os.environ, **env}, stdin=PIPE, stdout=PIPE, stderr=log)
    assert isinstance(made, NodeProcess)
    assert made.stdout is not None
    assert made.stdout.read(len(first)) == first
    return made


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("no-such", 127)]
)
def test_the_exit_status_is_that_of_the_command(
    way: Way, log: Path, script: str, status: int
) -> None:
    made = started(way(["sh", "-c", f"echo ready; {script}"]), log)
    with pytest.raises(subprocess.TimeoutExpired):
        start(way.streams.command("n1", SLEEPS), {}, stdout=log, stderr=log).wait(0.05)
    assert made.wait(LIMIT_S) == made.poll() == made.returncode == status
    assert made._bridge.fileno() == -1


def test_streams_environment_and_directory_are_those_given(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Path
) -> None:
    log.write_text("before\n")
    monkeypatch.chdir(tmp_path)
    script = 'pwd; read line; echo "$line $MNODE_TEST"; echo why >&2'
    made = started(way(["sh", "-c", script]), log, f"{tmp_path}\n".encode(), MNODE_TEST="é x")
    assert made.stdin is not None
    assert made.stdout is not None
    made.stdin.write(b"typed\n")
    assert made.stdout.read() == "typed é x\n".encode()
    assert made.wait(LIMIT_S) == 0
    assert log.read_text() == "before\nwhy\n"


def test_large_amounts_of_data_both_ways(way: Way, log: Path) -> None:
    data = os.urandom(1 << 20) * 8
    made = started(way(["cat"]), log, b"")
    assert made.stdin is not None
    assert made.stdout is not None

    def feed(to: Callable[[], None], data: memoryview) -> None:
        while data:
            data = data[made.stdin.write(data) or 0 :]  # type: ignore[union-attr]
        to()

    feeding = threading.Thread(target=feed, args=(made.stdin.close, memoryview(data)))
    feeding.start()
    assert b"".join(iter(lambda: made.stdout.read(1 << 20), b"")) == data  # type: ignore[union-attr]
    feeding.join()
    assert made.wait(LIMIT_S) == 0


def test_sigterm_is_passed_on(way: Way, log: Path) -> None:
    script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    made = started(way(["sh", "-c", script]), log)
    made.terminate()
    assert made.wait(LIMIT_S) == 3
    made.terminate()
    made.kill()
    assert made.returncode == 3


def test_a_killed_command_ends_at_once_here_and_soon_there(way: Way, log: Path) -> None:
    mark = Marked()
    made = started(way(STUBBORN), log, MNODE_MARK=mark.value)
    inherited = os.dup(made._bridge.fileno())  # as in a forked process
    processes.end_programs([made])
    assert made.wait() == -signal.SIGKILL
    mark.until_none()
    os.close(inherited)


def test_the_command_ends_with_the_process_that_started_it(way: Way, log: Path) -> None:
    """Also with one that gets no time for it."""
    mark, command = Marked(), way(STUBBORN)
    code = (
        "import os, sys, time; from pathlib import Path; from subprocess import PIPE;"
        "from pytest_mnode.launchers.remote.node_process import start;"
        f"command, log = {command!r}, Path({str(log)!r});"
        "made = start(command, os.environ, stdin=PIPE, stdout=PIPE, stderr=log);"
        "print(made.stdout.read(5)); sys.stdout.flush(); time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=PIPE, env=mark.env) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"b'ready'\n"
        assert len(mark.names()) > 1
        caller.kill()
    mark.until_none()


def test_a_lost_node_is_told_with_its_reason(way: Way, log: Path) -> None:
    made = started(way(SLEEPS), log)
    way.streams.client.end("n1", "powered off")
    assert made.wait(LIMIT_S) == LOST
    assert log.read_text() == "n1: powered off\n"
    other = start(way.streams.command("n2", SLEEPS), {}, stdout=log, stderr=log)
    assert other.wait(LIMIT_S) == LOST
    assert log.read_text() == "n1: powered off\nn2: no connection\n"


def test_the_end_of_the_bridge_is_told(way: Way, log: Path) -> None:
    made = started(way(SLEEPS), log)
    way.streams.client.close()
    assert made.wait(LIMIT_S) == LOST
    later = start(way.streams.command("n1", SLEEPS), {}, stdout=log, stderr=log)
    assert later.wait() == LOST
    assert log.read_text() == 2 * ENDED


def test_a_bridge_that_is_out_of_open_files_refuses_and_goes_on(way: Way, log: Path) -> None:
    command = way(["true"])
    with leave_files(way.streams.bridge().pid, 2):
        refused = start(command, {}, stdout=log, stderr=log)
        assert refused.wait(LIMIT_S) == LOST
    assert log.read_text() == "n1: out of open files here; raise ulimit -n\n"
    assert start(command, {}, stdout=log, stderr=log).wait(LIMIT_S) == 0


def test_a_bridge_that_takes_no_command_is_not_waited_for(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_process, "ASK_S", 1)
    path = str(tmp_path / "bridge")
    with socket.socket(socket.AF_UNIX) as deaf, soon():
        deaf.bind(path)
        deaf.listen()
        asked = start([*LOCAL, path, "n1", "x" * (1 << 20)], {}, stdout=log, stderr=log)
        assert asked.wait() == LOST
    assert "n1: the run's bridge to its nodes took no command for 1 s: " in log.read_text()


def test_a_bridge_that_has_many_requests_yet_to_take_gets_each(
    way: Way, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = iter([True, True])
    send = socket.send_fds

    def send_fds(*words: Any) -> int:
        if next(refused, False):
            raise OSError(errno.ETOOMANYREFS, "")
        return send(*words)

    monkeypatch.setattr(socket, "send_fds", send_fds)
    assert start(way(["true"]), {}, stdout=log, stderr=log).wait(LIMIT_S) == 0


def test_nothing_stays_open_of_a_command_that_cannot_be_started(log: Path) -> None:
    here = psutil.Process().num_fds()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (here + 4, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            start([*LOCAL, "none", "n1"], {}, stdin=PIPE, stdout=PIPE, stderr=log)
        assert psutil.Process().num_fds() == here
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_many_nodes_need_no_process_and_few_files_here(way: Way, tmp_path: Path) -> None:
    command = way(["sh", "-c", "echo x; echo y >&2; exit 4"])
    here = psutil.Process()
    before, files = here.children(), here.num_fds()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    watched = threading.Event()
    seen: list[psutil.Process] = []

    def watch() -> None:
        while not watched.wait(0.002):
            seen.extend(here.children())

    watching = threading.Thread(target=watch)
    watching.start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (files + 40, limits[1]))
    try:
        found = run_all([(str(n), command) for n in range(24)], LIMIT_S, str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        watched.set()
        watching.join()
    assert [(one.stdout, one.stderr, one.returncode) for one in found] == [("x\n", "y\n", 4)] * 24
    assert set(seen) <= set(before)
    assert here.num_fds() == files
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_exceeds_its_limit_is_ended(way: Way, tmp_path: Path) -> None:
    mark = Marked()
    [asked] = run_all([("n1", way(SLEEPS))], 2.0, str(tmp_path), mark.env)
    assert (asked.returncode, asked.stdout) == (None, "ready\n")
    until(lambda: not mark.names(), mark.names)

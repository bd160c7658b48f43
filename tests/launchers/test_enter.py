"""A command on a node behaves like a local one: arguments, streams, status, signals."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mnode import processes
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn
from tests.launchers.on_nodes import run_on
from tests.launchers.remote.proxies import SLEEPS, ready
from tests.waiting import until


def test_arguments_arrive_as_they_are(rack: Rack) -> None:
    argv = ["a b", "", "it's", '"$HOME"', "new\nline", "-c", "--", "ü*"]
    script = "import sys; print(ascii(sys.argv[1:]))"
    done = run_on(rack, rack.nodes[0], [sys.executable, "-c", script, *argv])
    assert done.stdout == ascii(argv) + "\n"


def test_streams_environment_and_directory_are_the_callers(rack: Rack, tmp_path: Path) -> None:
    directory = tmp_path / "with blank 'and quote"
    directory.mkdir()
    script = 'cat; printf %s "$MNODE_TEST" >&2; pwd'
    argv, env = ["sh", "-c", script], {**os.environ, "MNODE_TEST": "é x"}
    done = run_on(rack, rack.nodes[0], argv, input="typed\n", cwd=directory, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"typed\n{directory}\n", "é x")


def test_a_directory_missing_on_the_node_becomes_root(rack: Rack) -> None:
    done = run_on(rack, rack.nodes[0], ["pwd"], cwd="/dev/shm")
    assert done.stdout == "/dev/shm\n"
    done = run_on(rack, rack.nodes[0], ["pwd"], cwd=f"/proc/{os.getpid()}")
    assert done.stdout == "/\n"


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -SEGV $$", 139)],
)
def test_the_exit_status_is_passed_on(rack: Rack, script: str, status: int) -> None:
    assert run_on(rack, rack.nodes[0], ["sh", "-c", script]).returncode == status


def test_a_command_that_cannot_run_has_an_error(rack: Rack, tmp_path: Path) -> None:
    done = run_on(rack, rack.nodes[1], ["no-such-program", "x"])
    assert (done.returncode, done.stderr) == (127, "node1: no such command: no-such-program\n")
    (tmp_path / "plain").write_text("text")
    done = run_on(rack, rack.nodes[1], [str(tmp_path / "plain")])
    assert done.returncode == 126
    assert "plain: Permission denied" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_once(rack: Rack, number: signal.Signals) -> None:
    script = (
        "import signal, time; got = []\n"
        f"signal.signal({int(number)}, lambda *_: got.append(1))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.01)\n"
        "time.sleep(0.3); print(len(got))"
    )
    (command,) = rack.commands(rack.nodes[:1], [sys.executable, "-c", script])
    with ready(command) as process:
        process.send_signal(number)
        assert process.communicate(timeout=30)[0] == "1\n"
        assert process.returncode == 0


@pytest.fixture
def _bad_init() -> Iterator[None]:
    """This process adopts orphans and reaps none, like the init of some containers."""
    set_child_subreaper = 36
    libc = ctypes.CDLL(None)
    libc.prctl(set_child_subreaper, 1, 0, 0, 0)
    yield
    libc.prctl(set_child_subreaper, 0, 0, 0, 0)
    for child in processes.children(os.getpid()):
        if processes.has_ended(child):
            os.waitpid(child, 0)


@pytest.mark.usefixtures("_bad_init")
@pytest.mark.parametrize(("group", "stopped"), [(False, False), (True, False), (False, True)])
def test_the_command_dies_and_is_reaped_with_the_entering_process(
    rack: Rack, group: bool, stopped: bool
) -> None:
    (command,) = rack.commands(rack.nodes[:1], SLEEPS)
    with ready(command, start_new_session=True) as process:
        if stopped:
            for one in (process.pid, *processes.descendants(process.pid)):
                os.kill(one, signal.SIGSTOP)
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        process.communicate(timeout=40)  # the sleeper holds the other end
    # A zombie would keep the node from ending.
    pids = ["sh", "-c", "echo /proc/[0-9]*"]
    until(lambda: len(run_on(rack, rack.nodes[0], pids).stdout.split()) == 2)


def test_the_command_dies_with_its_guard(rack: Rack) -> None:
    (entering,) = rack.commands(rack.nodes[:1], SLEEPS)
    with ready(entering) as process:
        [guard] = processes.children(process.pid)
        [command] = processes.children(guard)
        os.kill(guard, signal.SIGKILL)
        until(lambda: processes.has_ended(command))
        assert process.wait(30) == 128 + signal.SIGKILL


def test_a_command_from_before_a_reboot_is_refused(rack: Rack) -> None:
    node = rack.nodes[2]
    (old,) = rack.commands([node], ["uname", "-n"])
    rack.ask(PowerOff(node.name))
    rack.ask(PowerOn(node.name))
    done = subprocess.run(old, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 125
    assert done.stderr.startswith("node2: the node is off, or was booted again")
    assert run_on(rack, node, ["uname", "-n"]).stdout == "node2\n"


def test_a_reused_pid_is_refused(rack: Rack) -> None:
    (command,) = rack.commands(rack.nodes[:1], ["true"])
    place = next(index for index, word in enumerate(command) if word.endswith("enter.py"))
    command[place + 1] = str(os.getpid())
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.split(":")[0]) == (125, "node0")

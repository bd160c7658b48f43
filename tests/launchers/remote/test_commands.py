"""Both ends of a remote command, over a pipe to a shell in place of ssh."""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from pytest_mnode import processes
from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.remote import bridge_server, node_command
from pytest_mnode.launchers.remote.node_command import LOST
from pytest_mnode.protocol.socket_path import reachable
from tests.launchers.remote.proxies import LIMIT_S, REMOTE_END, SLEEPS, Way, leave_files, ready, run
from tests.waiting import until


def test_arguments_streams_environment_and_directory_are_the_callers(
    way: Way, tmp_path: Path
) -> None:
    directory = tmp_path / "with blank 'and quote"
    directory.mkdir()
    argv = ["a b", "", "it's", '"$HOME"', "new\nline", "-c", "--", "ü*"]
    script = (
        "import os, sys; print(ascii(sys.argv[1:])); print(sys.stdin.read());"
        "print(os.getcwd()); sys.stderr.write(os.environ['MNODE_TEST'])"
    )
    env = {**os.environ, "MNODE_TEST": "é x"}
    done = run(way([sys.executable, "-c", script, *argv]), input="typed", cwd=directory, env=env)
    assert done.stdout == f"{argv!a}\ntyped\n{directory}\n"
    assert (done.returncode, done.stderr) == (0, "é x")


def test_a_node_keeps_its_own_environment_and_gets_no_secrets(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's TaskProlog, or PAM, has set the node's; the bridge was started with pytest's."""
    of_pytest = {
        **{"HOME": "/h", "TMPDIR": "/mine", "CI_JOB_TOKEN": "s3", "MY_DATA": "/d"},
        **{"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5_0", "PATH": os.environ["PATH"]},
    }
    own = ("HOME=/home/ada", "TMPDIR=/scratch", "NCCL_IB_HCA=mlx5_3", "UCX_NET_DEVICES=mlx5_3:1")
    with monkeypatch.context() as patched:
        for name in [name for name in os.environ if name not in of_pytest]:
            patched.delenv(name)
        for name, value in of_pytest.items():
            patched.setenv(name, value)
        command = way(["env"], own=own)
    done = run(command, env={**of_pytest, "NCCL_ALGO": "Ring", "OF_THE_JOB": "1"})
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    python = str(Path(sys.executable).parent)
    assert found.pop("PATH") == f"{python}:/usr/local/bin:/usr/bin:/bin"
    assert {n: v for n, v in found.items() if n not in ("USER", "LOGNAME", "LC_CTYPE")} == {
        **{"HOME": "/home/ada", "TMPDIR": "/scratch", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"},
        **{"NCCL_IB_HCA": "mlx5_3", "UCX_NET_DEVICES": "mlx5_3:1", "OF_THE_JOB": "1"},
        "PWD": str(Path.cwd()),
    }


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -SEGV $$", 139)],
)
def test_the_exit_status_is_passed_on(way: Way, script: str, status: int) -> None:
    assert run(way(["sh", "-c", script])).returncode == status


def test_a_missing_command(way: Way) -> None:
    done = run(way(["no-such-command"]))
    assert (done.returncode, done.stderr) == (127, "n1: no such command: no-such-command\n")


def test_a_missing_directory_becomes_root(way: Way, tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    remove = shlex.join(["rmdir", str(directory)])
    command = ["sh", "-c", f"{remove}; exec {shlex.join(way(['pwd']))}"]
    done = run(command, cwd=directory)
    assert (done.stdout, done.stderr, done.returncode) == ("/\n", "", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on(way: Way, number: signal.Signals) -> None:
    caught = f"trap 'echo caught; exit 3' {number.name.removeprefix('SIG')}"
    script = f"{caught}; echo ready; while :; do sleep 0.05; done"
    with ready(way(["sh", "-c", script])) as program:
        program.send_signal(number)
        assert program.communicate(timeout=LIMIT_S)[0] == "caught\n"
        assert program.returncode == 3


def test_large_amounts_of_data_both_ways(way: Way) -> None:
    data = os.urandom(1 << 20) * 8
    done = subprocess.run(way(["cat"]), input=data, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout == data) == (0, True)


def test_a_caller_that_reads_late_gets_all_output(way: Way) -> None:
    """The command blocks on its output for longer than the limit for silence."""
    count = 4 << 20
    script = f"print('ready'); print('x' * {count})"
    with ready(way([sys.executable, "-c", script], silence_s=2.0)) as program:
        time.sleep(3.5)
        assert program.stdout is not None
        assert len(program.stdout.read()) == count + 1
        assert program.wait(LIMIT_S) == 0


def test_input_stops_if_the_command_does_not_read(way: Way) -> None:
    program = subprocess.Popen(way(["sleep", "1"]), stdin=subprocess.PIPE)
    assert program.stdin is not None
    with pytest.raises(BrokenPipeError):
        program.stdin.write(bytes(1 << 28))
    program.wait(LIMIT_S)


class Marked:
    """The environment of a command, by which its processes are found."""

    def __init__(self) -> None:
        self.value = uuid.uuid4().hex
        self.env = {**os.environ, "MNODE_MARK": self.value}

    def names(self) -> list[str]:
        found = []
        for pid in processes.started_with("MNODE_MARK", self.value):
            try:
                found.append(psutil.Process(pid).name())
            except psutil.NoSuchProcess:
                continue
        return found

    def until_none(self) -> None:
        """The processes that end here would run for minutes."""
        until(lambda: not self.names(), self.names, 60.0)


@pytest.fixture
def mark() -> Marked:
    return Marked()


# Ignores all signals that it can, and so does its child, in a separate session.
STUBBORN = (
    "import os, signal, subprocess, sys, time\n"
    "for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(n, signal.SIG_IGN)\n"
    "subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
    "print('ready', flush=True); time.sleep(300)\n"
)


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_command_ends_with_its_local_end(way: Way, mark: Marked, stubborn: bool) -> None:
    argv = [sys.executable, "-c", STUBBORN] if stubborn else ["sh", "-c", "echo ready; sleep 300"]
    with ready(way(argv), env=mark.env, stdin=subprocess.DEVNULL) as program:
        program.kill()
        program.wait()
        mark.until_none()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_command_ends_with_its_remote_end(way: Way, mark: Marked, number: signal.Signals) -> None:
    """A node that shuts down, or an administrator, may end it."""
    script = "trap '' TERM; echo ready; exec sleep 300"
    if number != signal.SIGKILL:  # it can end what is below the command, too
        script = "echo ready; setsid sleep 300"
    with ready(way(["sh", "-c", script]), env=mark.env) as program:
        way.streams.remote_end().send_signal(number)
        program.communicate(timeout=LIMIT_S)
        mark.until_none()


def test_a_command_is_asked_to_end_with_its_connection(way: Way, tmp_path: Path) -> None:
    script = f"trap 'touch {tmp_path}/asked; exit' TERM; echo ready; while :; do sleep 0.05; done"
    with ready(way(["sh", "-c", script])) as program:
        program.kill()
        until((tmp_path / "asked").exists)


def test_background_processes_end_with_the_command(way: Way, mark: Marked) -> None:
    done = run(way(["sh", "-c", "setsid sleep 300 & echo on"]), env=mark.env)
    assert (done.returncode, done.stdout) == (0, "on\n")
    mark.until_none()


def test_what_a_killed_keeper_leaves_is_ended_and_nothing_else(way: Way, mark: Marked) -> None:
    script = "setsid sleep 300 & echo ready; wait"
    with ready(way(["sh", "-c", script]), env=mark.env) as program:
        [keeper] = [one for one in way.streams.below() if one.name() == "mnode-exec"]
        with ready(way.streams.command("n1", SLEEPS)) as other:
            keeper.kill()
            assert program.wait(LIMIT_S) == 128 + signal.SIGKILL
            mark.until_none()
            assert other.poll() is None


def test_silence_ends_both_sides(way: Way, mark: Marked) -> None:
    """The remote end hangs, like behind a cut link: the proxy reports it."""
    apart = f"setsid --wait {shlex.join(REMOTE_END)}"  # no signal to ssh reaches it
    command = way(["sh", "-c", "echo ready; sleep 300"], apart, silence_s=2.0)
    with ready(command, stderr=subprocess.PIPE, env=mark.env) as program:
        remote = way.streams.remote_end()
        remote.suspend()
        _, err = program.communicate(timeout=LIMIT_S)
        assert err == "n1: the connection was lost: no data for 2 s\n"
        assert program.returncode == LOST
        remote.resume()
        mark.until_none()


def test_a_bridge_that_hangs_is_noticed_on_both_sides(way: Way, mark: Marked) -> None:
    with ready(way(SLEEPS, silence_s=2.0), env=mark.env) as program:
        # The shell becomes the remote end after its output.
        until(lambda: "sleep" in mark.names())
        way.streams.bridge().suspend()
        why = "no sign of life for 2 s"
        assert way.streams.events.get(timeout=LIMIT_S) == {"ended": why}
        assert program.wait(LIMIT_S) == LOST, "the bridge is killed"
        until(lambda: "sleep" not in mark.names())  # it would run for 300 s
        with pytest.raises(ClusterError, match=why):
            way.streams.open({"n2": ["true"]})


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("echo 'x@n1: Permission denied (key).' >&2; exit 255", "x@n1: Permission denied (key)."),
        ("exec /no/python -c x", "Python did not start on the node (status 127: sh: 1: exec: /no"),
        ("echo No such account; exit 1", "Python did not start on the node (status 1: No such "),
        ("exit 255", "ssh ended and printed nothing"),
    ],
)
def test_a_failed_start_reports_its_reason(way: Way, shell: str, line: str) -> None:
    assert way.problem(shell).startswith(line)


def test_the_command_ends_with_the_run(way: Way) -> None:
    command = way(SLEEPS)
    with ready(command, stderr=subprocess.PIPE) as program:
        os.kill(way.streams.daemon, signal.SIGKILL)
        _, err = program.communicate(timeout=LIMIT_S)
        assert err == "n1: the run's connection to its nodes has ended\n"
    done = run(command)
    assert done.returncode == LOST
    assert done.stderr == "n1: the run's connection to its nodes has ended\n"


def test_no_variable_appears_in_an_argument_list(way: Way) -> None:
    secret = uuid.uuid4().hex
    with ready(way(SLEEPS), env={**os.environ, "TOKEN": secret}) as program:
        family = [psutil.Process(program.pid), *way.streams.below()]
        assert len(family) >= 5
        assert not [one for one in family if secret in " ".join(one.cmdline())]


def test_a_slow_reader_holds_up_no_other_command(way: Way) -> None:
    """Commands share their node's stream."""
    many = ["sh", "-c", "echo ready; exec head -c 30000000 /dev/zero"]
    with ready(way(many)):
        assert run(way.streams.command("n1", ["echo", "on"])).stdout == "on\n"


def test_a_callers_streams_stay_as_they_were(way: Way) -> None:
    """Other programs have them too."""
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb"), os.fdopen(writes, "wb"):
        run(way(["echo", "x"]), capture_output=False, stdout=writes)
        assert os.get_blocking(writes)


def test_a_request_that_breaks_off_leaves_no_stream_open(way: Way) -> None:
    way(["true"])
    reads, writes = os.pipe()
    with socket.socket(socket.AF_UNIX) as caller, os.fdopen(reads, "rb"):
        with reachable(way.streams.socket) as short:
            caller.connect(short)
        socket.send_fds(caller, [b'{"exec": "n1", '], [writes])
        os.close(writes)
        caller.close()
        assert select.select([reads], [], [], LIMIT_S)[0], "the bridge holds the other end"


def test_a_bridge_that_is_out_of_open_files_refuses_commands_and_goes_on(way: Way) -> None:
    command = way(["echo", "on"])
    bridge = way.streams.bridge().pid
    with leave_files(bridge, 2):
        done = run(command)
    assert (done.returncode, done.stderr) == (
        LOST,
        "n1: out of open files here; raise ulimit -n\n",
    )
    with leave_files(bridge, 0), socket.socket(socket.AF_UNIX) as caller:
        with reachable(way.streams.socket) as short:
            caller.connect(short)
        time.sleep(3 * bridge_server.ACCEPT_AGAIN_S)
    assert run(command).stdout == "on\n"


def test_a_signal_while_the_command_is_asked_for_is_passed_on(tmp_path: Path) -> None:
    """The command may have begun when the end of its request, which is long, was not sent yet."""
    argv = [sys.executable, node_command.__file__, str(tmp_path / "bridge"), "n1"]
    with socket.socket(socket.AF_UNIX) as bridge:
        bridge.bind(argv[2])
        bridge.listen()
        with subprocess.Popen([*argv, *["x" * 100_000] * 10]) as program:
            asked, _ = bridge.accept()
            asked.settimeout(LIMIT_S)
            with asked:
                asked.recv(1)
                program.send_signal(signal.SIGUSR2)
                data = b" "
                while data and not data.endswith(bytes([signal.SIGUSR2])):
                    data = asked.recv(1 << 20)
                assert data, "the process has ended"
                asked.sendall(b"3")
            assert program.wait(LIMIT_S) == 3

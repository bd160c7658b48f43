"""The remote end alone: a command's environment, and the report of its end."""

from __future__ import annotations

import io
import json
import os
import pwd
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode.launchers import node_env as node_env_module
from pytest_mnode.launchers.remote import bootstrap, remote_exec, wire
from pytest_mnode.launchers.remote.command_process import node_env
from pytest_mnode.launchers.remote.node_streams import NodeStreams
from pytest_mnode.launchers.remote.stdio_bridge import why_over
from pytest_mnode.protocol.listening_clock import ListeningClock
from tests.launchers.remote.proxies import LIMIT_S, REMOTE_END
from tests.waiting import until

SET = {"NCCL_DEBUG": "INFO"}
PASSED = {"NCCL_IB_HCA": "mlx5_9", "OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "0"}
DEFAULTS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "fab0"}
OWN = {
    "PATH": f"{Path(sys.executable).parent}:/bin",
    **{"HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada", "TMPDIR": "/scratch"},
    **{"NCCL_IB_HCA": "mlx5_1", "NCCL_DEBUG": "WARN"},
}


def test_a_nodes_own_variables_come_first_and_the_users_replace_them() -> None:
    assert node_env(SET, OWN, PASSED, DEFAULTS) == {
        **OWN,
        **{"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "0"},
        "GLOO_SOCKET_IFNAME": "fab0",
    }


def test_a_step_has_what_slurm_gave_it() -> None:
    """srun has passed variables on already; Slurm took some away, as in a step without GPUs."""
    own = OWN | {"SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "PMI_RANK": "0"}
    expected = OWN | DEFAULTS | {"SLURM_JOB_ID": "7"}
    assert node_env({}, own, PASSED, DEFAULTS) == expected
    del expected["NCCL_DEBUG"]
    removed = {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "other", "SLURM_JOB_ID": "7"}
    assert node_env({}, own, PASSED, DEFAULTS, removed) == expected


def test_a_node_without_a_login_has_its_users_home_and_the_pythons_folder_in_path() -> None:
    found = node_env({}, {"PATH": "/bin"}, {}, {})
    user = pwd.getpwuid(os.getuid())
    assert (found["HOME"], found["USER"]) == (user.pw_dir, user.pw_name)
    assert found["PATH"] == f"{Path(sys.executable).parent}:/bin"
    assert node_env({"HOME": "/mine", "PATH": "/x"}, OWN, {}, {})["HOME"] == "/mine"


def test_what_is_sent_to_a_node() -> None:
    inherited = {
        **{"HOME": "/h", "TMPDIR": "/t", "PATH": "/bin", "CI_JOB_TOKEN": "s", "MINE": "1"},
        **{"NCCL_IB_HCA": "mlx5_9", "HF_TOKEN": "s", "HF_HOME": "/hf", "PYTHONPATH": "/src"},
        **{"SSH_AUTH_SOCK": "/a", "JOBS": "1", "OTHER": "1"},
    }
    environ = inherited | {"JOBS": "2", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": "/scratch"}
    of_the_session = ("SSH_ASKPASS", "DISPLAY", "WAYLAND_DISPLAY", "XDG_SESSION_TYPE")
    environ |= dict.fromkeys(of_the_session, "/x")
    names = {node_env_module.SET: "OTHER", node_env_module.DEFAULTS: "OMP_NUM_THREADS"}
    assert bootstrap.sent(environ | names, inherited) == bootstrap.Sent(
        env={"PYTHONPATH": "/src", "JOBS": "2", "OTHER": "1", "XDG_CACHE_HOME": "/scratch"},
        passed={"NCCL_IB_HCA": "mlx5_9", "HF_HOME": "/hf"},
        defaults={"OMP_NUM_THREADS": "1"},
    )
    del environ["NCCL_IB_HCA"]
    assert bootstrap.sent(environ, inherited).removed == {"NCCL_IB_HCA": "mlx5_9"}


ORDER: dict[str, object] = {"argv": ["true"], "cwd": "/", "where": "n1"}


def of_the_far_end(order: Mapping[str, object], late_s: float = 0.0) -> list[tuple[bytes, bytes]]:
    """Frames that a remote end sends for an order, read `late_s` seconds late."""
    pipe, frames = subprocess.PIPE, wire.Frames()
    found: list[tuple[bytes, bytes]] = []
    sent = json.dumps(order).encode()
    with subprocess.Popen(REMOTE_END, stdin=pipe, stdout=pipe) as program:
        assert program.stdin is not None
        assert isinstance(program.stdout, io.BufferedReader)
        program.stdin.write(bootstrap.source() + wire.frame(wire.ORDER, 7, sent))
        program.stdin.flush()
        time.sleep(late_s)
        assert program.stdout.readline() == wire.HELLO
        while wire.EXIT not in dict(found):
            for kind, number, payload in frames.feed(program.stdout.read1()):
                found.append((kind, payload))
                if kind == wire.OUT:
                    program.stdin.write(wire.taken(number, len(payload)))
                    program.stdin.flush()
        program.stdin.close()
    return found


def test_a_command_that_cannot_be_started_fails_with_the_reason() -> None:
    """A variable cannot hold a NUL byte; any error that prevents a start is reported."""
    frames = dict(of_the_far_end(ORDER | {"env": {"A": "a\0b"}}))
    assert frames[wire.EXIT] == b"125"
    assert frames[wire.ERR] == b"n1: cannot run it: ValueError: embedded null byte\n"


def test_a_directory_that_is_missing_on_the_node_becomes_root() -> None:
    frames = dict(of_the_far_end(ORDER | {"argv": ["pwd"], "cwd": "/no/such directory"}))
    assert (frames[wire.OUT], frames[wire.EXIT]) == (b"/\n", b"0")


def test_frames_are_found_however_their_bytes_arrive() -> None:
    sent = wire.frame(wire.DATA, 70_000, b"x\0y") + wire.frame(wire.BEAT)
    frames, found = wire.Frames(), []
    for byte in sent:
        found += frames.feed(bytes([byte]))
    assert found == [(wire.DATA, 70_000, b"x\0y"), (wire.BEAT, 0, b"")]


def test_a_crash_of_the_remote_end_is_told_and_is_no_success() -> None:
    order = bootstrap.source() + wire.frame(wire.ORDER, 1, b"no json")
    done = subprocess.run(
        REMOTE_END, input=order, capture_output=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"mnode-node: JSONDecodeError: Expecting value")


def test_a_file_is_touched_while_bytes_arrive_and_not_without(tmp_path: Path) -> None:
    alive, frames, beats = tmp_path / "alive", wire.Frames(), 0
    pipe = subprocess.PIPE
    with subprocess.Popen(REMOTE_END, stdin=pipe, stdout=pipe) as program:
        assert program.stdin is not None
        assert isinstance(program.stdout, io.BufferedReader)
        program.stdin.write(bootstrap.source(600.0, str(alive)))
        program.stdin.flush()
        assert program.stdout.readline() == wire.HELLO
        assert alive.exists()
        os.utime(alive, (0, 0))
        while beats < 3:
            beats += len(frames.feed(program.stdout.read1()))
        assert alive.stat().st_mtime == 0
        program.stdin.write(wire.frame(wire.BEAT))
        program.stdin.flush()
        until(lambda: alive.stat().st_mtime > 0)
        program.stdin.close()


def test_a_node_whose_file_system_is_read_only_says_so() -> None:
    done = subprocess.run(
        REMOTE_END,
        input=bootstrap.source(alive="/proc/mnode-alive"),
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (wire.UNUSABLE, b"")
    printed = done.stderr.decode()
    assert printed.startswith("cannot write /proc/mnode-alive: ")
    assert printed.endswith("; mount a writable volume, such as an emptyDir, at /proc\n")
    line = printed.strip()
    assert why_over(done.returncode, [line], greeted=False) == line


def test_a_command_ends_with_its_input_although_its_output_is_still_read() -> None:
    argv = ["sh", "-c", "echo ready; exec sleep 60"]
    order = ORDER | {"argv": argv, "env": dict(os.environ)}
    sent, found = json.dumps(order).encode(), b""
    pipe = subprocess.PIPE
    with subprocess.Popen(REMOTE_END, stdin=pipe, stdout=pipe) as program:
        assert program.stdin is not None
        assert isinstance(program.stdout, io.BufferedReader)
        program.stdin.write(bootstrap.source(600.0) + wire.frame(wire.ORDER, 1, sent))
        program.stdin.flush()
        while b"ready" not in found:
            found += program.stdout.read1()
        program.stdin.close()
        try:
            assert program.wait(LIMIT_S) == 0
        finally:
            program.kill()


def test_a_late_reader_gets_all_output_of_an_ended_command() -> None:
    """The last output waits in a pipe after the command ended, for longer than DRAIN_S."""
    count = wire.ROOM_BYTES + (124 << 10)
    order = ORDER | {"argv": ["head", "-c", str(count), "/dev/zero"], "env": dict(os.environ)}
    frames = of_the_far_end(order, remote_exec.DRAIN_S + 1.5)
    assert sum(len(payload) for kind, payload in frames if kind == wire.OUT) == count
    assert dict(frames)[wire.EXIT] == b"0"


def a_far_end() -> Any:
    """The remote end, without a command."""
    made = object.__new__(remote_exec.RemoteExec)
    made.gone_since, made.silence_s = None, wire.SILENCE_S
    made.out, made.commands, made.beaten = bytearray(), {}, 0.0
    made.clock = ListeningClock()
    made.heard = made.clock.now()
    return made


def test_frames_reach_the_command_of_their_number() -> None:
    end, frame = a_far_end(), wire.frame
    one, other = (Mock(to_child=bytearray(), input_over=False, ahead=10) for _ in range(2))
    end.commands, end.frames, end.touch = {3: one, 4: other}, wire.Frames(), lambda: None

    def hears(*data: bytes | None) -> None:
        for part in data:
            end.stream = Mock(read=lambda part=part: part)
            end.receive()

    hears(frame(wire.DATA, 3, b"typed"), frame(wire.DATA, 9, b"of an ended one"), None)
    hears(frame(wire.TAKEN, 3, (4).to_bytes(4, "big")) + frame(wire.SIGNAL, 3, b"\x0a"))
    assert (one.to_child, one.ahead, one.input_over) == (b"typed", 6, False)
    one.signal.assert_called_once_with(b"\x0a")
    hears(frame(wire.END, 3))
    assert one.input_over
    one.hang_up.assert_not_called()
    hears(frame(wire.HANG_UP, 3))
    one.hang_up.assert_called_once_with()
    other.hang_up.assert_not_called()
    assert (other.to_child, other.ahead, other.input_over) == (b"", 10, False)
    hears(frame(wire.HANG_UP))
    other.hang_up.assert_called_once_with()


@pytest.mark.parametrize("error", [None, OSError])
def test_a_command_that_nobody_waits_for_gets_no_more_input(error: type[OSError] | None) -> None:
    command = Mock(to_child=bytearray(b"typed"), input_over=False, unread=False)
    command.control.shutdown.side_effect = error  # it has ended
    remote_exec.Command.hang_up(command)
    assert (command.to_child, command.input_over, command.unread) == (b"", True, True)
    command.control.shutdown.assert_called_once_with(socket.SHUT_WR)


def test_the_end_of_the_stream_ends_all_commands() -> None:
    end = a_far_end()
    end.commands, end.stream = {3: Mock(), 4: Mock()}, Mock(read=lambda: b"")
    for _ in range(2):
        end.receive()
    for command in end.commands.values():
        command.hang_up.assert_called_once_with()


def test_output_that_is_held_by_a_process_elsewhere_is_not_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command has ended, and this process has its output open."""
    monkeypatch.setattr(remote_exec, "DRAIN_S", 0.1)
    command, kept = remote_exec.Command(3, ORDER | {"argv": ["true"]}), list[int]()
    kept += [os.open(f"/proc/self/fd/{fd}", os.O_WRONLY) for fd in command.outputs]
    frames, end = b"", time.monotonic() + LIMIT_S
    while not command.reported:
        assert time.monotonic() < end
        frames += command.turn({command.control.fileno()})
        time.sleep(0.01)
    command.close()
    for fd in kept:
        os.close(fd)
    assert wire.Frames().feed(frames)[-1] == (wire.EXIT, 3, b"0")


def test_output_of_a_command_that_ended_while_this_program_stood_still_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All time for the output is over once the command's end is known."""
    monkeypatch.setattr(remote_exec, "DRAIN_S", -1.0)
    argv = ["head", "-c", "60000", "/dev/zero"]
    command = remote_exec.Command(3, ORDER | {"argv": argv, "env": dict(os.environ)})
    assert select.select([command.control], [], [], LIMIT_S)[0]
    frames = wire.Frames().feed(command.turn({command.control.fileno()}))
    command.close()
    sizes = [(kind, len(payload)) for kind, _, payload in frames]
    assert sizes == [(wire.OUT, 60000), (wire.EXIT, 1)]


def a_near_end() -> Any:
    """The bridge's end of a stream that carries nothing."""
    made = NodeStreams(wire.SILENCE_S, lambda _: "", lambda *_: None)
    made.take("n1", lambda _: None)
    return made


ENDS: dict[str, tuple[Callable[[], Any], Callable[[Any], None], Callable[[Any], bool]]] = {
    "near": (a_near_end, lambda end: end.look(), lambda end: bool(end.at["n1"].lost)),
    "far": (a_far_end, lambda end: end.beat(), lambda end: end.gone_since is not None),
}


@pytest.mark.parametrize("which", ENDS)
def test_time_in_which_one_end_was_stopped_is_no_silence_of_the_other(which: str) -> None:
    make, beat, gave_up = ENDS[which]
    end = make()
    for stopped_s in (wire.SILENCE_S + 1.0, 3600.0):
        end.clock._read -= stopped_s
        beat(end)
        assert not gave_up(end)
    turns = 0
    while not gave_up(end):
        end.clock._read -= 1.0
        beat(end)
        turns += 1
    assert turns == wire.SILENCE_S - 2 + 1

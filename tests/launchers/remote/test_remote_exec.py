"""The remote end alone: a command's environment, and the report of its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_mnode.launchers.remote import bootstrap, remote_exec, remote_proxy, wire
from pytest_mnode.launchers.remote.command_process import node_env
from pytest_mnode.protocol.listening_clock import ListeningClock
from tests.launchers.remote.proxies import LIMIT_S

SENT = {"HOME": "/home/ada", "CUDA_VISIBLE_DEVICES": "0", "TMPDIR": "/tmp/7"}


def test_gpus_and_temporary_files_are_those_of_the_step() -> None:
    own = {"SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "HOME": "/", "TMPDIR": "/tmp"}
    assert node_env(SENT, own | {"CUDA_VISIBLE_DEVICES": "4,5"}) == {
        "HOME": "/home/ada",
        "CUDA_VISIBLE_DEVICES": "4,5",
        "TMPDIR": "/tmp",
    }
    # Removed by Slurm, for example in a step without GPUs: the controller's values do not replace
    # them.
    assert "CUDA_VISIBLE_DEVICES" not in node_env(SENT, own)


def test_a_pods_own_environment_counts() -> None:
    own = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOME": "/root", "NCCL_IB_HCA": "mlx5_0"}
    assert node_env(SENT, own | {"PYTHONPATH": "/image"}) == {
        **SENT,
        **own,
        "PYTHONPATH": "/image",
    }
    sent = SENT | {"PYTHONPATH": "/tests", "KUBERNETES_SERVICE_HOST": "of the controller's pod"}
    assert node_env(sent, own | {"PYTHONPATH": "/image"}) == {
        **SENT,
        **own,
        "PYTHONPATH": "/tests",
    }


def test_without_slurm_variables_are_as_sent() -> None:
    own = {"CUDA_VISIBLE_DEVICES": "4,5", "TMPDIR": "/tmp", "PATH": "/bin"}
    assert node_env(SENT, own) == SENT
    assert node_env(SENT | {"SSH_CONNECTION": "a"}, own | {"SSH_CONNECTION": "b"}) == (
        SENT | {"SSH_CONNECTION": "b"}
    )


def of_the_far_end(order: Mapping[str, object], late_s: float = 0.0) -> list[tuple[bytes, bytes]]:
    """Frames that a remote end sends for an order, read `late_s` seconds late."""
    program = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", bootstrap.BOOTSTRAP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(bootstrap.source() + wire.frame(wire.ORDER, json.dumps(order).encode()))
    program.stdin.flush()
    time.sleep(late_s)
    _, _, data = program.stdout.read().partition(wire.HELLO)
    program.stdin.close()
    program.wait(LIMIT_S)
    program.stdout.close()
    return wire.Frames().feed(data)


def test_a_command_that_cannot_be_started_fails_with_the_reason() -> None:
    """A variable cannot hold a NUL byte; any error that prevents a start is reported."""
    order = {"argv": ["true"], "env": {"A": "a\0b"}, "cwd": "/", "where": "n1"}
    frames = dict(of_the_far_end(order))
    assert frames[wire.EXIT] == b"125"
    assert frames[wire.ERR] == b"n1: cannot run it: ValueError: embedded null byte\n"


def test_a_crash_of_the_remote_end_is_told_and_is_no_success() -> None:
    program = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", bootstrap.BOOTSTRAP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    frame = wire.frame(wire.ORDER, b"no json")
    _, errors = program.communicate(bootstrap.source() + frame, timeout=LIMIT_S)
    assert program.returncode == 1
    assert errors.startswith(b"mnode-exec: JSONDecodeError: Expecting value")


def test_a_late_reader_gets_all_output_of_an_ended_command() -> None:
    """The last output waits in a pipe after the command ended, for longer than DRAIN_S."""
    count = wire.ROOM_BYTES + (124 << 10)
    order = {"argv": ["head", "-c", str(count), "/dev/zero"], "env": dict(os.environ)}
    frames = of_the_far_end({**order, "cwd": "/", "where": "n1"}, remote_exec.DRAIN_S + 1.5)
    assert sum(len(payload) for kind, payload in frames if kind == wire.OUT) == count
    assert dict(frames)[wire.EXIT] == b"0"


def a_near_end() -> Any:
    """The local end of a command that runs and prints nothing."""
    made = object.__new__(remote_proxy.RemoteProxy)
    made.greeted, made.status, made.lost = True, None, ""
    made.sent, made.printed_bytes, made.beaten = bytearray(), bytearray(), 0.0
    return made


def a_far_end() -> Any:
    """The remote end of a command that runs and reads nothing."""
    made = object.__new__(remote_exec.RemoteExec)
    made.child, made.status, made.gone_since = 0, None, None
    made.out, made.to_child, made.beaten = bytearray(), bytearray(), 0.0
    return made


ENDS: dict[str, tuple[Callable[[], Any], Callable[[Any], None], Callable[[Any], bool]]] = {
    "near": (a_near_end, lambda end: end.beat(False), lambda end: bool(end.lost)),
    "far": (a_far_end, lambda end: end.beat(), lambda end: end.gone_since is not None),
}


@pytest.mark.parametrize("which", ENDS)
def test_time_in_which_one_end_was_stopped_is_no_silence_of_the_other(which: str) -> None:
    make, beat, gave_up = ENDS[which]
    end = make()
    end.clock = ListeningClock()
    end.heard = end.clock.now()
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

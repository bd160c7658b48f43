"""Processes that an agent ends for a node's part of a world."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_mnode import processes
from pytest_mnode.agent import agent
from pytest_mnode.agent.agent import WorldPart
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import BindingOrder, Launch, Shape, WorldInfo


def launch(namespace_pid: int | None = None) -> Launch:
    world = WorldInfo("w1", Shape(1, 1), ("n0",))
    return Launch(
        *("n0", world, 0, "127.0.0.1", 1, "gloo", 0, {}, BindingOrder()),
        namespace_pid=namespace_pid,
    )


@pytest.mark.parametrize("kernel_lists_children", [True, False])
@pytest.mark.parametrize("enters", [True, False])
def test_a_part_whose_fork_was_never_reported_ends_without_a_signal(
    monkeypatch: pytest.MonkeyPatch, *, enters: bool, kernel_lists_children: bool
) -> None:
    """Its pid is 0: for kill() the agent's own process group, in /proc the parent of init."""
    signalled: list[tuple[int, int]] = []
    if not kernel_lists_children:
        monkeypatch.setattr(processes, "_CHILDREN", Path("/nonexistent"))
    monkeypatch.setattr(os, "kill", lambda *sent: signalled.append(sent))
    ours, theirs = Pipe.pair()
    part = WorldPart(launch(1 if enters else None), ours)
    part.end()
    assert not part.has_ended(), "the report of the fork may still arrive"
    monkeypatch.setattr(agent, "LIMIT_S", -1.0)
    part.end()
    assert part.has_ended()
    assert signalled == []
    os.set_blocking(theirs.fileno(), False)
    with pytest.raises(EOFError):  # the launcher ends with its pipe, wherever it is
        theirs.receive()


def test_the_pipe_to_an_ended_part_is_closed() -> None:
    ours, theirs = Pipe.pair()
    launcher = subprocess.Popen(["sleep", "60"])
    part = WorldPart(launch(), ours, pid=launcher.pid)
    part.end()
    assert part.has_ended()
    launcher.wait(60.0)
    os.set_blocking(theirs.fileno(), False)
    with pytest.raises(EOFError):
        theirs.receive()


def test_a_process_that_outlives_sigkill_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In state D, it ends when the kernel lets it go, perhaps never."""
    monkeypatch.setattr(processes, "descendants", lambda _: [2**22 + 1])
    monkeypatch.setattr(processes, "has_ended", lambda _: False)
    ours, theirs = Pipe.pair()
    part = WorldPart(launch(), ours, pid=2**22)  # no process has such large pids
    part.end()
    assert not part.has_ended()
    monkeypatch.setattr(agent, "LIMIT_S", -1.0)
    part.end()
    assert part.has_ended()
    theirs.close()

"""Processes that an agent ends for a node's part of a world."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_mnode import processes
from pytest_mnode.agent import world_part
from pytest_mnode.agent.world_part import WorldPart
from pytest_mnode.protocol.pipe import Pipe


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
    part = WorldPart(cast(Any, None), ours, enters)
    part.end()
    assert not part.has_ended(), "the report of the fork may still arrive"
    monkeypatch.setattr(world_part, "LIMIT_S", -1.0)
    part.end()
    assert part.has_ended()
    assert signalled == []
    os.set_blocking(theirs.fileno(), False)
    with pytest.raises(EOFError):  # the launcher ends with its pipe, wherever it is
        theirs.receive()


def test_the_pipe_to_an_ended_part_is_closed() -> None:
    ours, theirs = Pipe.pair()
    launcher = subprocess.Popen(["sleep", "60"])
    part = WorldPart(cast(Any, None), ours, enters=False, pid=launcher.pid)
    part.end()
    assert part.has_ended()
    launcher.wait(10.0)
    os.set_blocking(theirs.fileno(), False)
    with pytest.raises(EOFError):
        theirs.receive()


def test_a_process_that_outlives_sigkill_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In state D, it ends when the kernel lets it go, perhaps never."""
    monkeypatch.setattr(processes, "descendants", lambda _: [2**22 + 1])
    monkeypatch.setattr(processes, "has_ended", lambda _: False)
    ours, theirs = Pipe.pair()
    part = WorldPart(cast(Any, None), ours, False, pid=2**22)  # no process has such large pids
    part.end()
    assert not part.has_ended()
    monkeypatch.setattr(world_part, "LIMIT_S", -1.0)
    part.end()
    assert part.has_ended()
    theirs.close()

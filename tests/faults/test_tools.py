"""Programs that faults run until they are undone."""

from __future__ import annotations

import os

import pytest

from pytest_mnode import processes
from pytest_mnode.faults import tools


def test_a_program_that_stays_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must end with its input, and may be stopped."""
    monkeypatch.setattr(tools, "LIMIT_S", 2.0)
    program = ["sh", "-c", "echo ready; exec sleep 300 <&- >&- 2>&-"]
    before = processes.children(os.getpid())
    undo = tools.running(program, "a fault")
    [pid] = set(processes.children(os.getpid())).difference(before)
    undo()
    assert processes.has_ended(pid)

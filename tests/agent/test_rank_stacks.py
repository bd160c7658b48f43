"""Ranks and their children that write no stacks, for example inside a C call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode import processes
from pytest_mnode.agent import rank_stacks
from pytest_mnode.protocol.messages import BindingOrder, Launch, Shape, TakeStacks, WorldInfo
from pytest_mnode.protocol.rank_files import STACK_SIGNAL
from tests.waiting import soon

# Both take the signal, and write nothing.
RANK = f"""
import os, signal, time
signal.signal({int(STACK_SIGNAL)}, lambda *_: None)
if os.fork():
    print(flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("silent", ["_LIMIT_S", "_CHILD_LIMIT_S"])
def test_stacks_that_are_never_written_are_not_awaited(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_LIMIT_S", "_CHILD_LIMIT_S"):
        monkeypatch.setattr(rank_stacks, limit, 0.2 if limit == silent else 0.0)
    world = WorldInfo("w1", Shape(1, 1), ("n0",), log_dir=str(tmp_path))
    (tmp_path / "w1").mkdir()
    launch = Launch("n0", world, 0, "127.0.0.1", 1, "gloo", 0, {}, BindingOrder())
    rank = subprocess.Popen([sys.executable, "-S", "-c", RANK], stdout=subprocess.PIPE)
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        with soon():
            taken = rank_stacks.take(TakeStacks("n0", "w1"), launch, {0: rank.pid})
        assert (taken.texts, taken.children) == ({0: ""}, {0: ""})
    finally:
        for pid in (*processes.descendants(rank.pid), rank.pid):  # each keeps the pipe open
            processes.kill(pid)
        rank.communicate()

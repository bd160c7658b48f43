"""Ranks and their children that write no stacks, for example inside a C call."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_stacks_are_awaited_until_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, own, dump = tmp_path / "stacks", os.getpid(), "File a.py, line 1\n"
    timers: list[threading.Timer] = []

    def dumps_later(*_: object) -> None:
        timers.append(threading.Timer(0.03, path.write_text, [dump]))
        timers[-1].start()

    monkeypatch.setattr(processes, "kill", dumps_later)
    monkeypatch.setattr(processes, "descendants", lambda _: [own])
    monkeypatch.setattr(rank_stacks, "_writes_stacks", lambda _: True)
    for limit in ("_LIMIT_S", "_CHILD_LIMIT_S"):
        monkeypatch.setattr(rank_stacks, limit, 60.0)
    files: Any = {3: SimpleNamespace(stacks=path)}
    with soon():
        assert rank_stacks._python_stacks(files, {3: own}) == {3: dump}
        found = rank_stacks._stacks_of_children(path, 1)
    assert found.endswith(f":\n{dump}")
    for timer in timers:
        timer.join()


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

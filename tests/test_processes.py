"""Processes found by their environment, and ended reliably."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import processes
from pytest_mnode.launchers.remote import command_process
from tests.waiting import soon, until

STAYS = "import time; print(flush=True); time.sleep(60)"
DEAF = f"import signal; signal.signal(15, signal.SIG_IGN); {STAYS}"
SLOW = (
    "import signal, sys, time; "
    f"signal.signal(15, lambda *_: (time.sleep(0.1), sys.exit(7))); {STAYS}"
)


def test_only_processes_with_the_exact_value_are_ended_or_killed() -> None:
    value = uuid.uuid4().hex
    marks = [{"MARK": value}] * 3 + [{"MARK": f"{value}0"}, {"MARK0": value}]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", text], env={**os.environ, **mark}, stdout=subprocess.PIPE
        )
        for text, mark in zip([DEAF, SLOW, STAYS, STAYS, STAYS], marks, strict=True)
    ]
    try:
        deaf, slow, meant, longer, other = started
        for one in started:  # a starting program has no environment for a moment
            assert one.stdout is not None
            one.stdout.readline()
        assert set(processes.started_with("MARK", value)) == {deaf.pid, slow.pid, meant.pid}
        processes.end_started_with("MARK", value, grace_s=1.5)
        ended = [one.wait(60) for one in (deaf, slow, meant)]
        assert ended == [-signal.SIGKILL, 7, -signal.SIGTERM]
        assert (longer.poll(), other.poll()) == (None, None)
    finally:
        for one in started:
            one.kill()
            one.communicate()


def test_every_child_that_has_ended_is_reaped_with_its_status() -> None:
    """In a process of its own, which has no other children; one is in a session of its own."""
    program = """
import os, signal, sys, time
from pytest_mnode import processes
third = os.fork() or os.setsid() or os._exit(3)
stays = os.fork() or sys.exit(time.sleep(30))
killed = os.fork() or sys.exit(time.sleep(30))
os.kill(killed, signal.SIGKILL)
found = []
while len(found) < 2:
    found += processes.reap()
assert dict(found) == {third: 3 << 8, killed: signal.SIGKILL}, found
assert processes.reap() == []
os.kill(stays, signal.SIGKILL)
os.waitpid(stays, 0)
assert processes.reap() == []
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)


def test_an_ended_process_counts_as_ending_reaped_or_not() -> None:
    child = subprocess.Popen(["true"])
    until(lambda: processes.has_ended(child.pid))
    assert processes.is_ending(child.pid)
    child.wait(60.0)
    assert processes.is_ending(child.pid)
    assert not processes.is_ending(os.getpid())


class _Stuck:
    """A program in state D: SIGKILL takes effect when the kernel lets it go, perhaps never."""

    returncode = None
    waited: tuple[float | None, ...] = ()

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        self.waited += (timeout,)
        if timeout is None:
            pytest.fail("waits without a limit")
        time.sleep(timeout)
        raise subprocess.TimeoutExpired("stuck", timeout)


def test_a_program_that_outlives_sigkill_is_not_waited_for() -> None:
    ends = subprocess.Popen(["sleep", "60"])
    stuck: list[Any] = [_Stuck(), _Stuck()]
    with soon():
        processes.end_programs([*stuck, ends], 0.5)
    assert [one.returncode for one in stuck] == [None, None]
    assert ends.wait(60.0) == -signal.SIGKILL


@pytest.mark.parametrize("among", ["started", "below"])
def test_processes_that_outlive_sigkill_are_not_waited_for(
    among: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "kill", lambda *_: None)
    monkeypatch.setattr(processes, "reap", list)
    monkeypatch.setattr(processes, "started_with", lambda *_: [7])
    monkeypatch.setattr(processes, "descendants", lambda _: [7])
    began = time.monotonic()
    with soon():
        if among == "started":
            processes.end_started_with("MARK", "7", grace_s=0.1, limit_s=0.3)
        else:
            processes.kill_descendants(limit_s=0.3)
    assert time.monotonic() - began >= 0.3


def test_no_wait_after_a_kill_is_without_a_limit() -> None:
    """In all of the package: `wait()` follows no `kill()`."""
    package = Path(processes.__file__).parent
    pattern = re.compile(r"kill\w*\([^\n]*\)\n\s+[\w.]+\.wait\(\)")
    found = [path.name for path in package.rglob("*.py") if pattern.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize("lists_children", [True, False])
def test_descendants_are_found_on_every_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, lists_children: bool
) -> None:
    if not lists_children:  # as without CONFIG_PROC_CHILDREN
        monkeypatch.setattr(processes, "_CHILDREN", tmp_path / "children")
        monkeypatch.setattr(command_process, "CHILDREN", str(tmp_path / "children"))
    code = """
import subprocess, sys, time
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
time.sleep(60)
"""
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert started.stdout is not None
    child = int(started.stdout.readline())
    try:
        assert processes.descendants(started.pid) == [child]
        assert command_process.descendants(started.pid) == [child]
        assert {started.pid, child} <= set(processes.descendants(os.getpid()))
    finally:
        processes.kill(child)
        started.kill()
        started.communicate()


def test_pids_of_zero_and_below_are_never_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """kill(0) would signal this process's own group, and kill(-1) every process."""
    signalled: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *sent: signalled.append(sent))
    for pid in (0, -1, -7, 1):
        processes.kill(pid)
    processes.kill(7, signal.SIGTERM)
    assert signalled == [(7, signal.SIGTERM)]


@pytest.mark.parametrize("enabled", [True, False])
def test_kept_processes_are_not_checked_again(enabled: bool) -> None:
    before, was_enabled = gc.get_freeze_count(), gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with contextlib.suppress(ImportError), processes.made_to_stay():
            assert not gc.isenabled()
            made: list[list[int]] = [[] for _ in range(1000)]
            raise ImportError
        assert gc.get_freeze_count() >= before + len(made)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()

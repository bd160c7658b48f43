"""Small things about Linux processes: dying with a parent, finding and killing trees."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pytest_mnode.machine import namespaces

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when `parent`, which forked it, ends."""
    namespaces.die_with_parent()
    # A parent of 0 is one outside this PID namespace: alive, or the namespace is about to end.
    if os.getppid() not in (parent, 0):
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ended, so that none escapes a clean-up."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Pids of the direct children of all threads of `pid`; empty where it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(word) for word in (task / "children").read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    """Pids of all descendants of `pid`, parents before children."""
    found = children(pid)
    for child in found:
        found += [c for c in children(child) if c not in found]
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap() -> list[tuple[int, int]]:
    """(pid, wait status) of every child that has ended."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def kill_descendants(limit_s: float = 5.0) -> None:
    """SIGKILL and reap everything below this process (which adopts orphans), within `limit_s`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        below = descendants(os.getpid())
        if not below:
            return
        for pid in below:
            kill(pid)
        reap()
        time.sleep(0.005)


def marked(variable: str, value: str) -> list[int]:
    """Pids of other processes that were started with this variable in their environment."""
    wanted, own, found = f"{variable}={value}".encode(), os.getpid(), []
    for entry in Path("/proc").iterdir():
        pid = int(entry.name) if entry.name.isdecimal() else own
        with contextlib.suppress(OSError):
            if pid != own and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def end_marked(variable: str, value: str, grace_s: float = 1.0, limit_s: float = 5.0) -> None:
    """SIGTERM to all of them, and SIGKILL to those that are there after `grace_s`."""
    began = time.monotonic()
    for pid in marked(variable, value):
        kill(pid, signal.SIGTERM)
    while (left := marked(variable, value)) and time.monotonic() < began + limit_s:
        if time.monotonic() >= began + grace_s:
            for pid in left:
                kill(pid)
        time.sleep(0.02)


def _state_letter(pid: int) -> str:
    """As ps shows it: R, S, D, T, Z …; X where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def has_ended(pid: int) -> bool:
    """Whether nothing of a process runs any more, waited for or not."""
    return _state_letter(pid) in "XZ"


def state(pid: int) -> str:
    """What keeps a process from answering, as far as the kernel tells; "" for nothing."""
    return {
        "T": "its process is stopped (SIGSTOP)",
        "t": "its process is stopped by a debugger",
        "D": "its process waits inside the kernel and cannot be interrupted",
        "Z": "its process has ended",
        "X": "its process is gone",
    }.get(_state_letter(pid), "")


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor above 2 that is not in `keep`."""
    low = 3
    for fd in (*sorted(fd for fd in keep if fd > 2), os.sysconf("SC_OPEN_MAX")):
        os.closerange(low, fd)
        low = fd + 1


def run_and_exit(function: Callable[[], None]) -> NoReturn:
    """What a forked child does: `function`, then nothing more of the code it was forked from."""
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def threads() -> list[str]:
    """Names of this process's kernel threads, the main one first."""
    names = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda p: int(p.name)):
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text().strip())
    return names

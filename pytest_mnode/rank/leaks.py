"""What a test left behind in its rank: child processes, threads, process groups, memory."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_mnode import processes
from pytest_mnode.rank.process_group import LAST_GROUP

HOST_MEMORY_LIMIT_BYTES = 256 * 2**20
DEVICE_MEMORY_LIMIT_BYTES = 32 * 2**20
_SETTLE_S = 0.2
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


@dataclass(frozen=True, slots=True)
class Things:
    """What a rank holds at one moment, or the difference of two moments."""

    children: frozenset[int] = frozenset()
    threads: frozenset[int] = frozenset()
    groups: frozenset[str] = frozenset()
    timers: frozenset[int] = frozenset()
    host_bytes: int = 0
    device_bytes: int = 0

    def __sub__(self, other: Things) -> Things:
        return Things(
            self.children - other.children,
            self.threads - other.threads,
            self.groups - other.groups,
            self.timers - other.timers,
            self.host_bytes - other.host_bytes,
            self.device_bytes - other.device_bytes,
        )

    def __add__(self, other: Things) -> Things:
        return Things(
            self.children | other.children,
            self.threads | other.threads,
            self.groups | other.groups,
            self.timers | other.timers,
            self.host_bytes + other.host_bytes,
            self.device_bytes + other.device_bytes,
        )

    def without(self, gone: Things) -> Things:
        """This less what must be gone. Memory that was freed may still be the process's."""
        less = self - gone
        return replace(less, host_bytes=self.host_bytes, device_bytes=self.device_bytes)


def things(own_group: object) -> Things:
    """What this process holds now; `own_group` is the process group that is not the test's."""
    return Things(
        frozenset(_children()),
        frozenset(_threads()),
        frozenset(_groups(own_group)),
        frozenset(t for t in _TIMERS if signal.getitimer(t)[0]),
        _host_bytes(),
        _device_bytes(),
    )


def leaks_since(allowed: Things, own_group: object) -> list[str]:
    """Lines for the user, one for each thing that is here and is not allowed."""
    now = _settled(allowed, own_group)
    left = now - allowed
    names = _threads()
    return [
        *(f"child process {pid} ({_command(pid)})" for pid in sorted(left.children)),
        *(f"thread {names.get(ident, 'ended by now')!r}" for ident in sorted(left.threads)),
        *(f"process group {name!r}" for name in sorted(left.groups)),
        *(f"an alarm due in {signal.getitimer(t)[0]:.1f} s" for t in sorted(left.timers)),
        *_memory(allowed, left),
    ]


def _settled(allowed: Things, own_group: object) -> Things:
    """What is here after what is about to end had a moment to do so."""
    end = time.monotonic() + _SETTLE_S
    while True:
        now = things(own_group)
        left = now - allowed
        if not (left.children or left.threads) or time.monotonic() > end:
            return now
        time.sleep(0.01)


def _children() -> list[int]:
    """Children that run; one that has ended and was not waited for holds nothing."""
    try:  # one system call where there are none, as after nearly every test
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    return [pid for pid in processes.children(os.getpid()) if not processes.has_ended(pid)]


def _threads() -> dict[int, str]:
    """Names of the threads that run Python, however they were started, by ident."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = {ident: names.get(ident, f"{ident:#x}") for ident in sys._current_frames()}
    return {ident: name for ident, name in found.items() if name != LAST_GROUP}


def _groups(own_group: object) -> list[str]:
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None:
        return []
    return [str(name) for group, name in module._world.pg_names.items() if group is not own_group]


def _memory(allowed: Things, left: Things) -> list[str]:
    lines = []
    if left.host_bytes > HOST_MEMORY_LIMIT_BYTES:
        gc.collect()
        grown = _host_bytes() - allowed.host_bytes
        if grown > HOST_MEMORY_LIMIT_BYTES:
            lines.append(
                f"{grown / 2**20:.0f} MiB of memory (more than "
                f"{HOST_MEMORY_LIMIT_BYTES / 2**20:.0f} MiB is taken for a leak)"
            )
    if left.device_bytes > DEVICE_MEMORY_LIMIT_BYTES:
        gc.collect()
        grown = _device_bytes() - allowed.device_bytes
        if grown > DEVICE_MEMORY_LIMIT_BYTES:
            lines.append(f"{grown / 2**20:.0f} MiB of device memory")
    return lines


def _host_bytes() -> int:
    """Resident anonymous memory of this process."""
    with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123  read twice a test
        pages = file.read(200).split()
    return (int(pages[1]) - int(pages[2])) * _PAGE_BYTES


def _device_bytes() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_allocated())


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return b" ".join(words).decode(errors="replace").strip()[:80] or "unnamed"

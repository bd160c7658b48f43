"""What a test left behind in its rank: child processes, threads, process groups, memory."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.world import process

HOST_MEMORY_LIMIT_BYTES = 256 * 2**20
DEVICE_MEMORY_LIMIT_BYTES = 32 * 2**20
_SETTLE_S = 0.2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a rank holds at one moment."""

    children: frozenset[int]
    threads: frozenset[int]
    groups: frozenset[str]
    host_bytes: int
    device_bytes: int


def snapshot() -> Snapshot:
    return Snapshot(
        frozenset(process.children(os.getpid())),
        frozenset(_threads()),
        frozenset(_groups()),
        _host_bytes(),
        _device_bytes(),
    )


def leaks_since(before: Snapshot, group_may_stay: bool) -> list[str]:
    """Lines for the user, one for each thing that is here and was not before."""
    _settle(before)
    lines = [
        f"child process {pid} ({_command(pid)})"
        for pid in sorted(set(process.children(os.getpid())) - before.children)
    ]
    lines += [
        f"thread {name!r}"
        for ident, name in sorted(_threads().items())
        if ident not in before.threads
    ]
    if not group_may_stay:
        lines += [f"process group {name!r}" for name in sorted(set(_groups()) - before.groups)]
    lines += _memory(before)
    return lines


def _settle(before: Snapshot) -> None:
    """Give threads and children that are about to end a moment to do so."""

    def quiet() -> bool:
        return (
            set(process.children(os.getpid())) <= before.children
            and set(_threads()) <= before.threads
        )

    _wait_for(quiet, _SETTLE_S)


def _wait_for(condition: Callable[[], bool], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def _threads() -> dict[int, str]:
    """Python threads that somebody started; those of native libraries are theirs."""
    return {
        thread.ident: thread.name
        for thread in threading.enumerate()
        if thread.ident is not None and not isinstance(thread, threading._DummyThread)
    }


def _groups() -> list[str]:
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is None:
        return []
    return [str(name) for name in module._world.pg_names.values()]


def _memory(before: Snapshot) -> list[str]:
    lines = []
    if _host_bytes() - before.host_bytes > HOST_MEMORY_LIMIT_BYTES:
        gc.collect()
        grown = _host_bytes() - before.host_bytes
        if grown > HOST_MEMORY_LIMIT_BYTES:
            lines.append(
                f"{grown / 2**20:.0f} MiB of memory (more than "
                f"{HOST_MEMORY_LIMIT_BYTES / 2**20:.0f} MiB is taken for a leak)"
            )
    if _device_bytes() - before.device_bytes > DEVICE_MEMORY_LIMIT_BYTES:
        gc.collect()
        grown = _device_bytes() - before.device_bytes
        if grown > DEVICE_MEMORY_LIMIT_BYTES:
            lines.append(f"{grown / 2**20:.0f} MiB of device memory")
    return lines


def _host_bytes() -> int:
    """Resident anonymous memory of this process."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


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
    return b" ".join(words).decode(errors="replace").strip()[:80] or "ended, not waited for"

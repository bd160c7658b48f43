"""Threads of this process that its forked children would lack, by Python name or library.

A forked child has only the thread that called fork. Locks that other threads held stay locked in it
for ever, and a pool of workers waits for workers that do not exist.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FORKS_WELL = ("libarrow.so", "libscipy_openblas", "libopenblas")
"""Libraries whose threads restart in a child, or are not needed there. Tests fork with each:
tests/machine/test_own_threads.py."""
_CUDA = "libcuda.so"
_RUNTIMES = ("libc.so", "libc-", "libstdc++", "libpthread", "libgcc_s", "libm.so", "ld-linux", "[")
_TASKS = Path("/proc/self/task")
_MACHINE = os.uname().machine
_MOST_STACK_BYTES = 1 << 14
_SETTLE_S = 0.5


def lost_by_fork() -> list[str]:
    """Descriptions of the threads, besides the main one, that make a fork unsafe."""
    main = int(Path("/proc/self").readlink().name)
    others = [int(task.name) for task in _TASKS.iterdir() if int(task.name) != main]
    if not others:
        return []
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: Counter[str] = Counter()
    code = _code()
    for tid in sorted(others):
        if tid in python:
            found[f"thread {python[tid]!r}"] += 1
        elif (library := _library(tid, code)) is not None and not library.startswith(_FORKS_WELL):
            found[f"a thread in {library or 'an unknown library'}"] += 1
    of_cuda = [what for what in found if what.startswith(f"a thread in {_CUDA}")]
    if of_cuda and _cuda_starts_in_a_child():
        for what in of_cuda:
            del found[what]
    many = {what: what.removeprefix("a ").replace(" ", "s ", 1) for what in found}
    return [what if n == 1 else f"{n} {many[what]}" for what, n in found.items()]


def _cuda_starts_in_a_child() -> bool:
    """Whether a forked child can start the CUDA driver, and torch has not used CUDA here.

    torch.cuda.device_count() and is_available() query NVML, which starts a thread in libcuda.so
    that no child needs.

    Source: CUDA Driver API, cuInit; torch.cuda, _is_in_bad_fork.
    """
    with warnings.catch_warnings(action="ignore"):  # Python warns of threads at a fork
        pid = os.fork()
    if pid == 0:
        failed = True
        with contextlib.suppress(Exception):
            torch: Any = sys.modules.get("torch")
            bad = torch is not None and torch.cuda._is_in_bad_fork()
            failed = bad or ctypes.CDLL(f"{_CUDA}.1").cuInit(0) != 0
        os._exit(int(failed))
    return os.waitpid(pid, 0)[1] == 0


@dataclass(frozen=True, slots=True)
class _Code:
    """Memory that holds the code of a library."""

    start: int
    end: int
    library: str


def _code() -> list[_Code]:
    found = []
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        place, rights, _, _, _, *path = line.split(maxsplit=5)
        name = path[0].rpartition("/")[2] if path else ""
        if "x" in rights and name and not name.startswith(_RUNTIMES):
            start, end = (int(word, 16) for word in place.split("-"))
            found.append(_Code(start, end, name))
    return found


def _library(tid: int, code: Sequence[_Code]) -> str | None:
    """Library in which a thread waits; "" if it keeps running, None if it ended."""
    end = time.monotonic() + _SETTLE_S
    while time.monotonic() < end:
        try:
            fields = (_TASKS / str(tid) / "syscall").read_text().split()
        except OSError:
            return "" if (_TASKS / str(tid)).exists() else None
        if len(fields) > 2:
            return _innermost(int(fields[-2], 16), code)
        time.sleep(0.01)  # the thread is running
    return ""


def _innermost(pointer: int, code: Sequence[_Code]) -> str:
    """Library of the innermost return address on a stack of this process; "" if there is none.

    Words that only look like one are skipped: before a return address there is a call instruction.
    """
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        for (word,) in struct.iter_unpack("P", os.pread(memory, _MOST_STACK_BYTES, pointer)):
            for of in code:
                if of.start <= word < of.end and _ends_in_call(os.pread(memory, 8, word - 8)):
                    return of.library
    except OSError:  # the thread ended, and its stack was unmapped
        pass
    finally:
        os.close(memory)
    return ""


def _ends_in_call(code: bytes) -> bool:
    """Whether these 8 bytes end in a call instruction; False on unknown processors."""
    if _MACHINE == "x86_64":
        indirect = any(code[-n] == 0xFF and code[1 - n] >> 3 & 7 == 2 for n in (2, 3, 4, 6, 7))
        return code[-5] == 0xE8 or indirect
    if _MACHINE == "aarch64":
        word = int.from_bytes(code[-4:], "little")
        return word >> 26 == 0x25 or word & 0xFFFFFC1F == 0xD63F0000  # BL, BLR
    return False

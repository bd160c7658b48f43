"""Records the collectives that a rank calls through `torch.distributed`, in a mapped file.

The file can be read when the rank cannot answer: while it hangs, holds the GIL or is dead.
Only the public names of `torch.distributed` are wrapped, not the functions that its own modules
call, so that a collective is recorded once. Point-to-point calls are not recorded. Collectives that
C++ starts (DistributedDataParallel, functional collectives) are only counted: see operation_counts.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import mmap
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.outcome.call_record import (
    COUNT_SLOTS,
    INSIDE,
    LIMITED,
    PENDING,
    RAISED,
    RETURNED,
    SEPARATOR,
    SLOT_BYTES,
    SLOTS,
)
from pytest_mnode.outcome.stacks import is_hidden, is_pythons, is_torchs
from pytest_mnode.rank.call_arguments import COLLECTIVES, arguments

_GROUP_CHARS, _ARGUMENT_BYTES, _PLACE_BYTES = 200, 120, 120
"""Room in a slot for these texts, beside numbers and names."""
_SHORT_S = 600.0
"""NCCL's default timeout, the shortest default; a test may expect a shorter timeout to expire."""


class Recorder:
    """The last calls of one rank in one test; a ring of SLOTS lines."""

    current: Recorder | None = None
    """The recorder of this process, if it records."""

    def __init__(self, path: Path, size: int) -> None:
        """size: ranks of the world. Nothing is recorded if the default group has another size:
        then ranks may have made several default groups, each for some of the ranks."""
        with path.open("w+b") as file:
            file.truncate((SLOTS + COUNT_SLOTS) * SLOT_BYTES)
            self._map = mmap.mmap(file.fileno(), (SLOTS + COUNT_SLOTS) * SLOT_BYTES)
        self._lock = threading.Lock()
        self._size = size
        self._groups: dict[tuple[int, str], tuple[str, bool]] = {}
        self._counts: dict[str, int] = {}
        self._counted: list[str] | None = []
        self._number = 0
        os.register_at_fork(after_in_child=self.stop)  # a child's calls are not this rank's

    def begin(self) -> None:
        """Delete the calls of the previous test, and start recording."""
        if self._number or self._counted != []:
            self._map[:] = bytes(len(self._map))
        self._groups, self._counts, self._counted, self._number = {}, {}, [], 0
        Recorder.current = self

    def enter(self, op: str, named: Mapping[str, Any]) -> int | None:
        """Record a call that begins; returns its number, None if it is not recorded."""
        group = named.get("group")
        if group is dist.GroupMember.NON_GROUP_MEMBER or named.get("use_local_synchronization"):
            return None
        if dist.get_world_size() != self._size:
            return None
        key, short = self._group(group or dist.group.WORLD)
        limited = short or (op == "monitored_barrier" and named.get("timeout") is not None)
        mode = "async_op" if named.get("async_op") else ""
        words = _fit(arguments(op, named), _ARGUMENT_BYTES)
        place = _fit(_place() + _handled(), _PLACE_BYTES)
        with self._lock:
            number = self._number = self._number + 1
            seq = self._counts[key] = self._counts.get(key, 0) + 1
        state = LIMITED if limited else INSIDE
        self._write(number % SLOTS, state, str(number), str(seq), key, op, mode, words, place)
        return number

    def leave(self, number: int, state: str) -> None:
        """Record that a call ended, unless the ring no longer holds it."""
        at = number % SLOTS * SLOT_BYTES
        limited = state == PENDING and self._map[at] == ord(LIMITED)
        if self._number - number < SLOTS and not limited:
            self._map[at] = ord(state)

    def count(self, group: Any, operations: int) -> None:
        """Record how many operations a group has begun, of the first COUNT_SLOTS groups."""
        if dist.get_world_size() != self._size:
            return
        key, _ = self._group(group)
        with self._lock:
            counted = self._counted
            if counted is not None and key not in counted and len(counted) < COUNT_SLOTS:
                counted.append(key)
            if counted is not None and key in counted:
                self._write(SLOTS + counted.index(key), key, str(operations))

    def leave_counts(self) -> None:
        """Record no counts until the next test.

        NCCL counts a batch of sends and receives as a collective, and ranks need not make equal
        numbers of them. Source: torch, ProcessGroupNCCL::startCoalescing.
        """
        with self._lock:
            self._counted = None
            self._map[SLOTS * SLOT_BYTES :] = bytes(COUNT_SLOTS * SLOT_BYTES)

    def _write(self, slot: int, *words: str) -> None:
        data = SEPARATOR.join(words).encode(errors="replace")[:SLOT_BYTES]
        self._map[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = data.ljust(SLOT_BYTES, b"\0")

    def stop(self) -> None:
        """Stop until the next test, because calls after an error do not follow the test's order."""
        Recorder.current = None

    def _group(self, group: Any) -> tuple[str, bool]:
        """Name and ranks of a group, and whether its timeout is short; cached per test."""
        name = group.group_name
        found = self._groups.get((id(group), name))
        if found is None:
            ranks = format_cpulist(dist.get_process_group_ranks(group))
            # A group whose ranks are not recorded cannot have a missing rank.
            text = f"{name} {ranks if len(ranks) <= _GROUP_CHARS else 'many'}"
            key = "" if group is dist.group.WORLD else text
            found = self._groups[id(group), name] = key, _timeout_s(group) < _SHORT_S
        return found


def _timeout_s(group: Any) -> float:
    """The timeout of the group's collectives in seconds; infinite if not known."""
    with contextlib.suppress(Exception):  # some backends lack it, and it has no public name
        backend = group._get_backend(group._device_types[0])
        return float(backend.options._timeout.total_seconds())
    return math.inf


def _fit(text: str, most_bytes: int) -> str:
    return text.encode(errors="replace")[:most_bytes].decode(errors="ignore")


def install() -> None:
    """Wrap the public functions, before the test modules import any of them by name."""
    for name in COLLECTIVES:  # older torch lacks some of the names
        if hasattr(dist, name):
            setattr(dist, name, _recorded(name, getattr(dist, name)))
    # torch's own functions for objects call it by the second name.
    dist.batch_isend_irecv = distributed_c10d.batch_isend_irecv = _uncounted(dist.batch_isend_irecv)


def _uncounted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if (recorder := Recorder.current) is not None:
            recorder.leave_counts()
        return function(*args, **kwargs)

    call.__module__ = "torch.distributed"  # where pickle finds it
    return call


def _recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    parameters = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        recorder = Recorder.current
        if recorder is None or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        named = dict(zip(parameters, args, strict=False))
        named.update(kwargs)
        try:
            number = recorder.enter(name, named)
        except Exception:  # invalid arguments, which torch will refuse with its own message
            number = None
        if number is None:
            return function(*args, **kwargs)
        try:
            value = function(*args, **kwargs)
        except BaseException:
            recorder.leave(number, RAISED)
            raise
        recorder.leave(number, RETURNED if _is_complete(name, named) else PENDING)
        return value

    call.__module__ = "torch.distributed"  # where pickle finds it
    return call


def _is_complete(name: str, named: Mapping[str, Any]) -> bool:
    """Whether the collective has ended when the call returns: only on CPUs, without async_op."""
    value = named.get(COLLECTIVES[name])
    first = value[0] if isinstance(value, list | tuple) and value else value
    return not named.get("async_op") and getattr(first, "is_cpu", True)


def _place() -> str:
    """The calling line outside of torch and of Python's own modules."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_torchs(file) and not is_pythons(file):
            return f"{file.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return f"thread {threading.current_thread().name}"


def _handled() -> str:
    """The error that made the rank call this, in an except or finally block; "" without one."""
    error = sys.exception()
    if error is None:
        return ""
    code = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    if not code or is_hidden(code[0][0]):
        return ""
    own = [at for at in code if not is_torchs(at[0]) and not is_pythons(at[0])]
    file, line = (own or code)[-1]
    text = traceback.format_exception_only(error)[-1].partition("\n")[0].replace(SEPARATOR, " ")
    return f", after {file.rpartition('/')[2]}:{line} raised {text}"

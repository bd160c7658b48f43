"""Records what a rank calls through `torch.distributed`, in a mapped file.

The file can be read when the rank cannot answer: while it hangs, holds the GIL or is dead.
Of collectives only the public names of `torch.distributed` are wrapped, not the functions that its
own modules call, so that a collective is recorded once. Sends and receives are recorded also where
torch makes them itself, such as for objects and batches.
DistributedDataParallel and functional collectives begin theirs in C++, and on a device the call
returns at once, so that no stack shows in which one a rank waits. The backend counts them all, and
the numbers are recorded.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import sys
import threading
import traceback
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from time import sleep  # a test may replace time.sleep
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.outcome.call_record import (
    COUNT_SLOTS,
    HANDLES,
    INSIDE,
    LIMITED,
    NOT_COMPARED,
    PENDING,
    RAISED,
    RETURNED,
    SEPARATOR,
    SLOT_BYTES,
    SLOTS,
    channel,
    compared,
)
from pytest_mnode.outcome.stacks import is_hidden, is_pythons, is_torchs
from pytest_mnode.protocol.messages import Made
from pytest_mnode.protocol.rank_files import new_map

COLLECTIVES = {
    "all_gather": "tensor_list",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_object": "",
    "all_gather_single": "input_tensor",
    "all_reduce": "tensor",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "barrier": "",
    "broadcast": "tensor",
    "broadcast_object_list": "object_list",
    "gather": "tensor",
    "gather_object": "",
    "monitored_barrier": "",
    "new_group": "",
    "reduce": "tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_single": "input",
    "reduce_scatter_tensor": "input",
    "scatter": "tensor",
    "scatter_object_list": "",
}
"""Recorded collectives, and the argument that must be equal in all ranks of the group."""
MESSAGES = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
"""Recorded sends and receives, and the argument that is the rank at the other end."""
_LIST_ITEMS = 16
"""How many tensors of a list are recorded."""


def arguments(op: str, named: Mapping[str, Any]) -> str:
    """The arguments that must be equal in all ranks, as text; "(here …)" may differ."""
    words = []
    if op in MESSAGES:
        return f"of {_tensor(named['tensor'])}"
    if op == "new_group":
        ranks = named.get("ranks")
        return "of all ranks" if ranks is None else f"of ranks {format_cpulist(ranks)}"
    if (value := named.get(COLLECTIVES[op])) is not None:
        words.append(f"of {_values(op, value)}")
    if "reduce" in op:
        reduce_op = named.get("op", dist.ReduceOp.SUM)
        kind = getattr(reduce_op, "op", reduce_op)  # an operation with a factor has `op`
        words.append(f"with {getattr(kind, 'name', kind)}")
    if op in ("broadcast", "broadcast_object_list", "scatter", "scatter_object_list"):
        words.append(f"from rank {rank_of(named, 'src') or 0}")  # as in torch, if none was given
    elif op in ("reduce", "gather", "gather_object"):
        words.append(f"to rank {rank_of(named, 'dst') or 0}")
    return " ".join(words)


def _values(op: str, value: Any) -> str:
    if op == "broadcast_object_list":
        return f"{len(value)} objects"
    if op.startswith("all_to_all"):  # the number of elements may differ between ranks
        tensors = value if isinstance(value, list | tuple) else [value]
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        return f"{dtype} (here {' '.join(map(_tensor, tensors[:_LIST_ITEMS]))})"
    if isinstance(value, list | tuple):
        texts = list(dict.fromkeys(_tensor(tensor) for tensor in value[:_LIST_ITEMS]))
        return f"{len(value)} × {texts[0]}" if len(texts) == 1 else f"{len(value)}: {texts}"
    return _tensor(value)


def _tensor(tensor: torch.Tensor) -> str:
    return _tensor_text(tensor.shape, tensor.dtype)


@functools.lru_cache
def _tensor_text(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"[{','.join(map(str, shape))}] {str(dtype).removeprefix('torch.')}"


def rank_of(named: Mapping[str, Any], name: str) -> int | None:
    """The rank in the world that one of two arguments gives, by world or by group; else None."""
    in_group = named.get(f"group_{name}")
    if in_group is None:
        return None if (rank := named.get(name)) is None else int(rank)
    group = named.get("group") or dist.group.WORLD
    assert group is not None
    return int(dist.get_global_rank(group, in_group))


_GROUP_CHARS, _ARGUMENT_BYTES, _PLACE_BYTES = 200, 120, 120
"""Room in a slot for these texts, beside numbers and names."""
_MOST_MADE = 256
"""Most groups and channels whose calls are compared after a test that passed."""
_SHORT_S = 600.0
"""NCCL's default timeout, the shortest default; a test may expect a shorter timeout to expire."""


class Recorder:
    """The last calls of one rank in one test; a ring of SLOTS lines."""

    current: Recorder | None = None
    """The recorder of this process, if it records."""

    def __init__(self, path: Path, size: int) -> None:
        """size: ranks of the world. Nothing is recorded if the default group has another size:
        then ranks may have made several default groups, each for some of the ranks."""
        self._map = new_map(path, (SLOTS + COUNT_SLOTS) * SLOT_BYTES)
        self._lock = threading.Lock()
        self._size = size
        self._groups: dict[tuple[int, str], tuple[str, bool]] = {}
        self._counts: dict[str, int] = {}
        self._digests: dict[str, int] = {}
        self.handles: WeakKeyDictionary[dist.Work, tuple[int, str]] = WeakKeyDictionary()
        """The calls that returned these handles."""
        self._counted: list[str] | None = []
        self._number = 0
        os.register_at_fork(after_in_child=self.stop)  # a child's calls are not this rank's

    def begin(self) -> None:
        """Delete the calls of the previous test, and start recording."""
        slots = min(self._number + 1, SLOTS) if self._counted == [] else SLOTS + COUNT_SLOTS
        self._map[: slots * SLOT_BYTES] = bytes(slots * SLOT_BYTES)
        with self._lock:
            self._groups, self._counts, self._counted, self._number = {}, {}, [], 0
            self._digests = {}
        self.handles.clear()
        Recorder.current = self

    def enter(self, op: str, named: Mapping[str, Any]) -> tuple[int, str] | None:
        """Record a call that begins; returns its number and group, None if it is not recorded."""
        group = named.get("group")
        if group is dist.GroupMember.NON_GROUP_MEMBER or named.get("use_local_synchronization"):
            return None
        if dist.get_world_size() != self._size:
            return None
        group = group or dist.group.WORLD
        key, short = self._group(group)
        limited = short or (op == "monitored_barrier" and named.get("timeout") is not None)
        mode = "async_op" if named.get("async_op") else ""
        words = arguments(op, named)
        if op in MESSAGES:
            key, digest = _channel(group, op, named), 0
        else:
            # gloo gathers tensors of unequal sizes, although torch's documentation excludes them.
            equal = words.partition("] ")[2] if op == "gather" else compared(words)
            digest = zlib.crc32(f"{op} {equal}".encode(errors="replace"))
        place = _fit(_place() + _handled(), _PLACE_BYTES)
        with self._lock:
            number = self._number = self._number + 1
            seq = self._counts[key] = self._counts.get(key, 0) + 1
            if (before := self._digests.get(key, 0)) != NOT_COMPARED:
                self._digests[key] = (31 * before + digest) & 0xFFFFFFFF
        state = LIMITED if limited else INSIDE
        words = _fit(words, _ARGUMENT_BYTES)
        self._write(number % SLOTS, state, str(number), str(seq), key, op, mode, words, place)
        return number, key

    def made(self) -> Made | None:
        """The calls since `begin`; None if they cannot be compared with those of other ranks.

        Collectives of compiled code are not recorded, and a rank may compile less than others.
        """
        if len(self._counts) > _MOST_MADE or _has_compiled():
            return None
        with self._lock:  # a thread of the test may still make calls
            return tuple((key, count, self._digests[key]) for key, count in self._counts.items())

    def leave(self, entered: tuple[int, str], state: str) -> None:
        """Record that a call ended, unless the ring no longer holds it."""
        number, key = entered
        if state == RAISED:
            self._digests[key] = NOT_COMPARED
        at = number % SLOTS * SLOT_BYTES
        limited = state in (INSIDE, PENDING) and self._map[at] == ord(LIMITED)
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
    # torch's own functions for objects and batches call these by the second name.
    for name in MESSAGES:
        wrapped = _recorded(name, getattr(dist, name))
        setattr(dist, name, wrapped)
        setattr(distributed_c10d, name, wrapped)
    dist.Work.wait = _waiting(dist.Work.wait)  # type: ignore[method-assign]
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
        if recorder is None or torch.compiler.is_compiling() or _inside.message:
            return function(*args, **kwargs)
        named = dict(zip(parameters, args, strict=False))
        named.update(kwargs)
        try:
            entered = recorder.enter(name, named)
        except Exception:  # invalid arguments, which torch will refuse with its own message
            entered = None
        if entered is None:
            return function(*args, **kwargs)
        try:
            _inside.message = name in MESSAGES
            value = function(*args, **kwargs)
        except BaseException:
            recorder.leave(entered, RAISED)
            raise
        finally:
            _inside.message = False
        recorder.leave(entered, RETURNED if _is_complete(name, named) else PENDING)
        if isinstance(value, dist.Work):
            recorder.handles[value] = entered
        return value

    call.__module__ = "torch.distributed"  # where pickle finds it
    return call


def _waiting(wait: Callable[..., bool]) -> Callable[..., bool]:
    """`Work.wait`, which records that the rank waits for the end of the call, unless it is given a
    timeout, and what the call ended with."""

    @functools.wraps(wait)
    def call(work: dist.Work, *args: Any, **kwargs: Any) -> bool:
        __tracebackhide__ = True
        recorder = Recorder.current
        entered = None if recorder is None else recorder.handles.get(work)
        if recorder is None or entered is None:
            return wait(work, *args, **kwargs)
        if not (args or kwargs):
            recorder.leave(entered, INSIDE)
        try:
            value = wait(work, *args, **kwargs)
        except BaseException:
            recorder.leave(entered, RAISED)
            raise
        recorder.leave(entered, PENDING)
        return value

    return call


class _Inside(threading.local):
    """message: whether this thread is in a send or receive, which calls another one."""

    message = False


_inside = _Inside()


def _has_compiled() -> bool:
    """Whether torch has compiled code in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])


def _channel(group: Any, op: str, named: Mapping[str, Any]) -> str:
    """The channel of a send or receive. Only gloo tells messages apart by tag."""
    name = "" if group is dist.group.WORLD else group.group_name
    tag = int(named.get("tag") or 0) if "gloo" in dist.get_backend(group) else 0
    me, other = dist.get_rank(), rank_of(named, MESSAGES[op])
    source, target = (me, other) if MESSAGES[op] == "dst" else (other, me)
    assert target is not None
    return channel(name, tag, source, target)


def _is_complete(name: str, named: Mapping[str, Any]) -> bool:
    """Whether the call has ended when it returns: only on CPUs, without a handle."""
    if name in HANDLES:
        return False
    value = named.get(COLLECTIVES.get(name, "tensor"))
    first = value[0] if isinstance(value, list | tuple) and value else value
    return not named.get("async_op") and getattr(first, "is_cpu", True)


def _place() -> str:
    """The calling line outside of torch and of Python's own modules."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_torchs(file) and not is_pythons(file) and file != __file__:
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


OPERATION_COUNTS = "mnode-operation-counts"
"""Name of the thread."""
_PERIOD_S = 0.25


def start_counts() -> None:
    """Record the counts from now on, in a thread: the main thread may wait for its device."""
    if all(thread.name != OPERATION_COUNTS for thread in threading.enumerate()):
        threading.Thread(target=_count_for_ever, name=OPERATION_COUNTS, daemon=True).start()


def record_counts() -> None:
    """Record the counts once."""
    recorder = Recorder.current
    if recorder is None or not dist.is_initialized():
        return
    groups: list[Any] = list(distributed_c10d._world.pg_map)
    for group in groups:
        # Not every backend counts, and the group may be destroyed meanwhile.
        with contextlib.suppress(RuntimeError, ValueError, KeyError):
            recorder.count(group, group._get_sequence_number_for_group())


def _count_for_ever() -> None:
    while True:
        sleep(_PERIOD_S)
        record_counts()

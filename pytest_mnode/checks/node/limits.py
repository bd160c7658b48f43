"""Limits of a process: shared memory, memory that it may lock, files that it may have open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from pytest_mnode.checks.node.disk import SHM, enough, room
from pytest_mnode.criteria.preflight.answers import Directory, NodeSurvey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import Bytes, BytesOrUnlimited, Section, Some
from pytest_mnode.spec.quantity import SIZE

_MEMLOCK, _OPEN_FILES = "memory that a process may lock", "files that a process may have open"
_IPC_LOCK, _HOW = "processes with CAP_IPC_LOCK", "why memory is not limited"
_UNLIMITED = float((1 << 63) - 1)
"""Value of an absent limit, which every bound accepts: the most that a process could address."""


class Limits(Section):
    """Limits of the system for a rank. What is left out is not promised."""

    shm_bytes: Bytes | None = Field(None, alias="shm")
    """Size of /dev/shm."""
    shm_free_bytes: Bytes | None = Field(None, alias="shm_free")
    """Free part of /dev/shm."""
    memlock_bytes: BytesOrUnlimited | None = Field(None, alias="memlock")
    """How much memory a process may lock, for RDMA and pinned buffers."""
    ipc_lock: Literal[True] | None = None
    """Processes have CAP_IPC_LOCK: a container has to be given it."""
    open_files: Some | None = None
    """How many files a process may have open."""


@check("preflight.limits")
class SharedMemorySuffices(SurveyCheck):
    """Is this node's /dev/shm as large and as free as promised?

    NCCL and data loaders crash where it is not.
    """

    promise: Limits
    alone = True

    def directories(self) -> Iterator[Directory]:
        yield Directory(SHM, SHM)

    def rows(self, node: NodeSurvey) -> Iterator[Row]:
        yield from room(node, SHM, SHM)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        promise = self.promise
        for key, what, least in (
            ("shm", "size", promise.shm_bytes),
            ("shm_free", "free", promise.shm_free_bytes),
        ):
            if least is not None:
                source = f"{self.key}.{key} {SIZE.text(least)}"
                yield enough(rows, SHM, what, least, source, key)


@check("preflight.limits")
class MemoryCanBeLocked(SurveyCheck):
    """May a process on this node lock as much memory as promised?

    RDMA registers no buffer beyond RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK. For root of
    a machine the limit counts, because root's capabilities prove nothing about other users.
    """

    promise: Limits
    parts = ("limits",)

    def rows(self, node: NodeSurvey) -> Iterator[Row]:
        limits = node.machine.limits
        assert limits is not None  # it is one of `parts`
        limit, how = limits.memlock_bytes, ""
        if limit is None:
            how = "unlimited"
        elif limits.ipc_lock and not limits.admin:
            how = f"CAP_IPC_LOCK, which lifts its limit of {limit} B"
        device = "memlock (ulimit -l, LimitMEMLOCK=, or IPC_LOCK of a container)"
        yield row(_MEMLOCK, _UNLIMITED if how else limit, "B", device=device)
        yield row(_HOW, how)
        device = "CAP_IPC_LOCK (securityContext.capabilities.add: [IPC_LOCK])"
        has = None if limits.ipc_lock is None else int(limits.ipc_lock)
        yield row(_IPC_LOCK, has, device=device, why="its capabilities cannot be read")

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        if (least := self.promise.memlock_bytes) is not None:
            size = None if isinstance(least, str) else least
            source = f"{self.key}.memlock {least if size is None else SIZE.text(size)}"
            limit, part = _UNLIMITED if size is None else size, "memlock"
            note = ", ".join(str(one.value) for one in rows.of(_HOW))
            yield rows.at_least(_MEMLOCK, limit, "B", part=part, source=source, note=note)
        if self.promise.ipc_lock:
            yield rows.at_least(_IPC_LOCK, 1, source=f"{self.key}.ipc_lock true")


@check("preflight.limits")
class FilesCanBeOpen(SurveyCheck):
    """May a process on this node have as many files open as promised?

    Every peer and every shard needs open files.
    """

    promise: Limits
    needs = "open_files"
    parts = ("limits",)

    def rows(self, node: NodeSurvey) -> Iterator[Row]:
        limits = node.machine.limits
        assert limits is not None  # it is one of `parts`
        value = _UNLIMITED if limits.open_files is None else limits.open_files
        yield row(_OPEN_FILES, value, device="nofile (ulimit -n, LimitNOFILE=)")

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        if (least := self.promise.open_files) is not None:
            yield rows.at_least(_OPEN_FILES, least, part="open_files")

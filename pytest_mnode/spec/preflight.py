"""Promises about the nodes themselves, before anything runs on them: one key per question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, GetCoreSchemaHandler, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from pytest_mnode.evidence.check import Check, catalogue, on_late_check
from pytest_mnode.spec.fields import (
    AbsolutePath,
    Bytes,
    BytesOrUnlimited,
    Count,
    OnOff,
    Page,
    Setting,
    Some,
)
from pytest_mnode.spec.inventory import Criterion, Inventory

_KEY = "criteria.preflight"
_KINDS: dict[str, Any] = {}
"""Types of promises by their key, of the keys that checks added."""

Part = Literal[
    "code", "python", "torch", "packages", "nccl", "driver", "firmware", "kernel", "sysctl"
]
StoragePath = Literal["datasets", "checkpoints", "scratch"]


class AcceleratorHealth(Page):
    """Accelerators are as `accelerators` says, and in the state of each given key."""

    ecc: OnOff | None = None
    """Error correction of their memory."""
    ecc_errors_at_most: Count | None = None
    """Uncorrected memory errors of one accelerator since its driver was loaded."""
    persistence: OnOff | None = None
    """The driver stays loaded between jobs."""
    throttling: Literal["none"] | None = None
    """No clock is held down by heat, power or hardware."""
    mig: OnOff | None = None
    """Multi-Instance GPU mode."""
    remapped_rows: Literal["none"] | None = None
    """No remapping of a memory row has failed, and none waits for a reset."""


class RdmaPromise(Page):
    """The RDMA devices of `fabric` exist, and their ports are ACTIVE."""

    gid_types: tuple[Literal["IB", "RoCE v1", "RoCE v2"], ...] | None = Field(None, min_length=1)
    """Each port has a GID of one of these types."""
    errors_at_most: Count | None = None
    """By how much all error counters of a node together may rise during preflight."""


class KernelLogPromise(Page):
    """The kernel has logged no failure of a device since boot: GPUs (Xid), PCIe, NICs, memory."""

    corrected_at_most: Count = 100
    """Number of corrected errors of PCIe (AER) and memory (EDAC) that is tolerated."""
    link_downs_at_most: Count = 3
    """How often one link that was up may go down; drivers do that while a node boots."""


class StoragePromise(Page):
    """The paths of `storage` are the same files on all nodes."""

    shared: tuple[StoragePath, ...] = ("datasets", "checkpoints")
    """Which of them are one file system for all nodes."""
    writable: tuple[StoragePath, ...] = ("checkpoints", "scratch")
    """Which of them a job may write to."""
    sample_files: Some = 8
    """Number of files of the datasets that are compared, the first by name."""
    sample_size_bytes: Bytes = Field(1 << 20, alias="sample_size")
    """Size of the head of each file that is read."""


class Limits(Page):
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


class FreeDisk(Page):
    """Free space on a file system."""

    path: AbsolutePath
    """A path on the file system."""
    free_bytes: Bytes = Field(alias="free")
    """How much is free for a user without privileges, such as 10 GB."""


class EnvironmentPromise(Page):
    """Ranks find torchrun's variables, and no setting that restricts a backend."""

    allowed: tuple[Setting, ...] = ()
    """Settings of NCCL, gloo and torch that belong to this cluster: NAME, or NAME=VALUE."""


class PreflightCriterion(Criterion):
    """What holds on every node before anything is run. What is left out is not promised.

    Checks add their keys: see `pytest_mnode.evidence.check`.
    """

    same: tuple[Part, ...] | None = Field(None, min_length=1)
    """Parts that are the same on all nodes; sysctl: kernel settings that networks depend on."""
    accelerators: AcceleratorHealth | None = None
    rdma: RdmaPromise | None = None
    kernel_log: KernelLogPromise | None = None
    pcie: Literal["full"] | None = None
    """PCIe links of accelerators and of the fabric's NICs have the full width of card and slot;
    links of NICs the full speed too. An idle accelerator may run slower: `devices` judges it."""
    gpudirect: Literal["peermem", "dma-buf", "either"] | None = None
    """How NICs reach the memory of accelerators."""
    storage: StoragePromise | None = None
    limits: Limits | None = None
    disk: tuple[FreeDisk, ...] | None = Field(None, min_length=1)
    """Free space on each node."""
    environment: EnvironmentPromise | None = None

    @field_validator("same")
    @classmethod
    def _once(cls, parts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if parts is not None and len(set(parts)) < len(parts):
            raise ValueError(f"[{', '.join(parts)}] lists one twice; accepted: each once")
        return parts

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Built at the first use of a spec: modules of checks may import any other."""
        for one in catalogue():
            cls.add(one)
        return handler(source)

    @classmethod
    def add(cls, one: type[Check]) -> bool:
        """Add a check's key, and whether it is new; raises ValueError for one of another type."""
        name, kind = one.key.removeprefix("preflight."), one.promise_type()
        if name in cls.model_fields:
            if _KINDS.get(name, kind) != kind:
                raise ValueError(f"check {one.__name__}: {one.key} has another type of promise")
            return False
        _KINDS[name] = kind
        field = FieldInfo.from_annotation(kind | None)
        field.default, field.description = None, one.promise_doc() or None
        cls.model_fields[name] = field
        cls.__annotations__[name] = kind | None
        return True

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """One line for each promise that cannot be right."""
        for key in dict.fromkeys(one.key for one in catalogue()):
            promise = getattr(self, key.removeprefix("preflight."))
            for one in catalogue() if promise is not None else ():
                if one.key == key:
                    yield from (f"criteria.{key}{text}" for text in one(promise).doubts(cluster))
        yield from self._without_subject(cluster)

    def _without_subject(self, cluster: Inventory) -> Iterator[str]:
        if not cluster.accelerators.per_node:
            for key in ("accelerators", "gpudirect"):
                if getattr(self, key) is not None:
                    yield f"{_KEY}.{key}: given, but accelerators.per_node is 0"
            for part in sorted({"nccl", "driver"}.intersection(self.same or ())):
                yield f"{_KEY}.same: {part}, but accelerators.per_node is 0"
        yield from self._rdma(cluster)
        storage = self.storage
        if storage is not None:
            if cluster.storage is None:
                yield f"{_KEY}.storage: given, but storage names no path"
            elif "datasets" in storage.writable:
                yield f"{_KEY}.storage.writable: datasets: preflight will write a file there"

    def _rdma(self, cluster: Inventory) -> Iterator[str]:
        if self.rdma is None:
            return
        kind = cluster.fabric.kind
        if kind == "ethernet":
            yield f"{_KEY}.rdma: given, but fabric.kind is ethernet, which is TCP"
        wrong = [t for t in self.rdma.gid_types or () if (t == "IB") is not (kind == "infiniband")]
        if wrong and kind in ("infiniband", "roce"):
            yield f"{_KEY}.rdma.gid_types: {', '.join(wrong)}, which ports of {kind} do not have"


def _add_late(one: type[Check]) -> None:
    if _KINDS and PreflightCriterion.add(one):
        PreflightCriterion.model_rebuild(force=True)


on_late_check(_add_late)

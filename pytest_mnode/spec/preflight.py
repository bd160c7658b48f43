"""Promises about the nodes themselves, before anything runs on them: one key per question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

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
    Seconds,
    Setting,
    Some,
)
from pytest_mnode.spec.inventory import Criterion, Inventory
from pytest_mnode.spec.quantity import DURATION, SIZE

_KEY = "criteria.preflight"
_STALL_S = 5.0
"""A look-up that takes this long is about to run into torchrun's and resolvers' own limits."""
_USELESS_SKEW_S = 5.0
_FEW_BYTES = 2 << 20
_KINDS: dict[str, Any] = {}
"""Types of promises by their key, of the keys that checks added."""

NetworkName = Literal["fabric", "management"]
Part = Literal[
    "code", "python", "torch", "packages", "nccl", "driver", "firmware", "kernel", "sysctl"
]
StoragePath = Literal["datasets", "checkpoints", "scratch"]


class Reachable(Page):
    """Every node opens TCP connections to the first node, and to every other on each network."""

    within_s: Seconds = Field(2.0, alias="within")
    """A connection is open within this time."""
    master_port: Annotated[int, Field(strict=True, ge=1, le=65535)] | None = None
    """MASTER_PORT of jobs, such as 29500; left out: a free port of the first node."""
    networks: tuple[NetworkName, ...] = Field(("fabric",), min_length=1)
    """Networks on which a node reaches every other."""


class Names(Page):
    """Host names and addresses of all nodes are resolved quickly and correctly, on every node."""

    within_s: Seconds = Field(1.0, alias="within")
    """One look-up, forward or reverse, takes no longer."""


class Interfaces(Page):
    """The interfaces of `fabric` and `management` exist and are up: there is no bound to set."""


class Speed(Page):
    """The interfaces of `fabric` and `management` run at their line_rate."""

    at_least_fraction: Annotated[float, Field(strict=True, gt=0, le=1)] = 1.0
    """Fraction of line_rate, by the kernel's value or the queue that shapes an emulated link."""


class MtuPromise(Page):
    """Interfaces have the mtu of their network, and full-size packets pass between all nodes."""

    networks: tuple[NetworkName, ...] = Field(("fabric",), min_length=1)
    """Networks to test; each needs its mtu."""


class Payload(Page):
    """Data that a node sends by TCP arrive unchanged: no wire changes a byte past checksums."""

    size_bytes: Bytes = Field(4 << 20, alias="size")
    """Bytes for each partner: all other nodes if there are up to 5 nodes, else three."""
    within_s: Seconds = Field(5.0, alias="within")
    """Limit for all payloads to arrive; those that have not arrived are inconclusive."""
    networks: tuple[NetworkName, ...] = Field(("fabric",), min_length=1)
    """Networks to test."""


class Clocks(Page):
    """The clocks of the nodes agree."""

    skew_s: Seconds = Field(alias="skew")
    """Largest distance of a node's clock from the middle one, such as 50 ms."""


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

    reachable: Reachable | None = None
    names: Names | None = None
    interfaces: Interfaces | None = None
    speed: Speed | None = None
    mtu: MtuPromise | None = None
    payload: Payload | None = None
    clocks: Clocks | None = None
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
        yield from self._lax()

    def _without_subject(self, cluster: Inventory) -> Iterator[str]:
        yield from self._networks(cluster)
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

    def _networks(self, cluster: Inventory) -> Iterator[str]:
        for key in ("reachable", "mtu", "payload"):
            asked = getattr(self, key)
            if asked is None or "management" not in asked.networks:
                continue
            if cluster.management is None:
                yield f"{_KEY}.{key}.networks: management, which the spec does not describe"
            elif key == "mtu" and cluster.management.mtu_bytes is None:
                yield f"{_KEY}.mtu.networks: management, and management.mtu is not given"

    def _rdma(self, cluster: Inventory) -> Iterator[str]:
        if self.rdma is None:
            return
        kind = cluster.fabric.kind
        if kind == "ethernet":
            yield f"{_KEY}.rdma: given, but fabric.kind is ethernet, which is TCP"
        wrong = [t for t in self.rdma.gid_types or () if (t == "IB") is not (kind == "infiniband")]
        if wrong and kind in ("infiniband", "roce"):
            yield f"{_KEY}.rdma.gid_types: {', '.join(wrong)}, which ports of {kind} do not have"

    def _lax(self) -> Iterator[str]:
        names, clocks, speed = self.names, self.clocks, self.speed
        payload = self.payload
        if payload is not None and payload.size_bytes < _FEW_BYTES:
            shown = SIZE.text(payload.size_bytes)
            yield f"{_KEY}.payload.size: {shown}: a wire that changes a byte in 256 KiB may pass"
        if names is not None and names.within_s >= _STALL_S:
            shown = DURATION.text(names.within_s)
            yield f"{_KEY}.names.within: {shown}: torchrun stalls for 10 s where a look-up hangs"
        if clocks is not None and clocks.skew_s >= _USELESS_SKEW_S:
            shown = DURATION.text(clocks.skew_s)
            yield f"{_KEY}.clocks.skew: {shown}: logs of two nodes could not be put in order"
        if speed is not None and speed.at_least_fraction <= 0.5:
            yield (
                f"{_KEY}.speed.at_least_fraction: {speed.at_least_fraction:g}: "
                "a link that came up at half its speed passes"
            )


def _add_late(one: type[Check]) -> None:
    if _KINDS and PreflightCriterion.add(one):
        PreflightCriterion.model_rebuild(force=True)


on_late_check(_add_late)

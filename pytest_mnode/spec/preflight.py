"""What is promised of the nodes themselves, before anything is run on them: one key a question."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from pytest_mnode.spec.fields import AbsolutePath, Bytes, Count, Page, Seconds, Setting, Some

Network = Literal["fabric", "management"]
Part = Literal[
    "code", "python", "torch", "packages", "nccl", "driver", "firmware", "kernel", "sysctl"
]
Place = Literal["datasets", "checkpoints", "scratch"]


class Reachable(Page):
    """Every node opens TCP connections to the first node, and to every other on each network."""

    within_s: Seconds = Field(2.0, alias="within")
    """A connection is open within this time."""
    master_port: Annotated[int, Field(strict=True, ge=1, le=65535)] | None = None
    """MASTER_PORT of jobs, such as 29500; left out: a free port of the first node."""
    networks: tuple[Network, ...] = Field(("fabric",), min_length=1)
    """On which of its networks a node reaches every other."""


class Names(Page):
    """Host names and addresses of all nodes are looked up quickly and rightly, on every node."""

    within_s: Seconds = Field(1.0, alias="within")
    """One look-up, forward or reverse, takes no longer."""


class Interfaces(Page):
    """The interfaces of `fabric` and `management` exist and are up: there is no bound to set."""


class Speed(Page):
    """The interfaces of `fabric` and `management` run at their line_rate."""

    at_least_fraction: Annotated[float, Field(strict=True, gt=0, le=1)] = 1.0
    """Of line_rate, as the kernel or the queue that shapes an emulated link gives it."""


class MtuPromise(Page):
    """Interfaces have the mtu of their network, and full-size packets pass between all nodes."""

    networks: tuple[Network, ...] = Field(("fabric",), min_length=1)
    """On which networks; each needs its mtu."""


class Payload(Page):
    """What a node sends by TCP arrives as it was sent: wires change no byte past checksums."""

    size_bytes: Bytes = Field(4 << 20, alias="size")
    """Sent to each partner: every other of up to 5 nodes, three of more."""
    within_s: Seconds = Field(5.0, alias="within")
    """All payloads have arrived; what has not is inconclusive."""
    networks: tuple[Network, ...] = Field(("fabric",), min_length=1)
    """On which networks."""


class Clocks(Page):
    """The clocks of the nodes agree."""

    skew_s: Seconds = Field(alias="skew")
    """No node's clock is further from the middle one, such as 50 ms."""


class AcceleratorHealth(Page):
    """Accelerators are as `accelerators` says; and in this state, where a key is given."""

    ecc: Literal["on", "off"] | None = None
    """Error correction of their memory."""
    ecc_errors_at_most: Count | None = None
    """Uncorrected memory errors of one accelerator since its driver was loaded."""
    persistence: Literal["on", "off"] | None = None
    """The driver stays loaded between jobs."""
    throttling: Literal["none"] | None = None
    """No clock is held down by heat, power or hardware."""
    mig: Literal["on", "off"] | None = None
    """Multi-Instance GPU mode."""
    remapped_rows: Literal["none"] | None = None
    """No row of memory failed to be remapped, and none waits for a reset to be."""


class RdmaPromise(Page):
    """The RDMA devices of `fabric` are there and their ports ACTIVE."""

    gid_types: tuple[Literal["IB", "RoCE v1", "RoCE v2"], ...] | None = Field(None, min_length=1)
    """Each port has a GID of one of these types."""
    errors_at_most: Count | None = None
    """By how much the error counters of a node may rise, in all, during preflight."""


class KernelLogPromise(Page):
    """The kernel has logged no failure of a device since boot: GPUs (Xid), PCIe, NICs, memory."""

    corrected_at_most: Count = 100
    """Errors that were made good: of PCIe (AER) and memory (EDAC)."""
    link_downs_at_most: Count = 3
    """How often one link that was up went down; drivers do that while a node boots."""


class StoragePromise(Page):
    """The paths of `storage` are the same files on all nodes."""

    shared: tuple[Place, ...] = ("datasets", "checkpoints")
    """Which of them are one file system for all nodes."""
    writable: tuple[Place, ...] = ("checkpoints", "scratch")
    """Which of them a job may write to."""
    sample_files: Some = 8
    """How many files of the datasets are compared, the first by name."""
    sample_size_bytes: Bytes = Field(1 << 20, alias="sample_size")
    """How much of the head of each is read."""


class Limits(Page):
    """What the system lets a rank have. What is left out is not promised."""

    shm_bytes: Bytes | None = Field(None, alias="shm")
    """Size of /dev/shm."""
    shm_free_bytes: Bytes | None = Field(None, alias="shm_free")
    """Of which free."""
    memlock_bytes: Bytes | Literal["unlimited"] | None = Field(None, alias="memlock")
    """How much memory a process may lock, for RDMA and pinned buffers."""
    open_files: Some | None = None
    """How many files a process may have open."""


class FreeDisk(Page):
    """Room on a file system."""

    path: AbsolutePath
    """Where."""
    free_bytes: Bytes = Field(alias="free")
    """How much is free for a user without privileges, such as 10 GB."""


class EnvironmentPromise(Page):
    """Ranks find torchrun's variables, and nothing that ties a backend's hands."""

    allowed: tuple[Setting, ...] = ()
    """Settings of NCCL, gloo and torch that belong to this cluster: NAME, or NAME=VALUE."""


class PreflightCriterion(Page):
    """What holds on every node before anything is run. What is left out is not promised."""

    reachable: Reachable | None = None
    names: Names | None = None
    interfaces: Interfaces | None = None
    speed: Speed | None = None
    mtu: MtuPromise | None = None
    payload: Payload | None = None
    clocks: Clocks | None = None
    same: tuple[Part, ...] | None = Field(None, min_length=1)
    """What is the same on all nodes; sysctl: kernel settings that networks depend on."""
    accelerators: AcceleratorHealth | None = None
    rdma: RdmaPromise | None = None
    kernel_log: KernelLogPromise | None = None
    pcie: Literal["full"] | None = None
    """PCIe links of accelerators and of the fabric's NICs have the width that card and slot can;
    those of NICs the speed too. An idle accelerator may run slower: `devices` judges it."""
    gpudirect: Literal["peermem", "dma-buf", "either"] | None = None
    """How NICs reach the memory of accelerators."""
    storage: StoragePromise | None = None
    limits: Limits | None = None
    disk: tuple[FreeDisk, ...] | None = Field(None, min_length=1)
    """Free room on each node."""
    environment: EnvironmentPromise | None = None

    @field_validator("same")
    @classmethod
    def _once(cls, parts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if parts is not None and len(set(parts)) < len(parts):
            raise ValueError(f"[{', '.join(parts)}] names one twice; accepted: each once")
        return parts

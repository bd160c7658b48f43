"""What lines say of networks, devices, interfaces and settings, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pytest_mnode.logs.nccl_log.facts import Process


class Use(StrEnum):
    """How far a process came with a network plugin."""

    LOADED = "loaded"
    INITIALIZED = "initialized"
    FAILED = "failed"
    ASSIGNED = "assigned"
    """To a communicator (from 2.27)."""
    USING = "using"
    """`Using network …`, the line that every version prints of the one it chose."""


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """`Using network IB`, `Initialized NET plugin IB`, `Assigned NET plugin IB to comm` …"""

    process: Process
    name: str
    use: Use


@dataclass(frozen=True, slots=True)
class Provider:
    """`NET/OFI Selected Provider is efa (found 4 nics)`: what libfabric runs on."""

    process: Process
    name: str
    adapters: int | None


@dataclass(frozen=True, slots=True)
class Device:
    """A network device that NCCL found, of `NET/IB : Using …`, `NET/Socket : Using …` or alike.

    A device that merges several adapters, or a libfabric group of them, joins their names by `+`.
    """

    process: Process
    network: str
    """`IB` or `Socket`, or the plugin that printed the line."""
    index: int | None
    """What `Channel.device` counts; None where the line only names the device (SHARP)."""
    name: str
    port: int | None
    link_layer: str | None
    """`IB`, `RoCE`, or as printed; None for sockets."""
    address: str | None
    """IP address of a socket interface."""
    speed_mbits_s: int | None
    in_network_reduction: bool
    """`/SHARP`."""
    relaxed_ordering: bool
    """`[RO]` stands behind the list."""

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the adapters that this device consists of; its own where it is one."""
        return tuple(self.name.split("+"))


class Purpose(StrEnum):
    """What NCCL uses an interface for, besides data."""

    BOOTSTRAP = "bootstrap"
    """Ranks find each other through it; small, and no proof of where data goes."""
    OUT_OF_BAND = "out of band"
    """RDMA connections are made through it."""


@dataclass(frozen=True, slots=True)
class Interface:
    """`Bootstrap : Using eth0:10.1.2.3<0>`, or what follows `OOB` in `NET/IB : Using …`."""

    process: Process
    purpose: Purpose
    name: str
    address: str | None


@dataclass(frozen=True, slots=True)
class GpuDirect:
    """`GPU Direct RDMA Disabled for GPU 7000 / HCA 0 (distance 7 > 5)`, and its like."""

    process: Process
    enabled: bool
    network: str | None
    """Where the line begins with it: `NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'`."""
    gpu: str | None
    """As printed: a rank, a device, or a bus id, by version."""
    device: int | None
    device_name: str | None
    reason: str | None
    """As printed in parentheses or behind; None where the line gives none."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`NCCL_IB_DISABLE set by environment to 1.`: what overrides a default, as NCCL read it."""

    process: Process
    name: str
    value: str
    source: str | None
    """`environment`, `config`, a plugin; None where the line only says `set to`."""


class Absence(StrEnum):
    """Why a process has no RDMA device."""

    NO_DEVICE = "no device found"
    NO_LIBRARY = "libibverbs could not be opened"
    NO_PROVIDER = "libfabric has no provider"
    NO_INTERFACE = "no socket interface found"


@dataclass(frozen=True, slots=True)
class NoDevice:
    """`NET/IB : No device found.` and its like.

    A network plugin that is not installed is none of these: NCCL then uses its own.
    """

    process: Process
    absence: Absence
    text: str


@dataclass(frozen=True, slots=True)
class Gid:
    """What a line shows of the addresses of an RDMA connection (RoCE: version 1 or 2).

    An IPv4-mapped GID (`::ffff:10.1.2.3`) belongs to RoCE; `fe80::…` is a link-local one.
    """

    process: Process
    device: str | None
    device_index: int | None
    """Where the line only numbers the device."""
    port: int | None
    index: int | None
    """Of the GID among those of the port: `NCCL_IB_GID_INDEX`, or what NCCL chose."""
    local: str | None
    remote: str | None
    roce_version: str | None
    error: str | None
    """Why the connection failed, as printed; None where the line tells of none."""

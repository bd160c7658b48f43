"""Facts in an NCCL log, as values. None: the log does not contain the fact."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class NcclProcess:
    """The process that printed a line: `host:pid`. Both are None for a line without prefix."""

    host: str | None
    pid: int | None

    def __str__(self) -> str:
        return f"{self.host or 'unknown host'}:{'?' if self.pid is None else self.pid}"


NOBODY = NcclProcess(host=None, pid=None)


class Transport(StrEnum):
    """How two ranks of a channel are connected, as NCCL names it after `via`."""

    NET = "NET"
    COLLNET = "COLLNET"
    """A network that reduces in its switches (SHARP)."""
    P2P = "P2P"
    SHM = "SHM"
    NVLS = "NVLS"
    OTHER = "other"
    """A readable line of an unknown transport: see `Channel.detail`."""


class Direction(StrEnum):
    """Which side of a network channel printed the line."""

    SEND = "send"
    RECEIVE = "receive"


@dataclass(frozen=True, slots=True)
class Channel:
    """`Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA/Shared`, and similar lines.

    Ranks are those of the channel's communicator, which need not be the world.
    cuda_device: the device in the line's prefix, which distinguishes the ranks of one process.
    comm: address of the communicator. connection: the 0 of `00/0`; None before NCCL 2.11.
    sender, receiver: None for the end of a collective network that is not a rank.
    direction: None within a node, where one line stands for both ends.
    network: name of the network plugin (`IB`, `Socket`, `AWS Libfabric` …); None within a node.
    device: index among the devices of that network; None within a node, or in a cut line.
    gdr: GPUDirect RDMA; None within a node, or if the line is cut before it.
    detail: everything after `via`, as printed.
    """

    process: NcclProcess
    cuda_device: int | None
    comm: str | None
    number: int
    connection: int | None
    sender: int | None
    receiver: int | None
    direction: Direction | None
    transport: Transport
    network: str | None
    device: int | None
    gdr: bool | None
    detail: str

    @property
    def rank(self) -> int | None:
        """The rank that printed the line, within the channel's communicator."""
        return self.receiver if self.direction is Direction.RECEIVE else self.sender

    @property
    def crosses_network(self) -> bool:
        """Whether bytes of this channel leave through a network plugin."""
        return self.transport in (Transport.NET, Transport.COLLNET)


@dataclass(frozen=True, slots=True)
class Comm:
    """A communicator as one rank logs it.

    address: `0x…`, and `0x…#2` for the second at that address, so that it is unique within its
    process. id: `commId`, the same in all ranks; None before NCCL 2.15, and for one that was split
    off another one. complete: a line says `Init COMPLETE`.
    """

    process: NcclProcess
    address: str
    id: str | None = None
    rank: int | None = None
    size: int | None = None
    cuda_device: int | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """A network plugin that a process chose (`Using network IB`), or that failed to start."""

    process: NcclProcess
    name: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Provider:
    """The libfabric provider of a process: `NET/OFI Selected Provider is efa (found 4 nics)`."""

    process: NcclProcess
    name: str


@dataclass(frozen=True, slots=True)
class NcclDevice:
    """A network device from `NET/IB : Using …`, `NET/Socket : Using …` and similar lines.

    network: `IB`, `Socket`, or the plugin that printed the line. index: number in
    `Channel.device`; None if the line only names the device (SHARP). name: for a device that merges
    several adapters, their names joined by `+`. link_layer: `IB`, `RoCE`, or as printed; None for
    sockets. numbers: of its adapters, if they differ from the index.
    """

    process: NcclProcess
    network: str
    index: int | None
    name: str
    link_layer: str | None = None
    numbers: tuple[int, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the adapters of this device."""
        return tuple(self.name.split("+"))


@dataclass(frozen=True, slots=True)
class GpuDirect:
    """`GPU Direct RDMA Disabled for GPU 7000 / HCA 0 (distance 7 > 5)`, and similar lines.

    network: of a line such as `NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'`.
    reason: the text in parentheses.
    """

    process: NcclProcess
    enabled: bool
    network: str | None
    device: int | None
    device_name: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class NcclSetting:
    """`NCCL_IB_DISABLE set by environment to 1.`: an override, as NCCL read it."""

    process: NcclProcess
    name: str
    value: str


class Absence(StrEnum):
    """Reason why a process has no device."""

    NO_DEVICE = "no device found"
    NO_LIBRARY = "libibverbs could not be opened"
    NO_PROVIDER = "libfabric has no provider"
    NO_INTERFACE = "no socket interface found"


@dataclass(frozen=True, slots=True)
class NoDevice:
    """`NET/IB : No device found.` and similar lines; not those about a plugin not installed."""

    process: NcclProcess
    absence: Absence


@dataclass(frozen=True, slots=True)
class NcclGid:
    """Addresses of an RDMA connection. IPv4-mapped ones belong to RoCE, `fe80::…` are link-local.

    device_index: number of the adapter, if the line does not name it. index: of the GID in its
    port's table. error: why the connection failed, as printed; None if the line shows no failure.
    """

    process: NcclProcess
    device: str | None
    device_index: int | None
    port: int | None
    index: int | None
    local: str | None
    remote: str | None
    roce_version: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Warn:
    """A line of level WARN or ERROR; equal lines of one process are merged.

    recovered: True if the process made progress after the last such line (a communicator
    complete, channels connected), False if it gave up, None if the log shows neither.
    """

    process: NcclProcess
    cuda_device: int | None
    text: str
    recovered: bool | None


@dataclass(frozen=True, slots=True)
class UcxConfig:
    """Devices of UCX to another node: `inter-node cfg#2 tag(rc_mlx5/mlx5_0:1 tcp/eth0)`.

    rdma: devices, such as mlx5_0:1. tcp: interfaces.
    """

    process: NcclProcess
    rdma: tuple[str, ...]
    tcp: tuple[str, ...]

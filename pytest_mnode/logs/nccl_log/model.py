"""An NCCL log and the facts in it, as values. None: the log does not contain the fact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class NetworkKind(StrEnum):
    """How a network carries its bytes."""

    RDMA = "RDMA"
    """The adapter itself reads and writes memory: InfiniBand, RoCE, EFA, Slingshot."""
    SOCKETS = "sockets"
    """The kernel's TCP."""
    GPUDIRECT_TCP = "GPUDirect-TCP"
    """TCP whose payload the adapter writes to GPU memory (GPUDirect-TCPX, TCPXO, FasTrak)."""
    UNKNOWN = "unknown"
    """A name that no known document explains: inconclusive."""


_RDMA = re.compile(
    r"(?:NET[/ ])?(?:IB(?:ext)?(?:_v\d+)?|gIB(?:_v\d+)?|SHARP(?:_v\d+)?|UCX(?:[-_][\w-]+)?|"
    r"SPCX(?:_v\d+)?|IB-CAST|(?:RCCL-)?ANP|NCCL RDMA Plugin(?: v\d+)?|EFA)",
    re.IGNORECASE,
)
_SOCKETS = re.compile(r"(?:NET[/ ])?(?:Socket|FastSocket|Fast ?Socket)(?:_v\d+)?", re.IGNORECASE)
_GPUDIRECT_TCP = re.compile(r"(?:GPUDirectTCPX\w*|FasTrak\w*|TCPXO?\w*)", re.IGNORECASE)
_LIBFABRIC = re.compile(r"(?:AWS )?(?:Libfabric|OFI)(?:_v\d+)?", re.IGNORECASE)
_RDMA_PROVIDERS = ("efa", "efa-direct", "verbs", "cxi", "opx", "psm2", "psm3", "gni", "ucx", "mlx")
_SOCKET_PROVIDERS = ("tcp", "sockets", "udp", "net")


def network_of(name: str, providers: Sequence[str] = ()) -> NetworkKind:
    """Kind of the network called `name` in channel lines or `Using network …`.

    providers: those that libfabric selected (`efa`, `verbs;ofi_rxm`, `tcp` …). Libfabric
    without a provider, or with providers of different kinds, is unknown, as is any unlisted name.

    Sources: NCCL's internal networks (IB, Socket); nccl-rdma-sharp-plugins (IBext, UCX, SHARP);
    aws-ofi-nccl; Google's gIB, GPUDirect-TCPX and FasTrak, Fast Socket; NVIDIA Spectrum-X (SPCX);
    RCCL (IB-CAST); fi_provider(7).
    """
    name = name.strip()
    if _SOCKETS.fullmatch(name):
        return NetworkKind.SOCKETS
    if _GPUDIRECT_TCP.fullmatch(name):
        return NetworkKind.GPUDIRECT_TCP
    if _LIBFABRIC.fullmatch(name):
        kinds = {provider_network(provider) for provider in providers}
        return kinds.pop() if len(kinds) == 1 else NetworkKind.UNKNOWN
    return NetworkKind.RDMA if _RDMA.fullmatch(name) else NetworkKind.UNKNOWN


def is_offloaded(name: str) -> bool:
    """Whether a network of GPUDirect-TCP passes the kernel's TCP by: FasTrak, which is TCPXO."""
    return name.strip().lower().startswith(("fastrak", "tcpxo"))


def provider_network(provider: str) -> NetworkKind:
    """Kind of a libfabric provider's network; for `verbs;ofi_rxm`, the core provider decides."""
    core = provider.strip().lower().split(";")[0]
    if core in _RDMA_PROVIDERS:
        return NetworkKind.RDMA
    return NetworkKind.SOCKETS if core in _SOCKET_PROVIDERS else NetworkKind.UNKNOWN


def family_of(name: str) -> str:
    """The network under which NCCL lists the devices of `name`: IB for plugins over verbs."""
    name = name.strip()
    if _LIBFABRIC.fullmatch(name):
        return "OFI"
    if _SOCKETS.fullmatch(name):
        return "Socket"
    return "IB" if _RDMA.fullmatch(name) else name


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


@dataclass(frozen=True, slots=True)
class RankLog:
    """The lines of one rank.

    cuda_device: known only if one process has several ranks, each on its own device.
    rank, size: in the largest communicator, which is the world if the log contains it.
    channels: those that the rank printed, of all its communicators.
    complete: whether every communicator that it began is complete; None without communicators.
    """

    process: NcclProcess
    cuda_device: int | None
    rank: int | None
    size: int | None
    comms: tuple[Comm, ...]
    channels: tuple[Channel, ...]
    complete: bool | None

    @property
    def net_channels(self) -> tuple[Channel, ...]:
        """Channels that go through a network."""
        return tuple(channel for channel in self.channels if channel.crosses_network)


@dataclass(frozen=True, slots=True)
class NcclLog:
    """All facts of a log in its order; a line printed twice counts once.

    versions: such as `2.27.5+cuda12.9`; several if ranks differ.
    truncated: evidence that lines are missing: a cut last line, bytes that are not text.
    unknown_lines: lines about a channel's transport that cannot be read; then nothing is proven.
    ucx: configurations of UCX, if it logs to the same file.
    """

    versions: tuple[str, ...]
    ranks: tuple[RankLog, ...]
    networks: tuple[NetworkUse, ...]
    providers: tuple[Provider, ...]
    devices: tuple[NcclDevice, ...]
    channels: tuple[Channel, ...]
    gpu_direct: tuple[GpuDirect, ...]
    settings: tuple[NcclSetting, ...]
    no_device: tuple[NoDevice, ...]
    gids: tuple[NcclGid, ...]
    warnings: tuple[Warn, ...]
    truncated: tuple[str, ...]
    unknown_lines: tuple[str, ...]
    ucx: tuple[UcxConfig, ...] = ()

    @property
    def nccl_version(self) -> str | None:
        """The version, if the log shows exactly one."""
        return self.versions[0] if len(self.versions) == 1 else None

    def providers_of(self, process: NcclProcess) -> tuple[str, ...]:
        """Libfabric providers that `process` selected."""
        return tuple(dict.fromkeys(p.name for p in self.providers if p.process == process))

    def kind_of(self, channel: Channel) -> NetworkKind | None:
        """Kind of the network that carries a channel's bytes; None within a node."""
        if not channel.crosses_network or channel.network is None:
            return None
        return network_of(channel.network, self.providers_of(channel.process))

    def networks_of(self, process: NcclProcess) -> tuple[str, ...]:
        """Networks that `process` chose."""
        uses = (use for use in self.networks if use.process == process and not use.failed)
        return tuple(dict.fromkeys(use.name for use in uses))

    def adapters(self, channels: Iterable[Channel]) -> tuple[dict[str, NcclDevice], bool]:
        """Devices of these channels by adapter name, and whether the log names all of them."""
        places = {(d.process, family_of(d.network), d.index): d for d in self.devices}
        found: dict[str, NcclDevice] = {}
        all_named = True
        for channel in channels:
            if channel.network is None or channel.device is None:
                all_named = False
                continue
            place = (channel.process, family_of(channel.network))
            device = places.get((*place, channel.device))
            if channel.transport is Transport.COLLNET:
                device = places.get((*place, None), device)
            if device is None:
                all_named = False
            else:
                found |= dict.fromkeys(device.members, device)
        return found, all_named

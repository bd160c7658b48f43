"""What single lines of an NCCL log say, as values. What a line does not say is None."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Transport(StrEnum):
    """How two ranks of a channel are connected, as NCCL names it after `via`."""

    NET = "NET"
    COLLNET = "COLLNET"
    """A network that reduces on its way (SHARP)."""
    P2P = "P2P"
    SHM = "SHM"
    NVLS = "NVLS"
    OTHER = "other"
    """Read, but of a kind unknown to us: see `Channel.detail`."""


class Direction(StrEnum):
    """Which side of a network channel printed the line."""

    SEND = "send"
    RECEIVE = "receive"


class Network(StrEnum):
    """What carries the bytes of a network that NCCL names."""

    RDMA = "RDMA"
    """The network adapter reads and writes memory by itself: InfiniBand, RoCE, EFA, Slingshot."""
    SOCKETS = "sockets"
    """The kernel's TCP."""
    GPUDIRECT_TCP = "GPUDirect-TCP"
    """TCP whose payload the adapter places in GPU memory (GPUDirect-TCPX, TCPXO or FasTrak)."""
    UNKNOWN = "unknown"
    """A name that no document known to us explains, so inconclusive."""


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """Who printed a line: `host:pid`. Both are None where lines carry no such prefix."""

    host: str | None
    pid: int | None

    def __str__(self) -> str:
        return f"{self.host or 'unknown host'}:{'?' if self.pid is None else self.pid}"


@dataclass(frozen=True, slots=True)
class Channel:
    """`Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA/Shared`, and its like.

    Ranks are those of the communicator that the channel belongs to, which need not be the world.
    """

    process: Process
    cuda_device: int | None
    """The device in the line's prefix: which rank, where one process has several."""
    comm: str | None
    """Address of the communicator; None where the log does not tell to which it belongs."""
    number: int
    connection: int | None
    """Which of the pair's connections: the 0 of `00/0`; None before 2.11."""
    sender: int | None
    receiver: int | None
    """None for a collective network, whose other end is no rank."""
    sender_device: str | None
    receiver_device: str | None
    """As printed: a device number, or the bus id in hexadecimal before 2.15."""
    direction: Direction | None
    """None for transports within a node, which print one line for both."""
    transport: Transport
    network: str | None
    """Name of the network plugin (`IB`, `Socket`, `AWS Libfabric` …); None within a node."""
    device: int | None
    """Index of the device among those of its network; None within a node, or when cut off."""
    proxy_rank: int | None
    """The rank whose adapter is used instead of one's own (PXN): the 3 of `NET/IB/0(3)`."""
    gdr: bool | None
    """GPUDirect RDMA; None within a node, or when the line ends before it can be known."""
    gdr_through_pci: bool
    """`/GDRDMA(PCI)`: over PCI although the GPU and the adapter share a faster link."""
    shared: bool
    detail: str
    """All that follows `via`, as printed."""

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
    """What the log says of one communicator as one rank sees it."""

    process: Process
    address: str
    """`0x…`, unique within its process."""
    id: str | None
    """`commId`, the same in all its ranks; None before 2.15."""
    rank: int | None
    size: int | None
    nodes: int | None
    local_rank: int | None
    local_size: int | None
    cuda_device: int | None
    bus_id: str | None
    parent: str | None
    """Address of the communicator that this one was split from."""
    started: bool
    """`Init START` was seen; versions before 2.15 print none."""
    complete: bool
    """`Init COMPLETE` was seen."""
    aborted: bool
    """`Abort COMPLETE` was seen; destroying it in order does not count."""


@dataclass(frozen=True, slots=True)
class Warn:
    """A line that NCCL printed as WARN, equal ones of a process counted once each.

    `recovered` is True when the same process went on after the last of them (a communicator
    complete, channels connected), False when it gave up, None when the log does not tell.
    """

    process: Process
    cuda_device: int | None
    """The device in the line's prefix: which rank, where one process has several."""
    text: str
    where: str | None
    """`transport/net_ib.cc:1295`, or the function, as printed."""
    count: int
    recovered: bool | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Channels of a communicator: `16 coll channels, 0 collnet channels, …`; rings and trees."""

    process: Process
    comm: str | None
    coll_channels: int | None
    collnet_channels: int | None
    nvls_channels: int | None
    p2p_channels: int | None
    rings: int | None
    trees: int | None
    gdr: bool | None
    """`Connected all rings, use ring PXN 0 GDR 1`."""
    pxn: bool | None


@dataclass(frozen=True, slots=True)
class Tuning:
    """`AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE …`: which algorithm a size got."""

    process: Process
    collective: str
    size_bytes: int
    algorithm: str
    protocol: str

"""What a node says of itself and of its way to the others: values that travel as JSON lines.

`NodeFacts` answers the first order, `PathFacts` the second, `PayloadFacts` one after it where
payloads are promised, `LastFacts` the last. Unknown is None; why a whole part is unknown stands in
`unread`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pytest_mnode.logs.kernel_log import Log

_STRICT: Mapping[str, Any] = {"extra": "forbid"}
UNKNOWN_GID = "unknown"
"""Stands for a GID whose type cannot be read."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that a question is about. key: of the spec, such as "datasets", or the path."""

    key: str
    path: str
    shared: bool = False
    writable: bool = False
    sample_files: int = 0
    sample_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LookOrder:
    """First order: look at yourself, and listen.

    run: hexadecimal name of this survey, in every packet and in the names of files it makes.
    networks: shell patterns of interfaces, or of RDMA devices, by network.
    code: directories whose programs are compared. master_port: where the first node listens.
    """

    run: str
    index: int
    networks: dict[str, tuple[str, ...]]
    code: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    master_port: int | None = None
    accelerators: bool = False
    kernel_log: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """A node, as all are told of it. rails: its addresses by network, in interface order."""

    index: int
    hostname: str
    address: str
    tcp_port: int
    udp_port: int
    rails: dict[str, tuple[Rail, ...]]


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """Second order: try your way to all others.

    mtu: bytes of a full-size IP packet by network, where it is to be tried.
    master: address and port of the first node. look_up_within_s: how soon names are to be found;
    None: they are not looked up. tokens: files that others left, by place and node.
    """

    peers: tuple[Peer, ...]
    networks: tuple[str, ...]
    mtu: dict[str, int]
    master: tuple[str, int] | None
    connect_limit_s: float
    look_up_within_s: float | None
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class PayloadOrder:
    """Order after the second: send payloads on ways of these networks."""

    networks: tuple[str, ...]
    size_bytes: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Token:
    """A small file that a node left in a shared directory."""

    __pydantic_config__ = _STRICT
    place: str
    index: int
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Rail:
    """An address of a node on a network, with the ports its survey listens on there."""

    __pydantic_config__ = _STRICT
    interface: str
    address: str
    tcp_port: int
    udp_port: int


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. speed: as its driver says; shaped: of the queue for what leaves."""

    __pydantic_config__ = _STRICT
    name: str
    admin_up: bool | None
    carrier: bool | None
    mtu_bytes: int | None
    speed_mbits_s: float | None
    shaped_mbits_s: float | None
    virtual: bool
    addresses: tuple[str, ...]
    rdma_device: str | None = None
    mac: str | None = None


@dataclass(frozen=True, slots=True)
class Software:
    """Versions, None where there is no such thing. code and packages: digest or version by name.

    sysctl: kernel settings by name, without those that cannot be read there.
    """

    __pydantic_config__ = _STRICT
    python: str
    kernel: str
    torch: str | None
    nccl: str | None
    driver: str | None
    driver_is_open: bool
    peermem: str | None
    firmware: dict[str, str]
    packages: dict[str, str]
    code: dict[str, str]
    sysctl: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """Head of one file: path below its place, size and digest."""

    __pydantic_config__ = _STRICT
    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """What became of looking at a place.

    problem, write_problem: why it cannot be read, or written to; "" where it can. token: what was
    left there. file_system: type and source of the mount, such as "nfs4 filer:/data".
    refuses_root: the problem is that a file server refused root, which says nothing of users.
    """

    __pydantic_config__ = _STRICT
    key: str
    path: str
    problem: str
    write_problem: str
    file_system: str | None
    size_bytes: int | None
    free_bytes: int | None
    token: Token | None
    samples: tuple[Sample, ...]
    refuses_root: bool = False


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device. state: such as "ACTIVE". protocol: such as "RoCE".

    gid_types: UNKNOWN_GID may be one.
    """

    __pydantic_config__ = _STRICT
    device: str
    port: int
    state: str | None
    physical_state: str | None
    protocol: str | None
    rate_gbits_s: float | None
    gid_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RdmaRise:
    """What error counters of a port did during the survey.

    risen: by how much, those that rose, of errors and of packets lost and made good. counted: how
    many can be read. unknown: those of which that cannot be told, as of those not readable.
    """

    __pydantic_config__ = _STRICT
    device: str
    port: int
    risen: dict[str, int]
    counted: int
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator as its driver shows it.

    throttling: reasons for clocks held down. ecc_errors: uncorrected, since the driver was loaded.
    remapped_rows: "failed", "pending", both or neither.
    """

    __pydantic_config__ = _STRICT
    index: int
    model: str | None
    memory_bytes: int | None
    ecc: bool | None
    ecc_errors: int | None
    persistence: bool | None
    throttling: tuple[str, ...] | None
    mig: bool | None = None
    remapped_rows: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class PciLink:
    """The PCIe link of an accelerator or a NIC.

    name: such as "accelerator 0000:1b:00.0" or "mlx5_0". full_…: the most that card and slot can.
    """

    __pydantic_config__ = _STRICT
    name: str
    accelerator: bool
    width: int | None
    full_width: int | None
    gtransfers_s: float | None
    full_gtransfers_s: float | None


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What a process here may have; None is no limit. Soft limits, which hold unless it asks."""

    __pydantic_config__ = _STRICT
    memlock_bytes: int | None
    open_files: int | None


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says of itself. unread: why a part is None, by the part's name."""

    __pydantic_config__ = _STRICT
    hostname: str
    tcp_port: int
    udp_port: int
    master_problem: str
    rails: dict[str, tuple[Rail, ...]]
    software: Software | None
    limits: ProcessLimits
    interfaces: tuple[Interface, ...] | None
    places: tuple[PlaceFacts, ...]
    rdma: tuple[RdmaPort, ...] | None
    accelerators: tuple[Accelerator, ...] | None
    unread: dict[str, str]
    pci: tuple[PciLink, ...] | None = None
    kernel_log: Log | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection that was tried: how long it took, or why there is none.

    rail: our own interface; "" for the control address.
    """

    __pydantic_config__ = _STRICT
    to: int
    network: str
    rail: str
    took_s: float | None
    problem: str


@dataclass(frozen=True, slots=True)
class Path:
    """Datagrams to one address of another node.

    answered: whether any small one was. largest_bytes: largest IP packet that arrived with
    don't-fragment; None where none was tried. refused_bytes: smallest that this node's own
    interface refused. offset_s: the other's clock less ours; error_s: by how much it may be wrong.
    """

    __pydantic_config__ = _STRICT
    to: int
    network: str
    rail: str
    answered: bool
    largest_bytes: int | None
    refused_bytes: int | None
    offset_s: float | None
    error_s: float | None


@dataclass(frozen=True, slots=True)
class LookUp:
    """A name or an address that was looked up. took_s: None where it did not end in time."""

    __pydantic_config__ = _STRICT
    of: int
    what: str
    found: tuple[str, ...]
    took_s: float | None
    problem: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Whether a file that another node left is here, and is what it wrote. problem: "" if so."""

    __pydantic_config__ = _STRICT
    place: str
    index: int
    problem: str


@dataclass(frozen=True, slots=True)
class PathFacts:
    """How a node got through to the others."""

    __pydantic_config__ = _STRICT
    connections: tuple[Connection, ...]
    master: Connection | None
    paths: tuple[Path, ...]
    look_ups: tuple[LookUp, ...]
    seen: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """A payload that was to be sent. source: our address and port. problem: "" if all was taken."""

    __pydantic_config__ = _STRICT
    to: int
    network: str
    source: str
    problem: str


@dataclass(frozen=True, slots=True)
class PayloadFacts:
    """Payloads that a node sent."""

    __pydantic_config__ = _STRICT
    sent: tuple[Sent, ...]


@dataclass(frozen=True, slots=True)
class Received:
    """What came of a payload: bytes, and how many of them are wrong. source: as in `Sent`."""

    __pydantic_config__ = _STRICT
    source: str
    size_bytes: int
    wrong_bytes: int


@dataclass(frozen=True, slots=True)
class Heard:
    """Which nodes' datagrams arrived at one address."""

    __pydantic_config__ = _STRICT
    network: str
    rail: str
    senders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LastFacts:
    """What a node knows when all are done."""

    __pydantic_config__ = _STRICT
    heard: tuple[Heard, ...]
    rdma: tuple[RdmaRise, ...] | None
    received: tuple[Received, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSurvey:
    """A node and what was learnt of it. problem: why it said nothing; "" where it answered."""

    index: int
    name: str
    address: str
    problem: str = ""
    facts: NodeFacts | None = None
    paths: PathFacts | None = None
    last: LastFacts | None = None
    payloads: PayloadFacts | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """All nodes of a run, by index. took_s: of all of it."""

    nodes: tuple[NodeSurvey, ...]
    took_s: float = 0.0

    def node(self, name: str) -> NodeSurvey:
        """The node of this name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def on_loopback(self) -> bool:
        """Whether the nodes reach each other by loopback: they are one machine without links."""
        return all(node.address.startswith("127.") or node.address == "::1" for node in self.nodes)

    def others(self, node: NodeSurvey) -> tuple[NodeSurvey, ...]:
        """All nodes but this one."""
        return tuple(other for other in self.nodes if other.index != node.index)


def paired(mine: Sequence[Rail], theirs: Sequence[Rail]) -> tuple[tuple[Rail, Rail], ...]:
    """Which of our addresses goes with which of theirs: of the same interface name.

    Nodes that share no name at all are paired in their order.
    """
    by_name = {rail.interface: rail for rail in theirs}
    if any(rail.interface in by_name for rail in mine):
        return tuple((r, by_name[r.interface]) for r in mine if r.interface in by_name)
    return tuple(zip(mine, theirs, strict=False))


def encode(value: Any) -> str:
    """A dataclass as one line of JSON."""
    return json.dumps(asdict(value), separators=(",", ":"))


def decode(kind: type[T], line: str | bytes) -> T:
    """The dataclass of a line; raises ValueError for one that is anything else."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_json(line, strict=True)

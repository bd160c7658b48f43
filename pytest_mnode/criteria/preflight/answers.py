"""What the program on a node answers, as JSON lines; and what a survey learnt. Unknown is None.

`NodeFacts` answers the first order, `PathFacts` the second, `PayloadFacts` one after it where
payloads are promised, `LastFacts` the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.rdma import RdmaDevice

_STRICT: Mapping[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Rail:
    """An address of a node on a network, with the ports its probe listens on there."""

    interface: str
    address: str
    tcp_port: int
    udp_port: int


@dataclass(frozen=True, slots=True)
class Token:
    """A small file that a node left in a shared directory."""

    directory: str
    index: int
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Head of one file: path below its directory, size and digest."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFacts:
    """A directory as a node finds it.

    problem, write_problem: why it cannot be read, or written to; "" where it can. timed_out: the
    problem is that it did not answer. refuses_root: the problem is that a file server refused root,
    which says nothing of users. token: the file left there. file_system: type and source of the
    mount, such as "nfs4 filer:/data".
    """

    key: str
    path: str
    problem: str = ""
    write_problem: str = ""
    file_system: str | None = None
    size_bytes: int | None = None
    free_bytes: int | None = None
    token: Token | None = None
    samples: tuple[Sample, ...] = ()
    refuses_root: bool = False
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node says of itself. code: digests of programs by name; None: not read in time."""

    __pydantic_config__ = _STRICT
    machine: Machine
    tcp_port: int
    udp_port: int
    master_problem: str
    rails: dict[str, tuple[Rail, ...]]
    code: dict[str, str] | None
    directories: tuple[DirectoryFacts, ...]


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection that was tried: how long it took, or why there is none.

    rail: our own interface; "" for the control address. largest_bytes: the largest IP packet that
    the kernel sends on it; None where it does not show that.
    """

    to: int
    network: str
    rail: str
    took_s: float | None
    problem: str
    largest_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """Datagrams to one address of another node.

    answered: whether any small one was. largest_bytes: largest IP packet that arrived with
    don't-fragment; None where none was tried. refused_bytes: smallest that this node's own
    interface refused. offset_s: the other's clock less ours; error_s: by how much it may be wrong.
    """

    to: int
    network: str
    rail: str
    answered: bool
    largest_bytes: int | None = None
    refused_bytes: int | None = None
    offset_s: float | None = None
    error_s: float | None = None


@dataclass(frozen=True, slots=True)
class LookUp:
    """A name or an address that was looked up. took_s: None where it did not end in time."""

    of: int
    what: str
    found: tuple[str, ...]
    took_s: float | None
    problem: str


@dataclass(frozen=True, slots=True)
class TokenSeen:
    """Whether a file that another node left is here as it was written. problem: "" if so."""

    directory: str
    index: int
    problem: str


@dataclass(frozen=True, slots=True)
class PathFacts:
    """How a node reached the others."""

    __pydantic_config__ = _STRICT
    connections: tuple[Connection, ...]
    master: Connection | None
    paths: tuple[Path, ...]
    look_ups: tuple[LookUp, ...]
    seen: tuple[TokenSeen, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """A payload that was to be sent. source: our address and port. problem: "" if all was taken."""

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
    """A payload that arrived: bytes, and how many of them are wrong. source: as in `Sent`."""

    source: str
    size_bytes: int
    wrong_bytes: int


@dataclass(frozen=True, slots=True)
class Heard:
    """Which nodes' datagrams arrived at one address."""

    network: str
    rail: str
    senders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LastFacts:
    """What a node knows when all are done. rdma: its devices, to compare counters with before."""

    __pydantic_config__ = _STRICT
    heard: tuple[Heard, ...]
    rdma: tuple[RdmaDevice, ...] | None
    received: tuple[Received, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSurvey:
    """A node and what was learnt of it. problem: why it did not answer; "" where it did."""

    index: int
    name: str
    address: str
    problem: str = ""
    facts: NodeFacts | None = None
    paths: PathFacts | None = None
    last: LastFacts | None = None
    payloads: PayloadFacts | None = None

    @property
    def machine(self) -> Machine:
        """Its machine; one of which nothing is known where the node did not answer."""
        return self.facts.machine if self.facts else Machine()

    def directory(self, key: str) -> DirectoryFacts | None:
        """What it found of a directory."""
        found = self.facts.directories if self.facts else ()
        return next((one for one in found if one.key == key), None)


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """All nodes of a run, by index. It equals only itself, so that judges can cache by it."""

    nodes: tuple[NodeSurvey, ...]

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

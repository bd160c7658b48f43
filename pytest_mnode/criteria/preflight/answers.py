"""Orders to the program on a node and its answers, as JSON lines, and the resulting survey. Unknown
is None.

`NodeFacts` answers the first order, `PathFacts` the second, `PayloadFacts` the one after it if
payloads are promised, `LastFacts` the last, and `ReadingFacts` one after that, if checks are
promised whose readings have limits of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pytest_mnode.evidence.reading import CheckRows, ReadOrder
from pytest_mnode.evidence.row import Row
from pytest_mnode.evidence.rules import Unread
from pytest_mnode.machine.encoding import plain
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.rdma import RdmaDevice

_STRICT: Mapping[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Rail:
    """An address of a node on a network, with the ports that its probe listens on there."""

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
class Directory:
    """A directory that a node inspects. key: spec key, such as "datasets", or the path.

    path: "" for the node's own directory of temporary files. writable: a file is written there,
    and removed. shared: that file is looked for on the other nodes.
    """

    key: str
    path: str
    writable: bool = False
    sample_files: int = 0
    sample_bytes: int = 0
    shared: bool = False


@dataclass(frozen=True, slots=True)
class LookOrder:
    """First order: read the machine, and listen.

    run: hexadecimal name of the survey, in every packet and in the names of files that it makes.
    networks: shell patterns of interfaces, or of RDMA devices, by network.
    code: directories whose programs are compared. master_port: port that the first node listens on.
    reads: readings of checks.
    """

    run: str
    index: int
    parts: tuple[str, ...]
    networks: dict[str, tuple[str, ...]]
    code: tuple[str, ...] = ()
    directories: tuple[Directory, ...] = ()
    master_port: int | None = None
    reads: tuple[ReadOrder, ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """A node's addresses, for all other nodes. rails: by network, in interface order."""

    index: int
    hostname: str
    address: str
    tcp_port: int
    udp_port: int
    rails: dict[str, tuple[Rail, ...]]


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """Second order: try the paths to all other nodes.

    mtu: size of a full IP packet, B, by network; absent networks are not tried.
    master: address and port of the first node; None if not tried. look_up_within_s: time limit of a
    look-up; None if nothing is looked up. tokens: files that nodes left, by directory and node.
    counted: number of datagrams whose losses are counted, on the paths of payloads.
    """

    peers: tuple[Peer, ...]
    networks: tuple[str, ...]
    mtu: dict[str, int]
    master: tuple[str, int] | None
    connect_limit_s: float
    look_up_within_s: float | None
    tokens: tuple[Token, ...] = ()
    counted: int = 0


@dataclass(frozen=True, slots=True)
class ReadingOrder:
    """Order after all others: readings with limits of their own, one after another."""

    reads: tuple[ReadOrder, ...]

    @property
    def limit_s(self) -> float:
        """Time that all of them may take."""
        return sum(one.limit_s or 0.0 for one in self.reads)


@dataclass(frozen=True, slots=True)
class PayloadOrder:
    """Order after the second: send payloads on paths of these networks.

    rate_bytes_s: rate of a node, over all of its paths together.
    """

    networks: tuple[str, ...]
    size_bytes: int
    limit_s: float
    rate_bytes_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample of a file. name: path below its directory. digest: of the first bytes."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFacts:
    """Facts of a directory on a node.

    problem, write_problem: why it cannot be read, or written; "" if it can. timed_out: whether the
    problem is a missing answer. refuses_root: whether the problem is a file server that refused
    root, which proves nothing about users. token: the file that the node left there. file_system:
    type and source of the mount, such as "nfs4 filer:/data". free_files: files that still fit; None
    if their number is not limited.
    """

    key: str
    path: str
    problem: str = ""
    write_problem: str = ""
    file_system: str | None = None
    size_bytes: int | None = None
    free_bytes: int | None = None
    free_files: int | None = None
    token: Token | None = None
    samples: tuple[Sample, ...] = ()
    refuses_root: bool = False
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node's facts about itself.

    code: digests of programs by name; None if not read in time. read: rows of checks.
    loopback_problem: why no connection opens on loopback; "" if one does.
    """

    __pydantic_config__ = _STRICT
    machine: Machine
    tcp_port: int
    udp_port: int
    master_problem: str
    rails: dict[str, tuple[Rail, ...]]
    code: dict[str, str] | None
    directories: tuple[DirectoryFacts, ...]
    read: tuple[CheckRows, ...] = ()
    loopback_problem: str = ""


@dataclass(frozen=True, slots=True)
class ReadingFacts:
    """Rows of checks whose readings have limits of their own."""

    __pydantic_config__ = _STRICT
    read: tuple[CheckRows, ...] = ()


@dataclass(frozen=True, slots=True)
class Connection:
    """Attempt at a TCP connection: `took_s` to connect, or the `problem` that prevented it.

    rail: our own interface; "" for the control address. largest_bytes: the largest IP packet that
    the kernel sends on the connection; None if the kernel does not report it. leaves_by: interface
    that the node's routes choose for its packets; None if not known. gateway: address that they
    send them to; None if it is the other node's own. mac: link-layer address that the neighbour
    table gives for the address, asked if it failed; None without one. mac_is_pinned: the entry is
    permanent, so that no answer changes it.
    """

    to: int
    network: str
    rail: str
    took_s: float | None
    problem: str
    largest_bytes: int | None = None
    leaves_by: str | None = None
    gateway: str | None = None
    mac: str | None = None
    mac_is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """Results of datagrams to one address of another node.

    answered: whether any small datagram was. largest_bytes: largest IP packet that arrived with
    don't-fragment; None if none was tried. refused_bytes: smallest packet that this node's own
    interface rejected. offset_s: the peer's clock minus ours. error_s: largest error of offset_s.
    sent: number of datagrams sent there, without answers.
    """

    to: int
    network: str
    rail: str
    answered: bool
    largest_bytes: int | None = None
    refused_bytes: int | None = None
    offset_s: float | None = None
    error_s: float | None = None
    sent: int = 0


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look-up of a name or an address of node `of`. took_s: None if it did not end in time."""

    of: int
    what: str
    found: tuple[str, ...]
    took_s: float | None
    problem: str


@dataclass(frozen=True, slots=True)
class TokenSeen:
    """Check of a file that another node left. problem: "" if it is here as it was written."""

    directory: str
    index: int
    problem: str


@dataclass(frozen=True, slots=True)
class PathFacts:
    """Results of a node's paths to all other nodes."""

    __pydantic_config__ = _STRICT
    connections: tuple[Connection, ...]
    master: Connection | None
    paths: tuple[Path, ...]
    look_ups: tuple[LookUp, ...]
    seen: tuple[TokenSeen, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """Attempt to send a payload. source: our address and port. problem: "" if all was taken."""

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
    """A payload that arrived. wrong_bytes: those that were changed. source: as in `Sent`."""

    source: str
    size_bytes: int
    wrong_bytes: int


@dataclass(frozen=True, slots=True)
class Heard:
    """Indices of the nodes whose datagrams arrived at one address, and how many of each."""

    network: str
    rail: str
    senders: tuple[int, ...]
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LastFacts:
    """A node's facts at the end. rdma: its devices, to compare their counters with the start, of
    `after_s` ago."""

    __pydantic_config__ = _STRICT
    heard: tuple[Heard, ...]
    rdma: tuple[RdmaDevice, ...] | None
    received: tuple[Received, ...] = ()
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeSurvey:
    """A node and its answers.

    problem: why it did not answer; "" if it did. passed_at: when the latest run ended in which it
    passed, with its zone; None if none is known.
    """

    index: int
    name: str
    address: str
    problem: str = ""
    facts: NodeFacts | None = None
    paths: PathFacts | None = None
    last: LastFacts | None = None
    payloads: PayloadFacts | None = None
    long: ReadingFacts | None = None
    passed_at: str | None = None

    @property
    def machine(self) -> Machine:
        """The node's machine; a Machine of unknown facts if the node did not answer."""
        return self.facts.machine if self.facts else Machine()

    def why(self, part: str = "") -> str:
        """Why its facts, or a part of its machine, are missing; "" if they are there."""
        if self.facts is None:
            return self.problem or "its survey gave no answer"
        is_there = not part or getattr(self.machine, part) is not None
        return "" if is_there else self.machine.unread.get(part, f"no {part}")

    def rows(self, case: str) -> Sequence[Row]:
        """The node's rows of a check, or why there are none."""
        if self.facts is None:
            return Unread(self.why())
        read = (*self.facts.read, *(self.long.read if self.long else ()))
        found = next((one for one in read if one.case == case), None)
        if found is None or found.why:
            return Unread(found.why if found else self.problem or "it was not asked")
        return [replace(one, node=self.name) for one in found.rows]

    def directory(self, key: str) -> DirectoryFacts | None:
        """The node's facts of the directory `key`; None if there are none."""
        found = self.facts.directories if self.facts else ()
        return next((one for one in found if one.key == key), None)


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """All nodes of a run, by index. It equals only itself, so that checks can cache by it."""

    nodes: tuple[NodeSurvey, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' names, by index."""
        return tuple(node.name for node in self.nodes)

    def node(self, name: str) -> NodeSurvey:
        """The node of this name."""
        return next(node for node in self.nodes if node.name == name)

    @lru_cache(maxsize=8)  # noqa: B019  a survey is one of a few, and is hashed by its identity
    def rows(self, case: str) -> Mapping[str, Sequence[Row]]:
        """Rows of a check by node, or why a node has none."""
        return {node.name: node.rows(case) for node in self.nodes}

    @property
    def on_loopback(self) -> bool:
        """Whether the nodes reach each other by loopback: they are one machine without links."""
        return all(node.address.startswith("127.") or node.address == "::1" for node in self.nodes)

    def others(self, node: NodeSurvey) -> tuple[NodeSurvey, ...]:
        """All nodes but this one."""
        return tuple(other for other in self.nodes if other.index != node.index)


KEPT = "survey of a node"
"""What rows of `survey_to_json` have as their check."""


MOST_WITH_PATHS = 128
"""Nodes of a run whose evidence keeps what they found on their paths to each other: of 1,024 nodes
it would be a million of each network."""


def survey_to_json(survey: Survey) -> Iterator[dict[str, Any]]:
    """All answers of each node, of more than `MOST_WITH_PATHS` but those of paths, as plain values
    for the evidence of a run."""
    for node in survey.nodes:
        kept = node
        if len(survey.nodes) > MOST_WITH_PATHS:
            last = node.last and replace(node.last, heard=(), received=())
            kept = replace(node, paths=None, payloads=None, last=last)
        yield {"check": KEPT, "answers": plain(kept)}


def no_answer(node: NodeSurvey) -> str:
    """A node's name, and why some of its answers are missing."""
    return f"{node.name}: {node.problem or 'its survey gave no answer'}"


def why_unread(node: NodeSurvey, part: str) -> str:
    """A node's name, and why a part of its machine is missing."""
    return f"{node.name}: {node.why(part)}"

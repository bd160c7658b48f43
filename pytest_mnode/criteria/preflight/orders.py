"""Orders to the program on a node, sent as JSON lines and derived from the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_mnode.criteria.preflight.answers import NodeFacts, Rail, Token
from pytest_mnode.criteria.preflight.survey_check import Directory, SurveyCheck, read_orders
from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.reading import ReadOrder

if TYPE_CHECKING:
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.preflight import PreflightCriterion

CONTROL_LIMIT_S = 2.0
_PARTS = (
    *("boot_id", "hostname", "interfaces", "refusals", "rdma", "pci", "settings", "software"),
)
"""Parts of the machine that are always read."""


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
    """

    peers: tuple[Peer, ...]
    networks: tuple[str, ...]
    mtu: dict[str, int]
    master: tuple[str, int] | None
    connect_limit_s: float
    look_up_within_s: float | None
    tokens: tuple[Token, ...] = ()


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


def look_order(
    promise: PreflightCriterion,
    spec: Spec,
    run: str,
    index: int,
    code: Sequence[str],
    *,
    checks: Sequence[Check] = (),
) -> LookOrder:
    """The first order. checks: those whose parts and rows are to be read."""
    networks = {"fabric": spec.fabric.interfaces}
    if spec.management is not None:
        networks["management"] = spec.management.interfaces
    surveyed = [one for one in checks if isinstance(one, SurveyCheck)]
    parts = (*_PARTS, *(part for one in surveyed for part in one.parts))
    directories = (place for one in surveyed for place in one.directories())
    return LookOrder(
        run=run,
        index=index,
        parts=tuple(dict.fromkeys(parts)),
        networks=networks,
        code=tuple(code),
        directories=tuple(dict.fromkeys(directories)),
        master_port=promise.reachable and promise.reachable.master_port,
        reads=tuple(one for one in read_orders(checks, "node") if one.limit_s is None),
    )


def reading_order(
    checks: Sequence[Check], nodes: Sequence[tuple[str, str]], index: int
) -> ReadingOrder:
    """The order for long readings. nodes: name and address of each node; index: of this one."""
    long = (one for one in read_orders(checks, "node") if one.limit_s is not None)
    return ReadingOrder(tuple(replace(one, nodes=tuple(nodes), index=index) for one in long))


def probe_order(
    promise: PreflightCriterion,
    spec: Spec,
    look_answers: Mapping[int, tuple[str, NodeFacts]],
    directories: Sequence[Directory] = (),
) -> ProbeOrder:
    """The second order. look_answers: address and facts of each node that answered, by index.

    directories: those that nodes inspected.
    """
    peers = tuple(
        Peer(
            index,
            facts.machine.hostname or "",
            address,
            facts.tcp_port,
            facts.udp_port,
            facts.rails,
        )
        for index, (address, facts) in look_answers.items()
    )
    reachable, names, mtu = promise.reachable, promise.names, promise.mtu
    networks = {n for one in (reachable, mtu, promise.payload) if one for n in one.networks}
    sizes = {"fabric": spec.fabric.mtu_bytes}
    if spec.management is not None and spec.management.mtu_bytes is not None:
        sizes["management"] = spec.management.mtu_bytes
    master = None
    if reachable is not None and 0 in look_answers:
        address, first = look_answers[0]
        master = (address, reachable.master_port or first.tcp_port)
    shared = {one.key for one in directories if one.shared}
    return ProbeOrder(
        peers=peers,
        networks=tuple(sorted(n for n in networks if n == "fabric" or spec.management)),
        mtu={n: sizes[n] for n in (mtu.networks if mtu else ()) if n in sizes},
        master=master,
        connect_limit_s=reachable.within_s if reachable else CONTROL_LIMIT_S,
        look_up_within_s=names.within_s if names else None,
        tokens=tuple(
            one.token
            for _, facts in look_answers.values()
            for one in facts.directories
            if one.token is not None and one.key in shared
        ),
    )

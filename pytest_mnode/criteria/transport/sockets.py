"""Second fact where NCCL tells nothing: connections of ranks (gloo), what UCX logs (MPI, UCC)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_mnode.criteria.transport.facts import Facts, NodeFacts, RankFacts, Socket
from pytest_mnode.criteria.transport.proof import Answer, Case, Fact, FactVerdict, Finding
from pytest_mnode.logs.nccl_log import UcxConfig
from pytest_mnode.spec.models import Spec


def connected(facts: Facts, spec: Spec) -> FactVerdict:
    """Whether connections between ranks of different nodes are bound to the fabric.

    A connection between ranks is one that both have, ends swapped: a rank's connection to the
    store, or a test's own, has no such other end. Every rank whose neighbour in the ring is on
    another node must have one to it.
    """
    found: list[Finding] = []
    owners = {
        (socket.local, socket.remote): rank for rank in facts.ranks for socket in rank.sockets or ()
    }
    for rank in facts.ranks:
        if rank.sockets is None:
            found.append(_said(rank, Answer.MISSING, Case.UNREADABLE, "no connections are known"))
            continue
        met = {
            peer.rank
            for socket in rank.sockets
            if (peer := owners.get((socket.remote, socket.local))) is not None
        }
        found += _bound(rank, facts, spec, owners)
        found += _unmet(rank, met, facts)
    return FactVerdict(Fact.LOGGED, tuple(found))


def over_ucx(facts: Facts, spec: Spec) -> FactVerdict:
    """What ranks of a backend over UCX say that they run on."""
    found: list[Finding] = []
    for rank in facts.ranks:
        configs = rank.log.ucx if rank.log is not None else ()
        if not configs:
            text = (
                f"nothing tells what the {facts.backend} backend runs on; where that is UCX, set "
                "UCX_LOG_LEVEL=info and UCX_LOG_FILE=FILE.%h.%p"
            )
            found.append(_said(rank, Answer.MISSING, Case.UNKNOWN_NETWORK, text))
        found += [
            _said(rank, Answer.DISAGREES, case, text)
            for case, text in off_fabric(configs, spec, rank)
        ]
    return FactVerdict(Fact.LOGGED, tuple(found))


def off_fabric(
    configs: Sequence[UcxConfig], spec: Spec, rank: RankFacts
) -> Iterator[tuple[Case, str]]:
    """Where UCX goes to other nodes by something else than the fabric."""
    kind, fabric = spec.fabric.kind, ", ".join(spec.fabric.interfaces)
    for config in configs:
        if kind == "ethernet" and config.rdma:
            text = f"UCX runs over {', '.join(config.rdma)} (RDMA), promised is {kind}"
            yield Case.OTHER_NETWORK, text
            continue
        if kind != "ethernet" and not config.rdma:
            named = ("UCX_TLS", "UCX_NET_DEVICES")
            why = [f"{n}={rank.environment[n]}" for n in named if n in rank.environment]
            text = f"channels run over UCX's tcp ({', '.join(config.tcp)}) instead of {kind}"
            yield Case.SOCKETS, f"{text}: {', '.join(why) or 'nothing tells why'}"
            continue
        used = config.tcp if kind == "ethernet" else config.rdma
        wrong = [n for n in used if not spec.fabric.has_interface(n.partition(":")[0])]
        if wrong:
            case = Case.WRONG_INTERFACE if len(wrong) == len(used) else Case.STRAY_RAIL
            yield case, f"UCX runs over {', '.join(wrong)}, not over the fabric ({fabric})"


def _bound(
    rank: RankFacts,
    facts: Facts,
    spec: Spec,
    owners: dict[tuple[tuple[str, int], tuple[str, int]], RankFacts],
) -> Iterator[Finding]:
    node = facts.node(rank.node)
    wrong: dict[str, None] = {}
    for socket in rank.sockets or ():
        peer = owners.get((socket.remote, socket.local))
        if peer is None or peer.node == rank.node:
            continue
        interface = _interface(socket, node)
        if interface is None:
            yield _said(
                rank,
                Answer.MISSING,
                Case.UNREADABLE,
                f"a connection is bound to {socket.local[0]}, an address of no known interface",
            )
        elif not spec.fabric.has_interface(interface):
            wrong[interface] = None
    if wrong:
        over, fabric = ", ".join(wrong), ", ".join(spec.fabric.interfaces)
        text = f"connections to other nodes are bound to {over}, not to the fabric ({fabric})"
        yield _said(rank, Answer.DISAGREES, Case.WRONG_INTERFACE, text)


def _unmet(rank: RankFacts, met: set[int], facts: Facts) -> Iterator[Finding]:
    by_rank = {other.rank: other for other in facts.ranks}
    for step in (-1, 1):
        neighbour = by_rank.get((rank.rank + step) % len(facts.ranks))
        if (
            neighbour is not None
            and neighbour.node != rank.node
            and neighbour.sockets is not None
            and neighbour.rank not in met
        ):
            text = f"no connection to its neighbour, {neighbour.place}, was found"
            yield _said(rank, Answer.MISSING, Case.UNREADABLE, text)
            return


def _interface(socket: Socket, node: NodeFacts) -> str | None:
    return node.addresses.get(socket.local[0])


def _said(rank: RankFacts, answer: Answer, case: Case, text: str) -> Finding:
    return Finding(
        fact=Fact.LOGGED, answer=answer, case=case, text=text, node=rank.node, rank=rank.rank
    )

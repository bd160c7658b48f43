"""Judges fact two: the network of ranks, by NCCL's log, gloo's connections or UCX's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_mnode.criteria.transport.channels import RankChannels, ucx_off_fabric
from pytest_mnode.criteria.transport.evidence import (
    Connection,
    Evidence,
    NodeTraffic,
    RankTransport,
    is_nvlink,
    is_rdma,
    nvlink_groups,
    past_nics,
    state_of,
)
from pytest_mnode.criteria.transport.remarks import About, Case, ProofFact, Remark
from pytest_mnode.criteria.transport.settings import is_off, why_silent
from pytest_mnode.logs.nccl_log.model import NetworkKind, Transport
from pytest_mnode.spec.models import Spec


def logged(facts: Evidence, spec: Spec, roce_version: str) -> list[Remark]:
    """The network of ranks: of NCCL by its log, of gloo by its connections, else by UCX's log."""
    if facts.backend == "gloo":
        return list(_connected(facts, spec))
    if facts.backend == "hccl":
        return list(_by_hccl(facts))
    if facts.backend != "nccl":
        return list(_over_ucx(facts, spec))
    found: list[Remark] = []
    of_all: list[RankChannels] = []
    for node in facts.nodes:
        ranks = [rank for rank in facts.ranks if rank.node == node.name]
        read = [RankChannels(spec, roce_version, node, rank, facts.nccl_version) for rank in ranks]
        for one in read:
            found += one.remarks()
            found += _bypassing_nics(one, facts)
        found += _of_node(node, read, facts, spec)
        of_all += read
    found += _unequal_plugins(of_all)
    found += _without_nvlink(facts, spec)
    return _with_unaffected_nodes(found, facts)


def _unequal_plugins(ranks: Sequence[RankChannels]) -> Iterator[Remark]:
    """Ranks whose network plugin is not that of most ranks; all ranks, none for sure, if there is
    no such one.

    The ends of a connection must have the same plugin: others misread each other, or hang.
    """
    plugins = {
        one.rank.rank: frozenset(
            channel.network
            for channel in one.channels
            if channel.transport is Transport.NET
            and channel.network
            and one.log is not None
            and one.log.kind_of(channel) is NetworkKind.RDMA
        )
        for one in ranks
    }
    count = Counter(names for names in plugins.values() if names)
    most = max(count.values(), default=0)
    usual = [names for names, number in count.items() if number == most]
    for one in ranks:
        own = plugins[one.rank.rank]
        if own and len(count) > 1 and usual != [own]:
            others = sorted(set().union(*count) - own) or sorted(set().union(*usual))
            text = (
                f"network plugin {', '.join(sorted(own))}, on other ranks "
                f"{', '.join(others)}: install one libnccl-net.so on all nodes, or set "
                "NCCL_NET_PLUGIN=none on all"
            )
            yield replace(one.about.fail(Case.DIFFERS, text), sure=len(usual) == 1)


def _of_node(
    node: NodeTraffic, ranks: Sequence[RankChannels], facts: Evidence, spec: Spec
) -> Iterator[Remark]:
    """Remarks that need all ranks of a node: whether a channel leaves it, and over which rails."""
    about = About(ProofFact.LOGGED, node.name)
    if not ranks:
        yield about.inconclusive(Case.NO_LOG, "no rank of this node reported its network")
        return
    most = max(Counter(rank.node for rank in facts.ranks).values())
    if len(ranks) < most:
        text = f"{len(ranks)} ranks of this node reported their network, {most} of another node"
        yield about.inconclusive(Case.NO_LOG, text)
    known = [one for one in ranks if one.own is not None]
    past = any(past_nics(one.rank, facts) for one in ranks)
    if known and not past and not any(one.channels for one in ranks):
        why = why_silent(known[0].rank.environment)
        text = "no channel that leaves the node is logged" + (f": {why}" if why else "")
        yield about.inconclusive(Case.NO_LOG, text)
    if is_rdma(spec):
        every = len(ranks) == most and not past  # NVLink's nodes may send over few rails, or none
        yield from _rails(node, ranks, facts, spec, all_ranks=every)


def _rails(
    node: NodeTraffic,
    ranks: Sequence[RankChannels],
    facts: Evidence,
    spec: Spec,
    *,
    all_ranks: bool,
) -> Iterator[Remark]:
    """RDMA devices that channels of a node's ranks run on, compared with those of the fabric."""
    about = About(ProofFact.LOGGED, node.name)
    by_pci = {device.pci_address: device.name for device in node.machine.rdma or ()}
    used: dict[str, None] = {}
    unnamed = False
    for one in ranks:
        if one.log is None or one.own is None:
            continue
        rdma = [c for c in one.channels if one.log.kind_of(c) is NetworkKind.RDMA]
        names, all_named = one.log.adapters(rdma)
        devices = [by_pci.get(name, name) for name in names]
        used.update(dict.fromkeys(devices))
        # A PCI address without a known device shows no rail.
        unnamed = unnamed or not all_named or any(name.count(":") > 1 for name in devices)
    if unnamed and spec.fabric.kind not in (
        "efa",
        "cxi",
    ):  # libfabric lists no adapters: counters decide
        yield about.inconclusive(Case.UNREADABLE, "the log does not name the devices of channels")
    if unnamed or not used:
        return
    if stray := [name for name in used if not node.is_named(name, spec)]:
        fabric = ", ".join(spec.fabric.interfaces)
        text = f"channels run over {', '.join(stray)}, not of the fabric ({fabric})"
        yield about.fail(Case.STRAY_RAIL, text)
    ours = [name for name in used if name not in stray]
    expected = facts.rails_expected(spec)
    if all_ranks and all(one.whole for one in ranks) and 0 < len(ours) < expected:
        idle = [
            f"{port.name} ({state_of(port)})" if state_of(port) else port.name
            for port in node.fabric_ports(spec)
            if not {port.device, port.name} & used.keys()
        ]
        without = f", none over {', '.join(idle)}" if idle else ""
        text = f"channels run over {len(ours)} of {expected} rails ({', '.join(ours)}){without}"
        yield about.fail(Case.RAIL_DOWN, text)


def _bypassing_nics(one: RankChannels, facts: Evidence) -> Iterator[Remark]:
    """Channels to ranks of other nodes that no network carries, and no promised NVLink."""
    joined = one.spec.accelerators.nodes_of_a_domain > 1
    paths = [p for p in past_nics(one.rank, facts) if not (joined and is_nvlink(p))]
    if paths:
        why = " (NVLink between nodes)" if any(map(is_nvlink, paths)) else ""
        text = f"channels to other nodes bypass the fabric: they run over {', '.join(paths)}{why}"
        yield one.about.fail(Case.NOT_ON_FABRIC, text)


def _without_nvlink(facts: Evidence, spec: Spec) -> Iterator[Remark]:
    """Nodes that one domain has room for, and that NVLink does not join: nobody said which are of
    one domain."""
    groups, most = nvlink_groups(facts, spec), spec.accelerators.nodes_of_a_domain
    off = any(is_off(rank.environment.get("NCCL_MNNVL_ENABLE")) for rank in facts.ranks)
    if 1 < len(facts.nodes) <= most and len(groups) > 1 and not off:
        text = (
            f"NVLink joins {len(groups)} groups of these {len(facts.nodes)} nodes, and a domain "
            f"has {most}: IMEX, or nodes of different domains"
        )
        yield About(ProofFact.LOGGED, facts.nodes[0].name).inconclusive(Case.NOT_ON_FABRIC, text)


def _with_unaffected_nodes(found: Sequence[Remark], facts: Evidence) -> list[Remark]:
    """The remarks; those on a fallback also name the nodes that did not fall back."""
    fallen = {remark.node for remark in found if remark.fallback}
    others = [node.name for node in facts.nodes if node.name not in fallen]
    if not fallen or not others:
        return list(found)
    alone = "alone, " if len(fallen) == 1 else ""
    return [
        replace(remark, text=f"{alone}{remark.text} (no fallback on {', '.join(others)})")
        if remark.fallback
        else remark
        for remark in found
    ]


def _connected(facts: Evidence, spec: Spec) -> Iterator[Remark]:
    """Whether connections between ranks of different nodes are bound to the fabric.

    A connection between ranks is one that both have, with swapped ends: a rank's connection to
    the store, or a test's own, has no such other end. Every rank whose neighbour in the ring is on
    another node must have a connection to it.
    """
    owners = {connection: rank for rank in facts.ranks for connection in rank.connections or ()}
    for rank in facts.ranks:
        about = About(ProofFact.LOGGED, rank.node, rank.rank)
        if rank.connections is None:
            yield about.inconclusive(Case.UNREADABLE, "no connections are known")
            continue
        peers = {
            (own, remote): owners[remote, own]
            for own, remote in rank.connections
            if (remote, own) in owners
        }
        yield from _bound(about, facts.node(rank.node), peers, spec)
        yield from _not_connected(about, rank, {peer.rank for peer in peers.values()}, facts)


def _bound(
    about: About, node: NodeTraffic, peers: dict[Connection, RankTransport], spec: Spec
) -> Iterator[Remark]:
    wrong: dict[str, None] = {}
    for ((address, _), _), peer in peers.items():
        if peer.node == node.name:
            continue
        interface = node.interface_of(address)
        if interface is None:
            text = f"a connection is bound to {address}, whose interface is not known"
            yield about.inconclusive(Case.UNREADABLE, text)
        elif not spec.fabric.has_interface(interface):
            wrong[interface] = None
    if wrong:
        over, fabric = ", ".join(wrong), ", ".join(spec.fabric.interfaces)
        text = f"connections to other nodes are bound to {over}, not to the fabric ({fabric})"
        yield about.fail(Case.WRONG_INTERFACE, text)


def _not_connected(
    about: About, rank: RankTransport, peers: set[int], facts: Evidence
) -> Iterator[Remark]:
    by_rank = {other.rank: other for other in facts.ranks}
    for step in (-1, 1):
        neighbour = by_rank.get((rank.rank + step) % len(facts.ranks))
        if (
            neighbour is not None
            and neighbour.node != rank.node
            and neighbour.connections is not None
            and neighbour.rank not in peers
        ):
            where = f"rank {neighbour.rank} on {neighbour.node}"
            text = f"no connection to its neighbour, {where}, was found"
            yield about.inconclusive(Case.UNREADABLE, text)
            return


def _by_hccl(facts: Evidence) -> Iterator[Remark]:
    """HCCL names its links (HCCS, RoCE, UB) only in logs of CANN, of which none was seen here."""
    for rank in facts.ranks:
        text = "no log that is read here names the links of HCCL (RoCE or UnifiedBus)"
        about = About(ProofFact.LOGGED, rank.node, rank.rank)
        yield about.inconclusive(Case.UNKNOWN_NETWORK, text)


def _over_ucx(facts: Evidence, spec: Spec) -> Iterator[Remark]:
    """The network of ranks whose backend runs over UCX (MPI, UCC)."""
    for rank in facts.ranks:
        configs = rank.log.ucx if rank.log is not None else ()
        if not configs:
            text = (
                f"it is not known which network the {facts.backend} backend uses; if it uses UCX, "
                "set UCX_LOG_LEVEL=info and UCX_LOG_FILE=FILE.%h.%p"
            )
            about = About(ProofFact.LOGGED, rank.node, rank.rank)
            yield about.inconclusive(Case.UNKNOWN_NETWORK, text)
        yield from ucx_off_fabric(configs, spec, rank, facts.node(rank.node))

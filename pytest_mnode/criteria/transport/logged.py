"""Second fact: what ranks say that they run on, each by itself and the ranks of a node together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_mnode.criteria.transport.channels import RankChannels, adapters
from pytest_mnode.criteria.transport.facts import Facts, NodeFacts
from pytest_mnode.criteria.transport.proof import Answer, Case, Fact, FactVerdict, Finding
from pytest_mnode.criteria.transport.rails import rails_expected
from pytest_mnode.criteria.transport.sockets import connected, over_ucx
from pytest_mnode.criteria.transport.why import Silence
from pytest_mnode.logs.nccl_log import Network
from pytest_mnode.spec.models import Spec


def logged(facts: Facts, spec: Spec, roce_version: str) -> FactVerdict:
    """What ranks say that they run on: NCCL by its log, gloo by its connections, others by UCX."""
    if facts.backend == "gloo":
        return connected(facts, spec)
    if facts.backend != "nccl":
        return over_ucx(facts, spec)
    found: list[Finding] = []
    for node in facts.nodes:
        ranks = [rank for rank in facts.ranks if rank.node == node.name]
        read = [RankChannels(spec, roce_version, node, rank, facts.nccl_version) for rank in ranks]
        for one in read:
            found += one.findings()
            found += _past_the_network(one, facts)
        found += _of_node(node, read, facts, spec)
    return FactVerdict(Fact.LOGGED, tuple(_beside_others(found, facts)))


def _of_node(
    node: NodeFacts, ranks: Sequence[RankChannels], facts: Facts, spec: Spec
) -> Iterator[Finding]:
    """What only all ranks of a node can tell: that any channel leaves it, and over which rails."""

    def said(answer: Answer, case: Case, text: str) -> Finding:
        return Finding(fact=Fact.LOGGED, answer=answer, case=case, text=text, node=node.name)

    if not ranks:
        text = "no rank of this node told what it runs on"
        yield Finding(
            fact=Fact.LOGGED, answer=Answer.MISSING, case=Case.NO_LOG, text=text, node=node.name
        )
        return
    most = max(sum(rank.node == other.name for rank in facts.ranks) for other in facts.nodes)
    if len(ranks) < most:
        text = f"{len(ranks)} ranks of this node told what they run on, of others {most}"
        yield said(Answer.MISSING, Case.NO_LOG, text)
    told = [one for one in ranks if one.mine is not None]
    past = any(True for one in ranks for _ in _past_the_network(one, facts))
    if told and not past and not any(one.channels for one in ranks):
        silence = Silence(told[0].rank.environment).text
        text = "no channel that leaves the node is logged" + (f": {silence}" if silence else "")
        yield said(Answer.MISSING, Case.NO_LOG, text)
    if spec.fabric.kind == "ethernet":
        return
    used: dict[str, None] = {}
    unnamed = False
    for one in told:
        assert one.log is not None
        rdma = [c for c in one.channels if one.log.kind_of(c) is Network.RDMA]
        names, nameless = adapters(one.log, rdma)
        by_pci = {p.pci_address: p.device for p in one.node.ports or () if p.pci_address}
        devices = [by_pci.get(name, name) for name in names]
        used.update(dict.fromkeys(devices))
        # A PCI address that no device was found for tells nothing of rails.
        unnamed = unnamed or nameless or any(name.count(":") > 1 for name in devices)
    if unnamed and spec.fabric.kind != "efa":  # libfabric lists no adapters: counters tell
        yield said(Answer.MISSING, Case.UNREADABLE, "the log does not name the devices of channels")
    if unnamed or not used:
        return
    if stray := [name for name in used if not spec.fabric.has_interface(_device(name))]:
        fabric = ", ".join(spec.fabric.interfaces)
        text = f"channels run over {', '.join(stray)}, not of the fabric ({fabric})"
        yield said(Answer.DISAGREES, Case.STRAY_RAIL, text)
    ours = [name for name in used if name not in stray]
    expected = rails_expected(facts, spec)
    if len(ranks) == most and all(one.whole for one in ranks) and 0 < len(ours) < expected:
        idle = [
            f"{p.device}:{p.port}{'' if p.active in (True, None) else f' ({p.state})'}"
            for p in ranks[0].node.ports or ()
            if spec.fabric.has_interface(p.device)
            and not {p.device, f"{p.device}:{p.port}"} & used.keys()
        ]
        without = f", none over {', '.join(idle)}" if idle else ""
        text = f"channels run over {len(ours)} of {expected} rails ({', '.join(ours)}){without}"
        yield said(Answer.DISAGREES, Case.RAIL_DOWN, text)


def _past_the_network(one: RankChannels, facts: Facts) -> Iterator[Finding]:
    """Channels to ranks of other nodes that no network carries: NVLink between nodes (MNNVL)."""
    if one.mine is None:
        return
    nodes = {rank.rank: rank.node for rank in facts.ranks}
    world = {comm.address for comm in one.mine.comms if comm.size == len(facts.ranks)}
    ways: dict[str, None] = {}
    for channel in one.mine.channels:
        ends = [nodes.get(rank) for rank in (channel.sender, channel.receiver) if rank is not None]
        # Numbers of ranks are those of the channel's communicator: only in the world's they tell.
        if channel.crosses_network or channel.comm not in world or None in ends:
            continue
        if any(name != one.node.name for name in ends):
            ways[channel.detail] = None
    if ways:
        why = " (NVLink between nodes)" if any("MNNVL" in way for way in ways) else ""
        text = f"channels to other nodes run over {', '.join(ways)}{why}, past the fabric"
        yield one.against(Case.NOT_ON_FABRIC, text)


def _beside_others(found: Sequence[Finding], facts: Facts) -> list[Finding]:
    """Where some nodes fell back and others did not, that is said: a node is alone on TCP."""
    fallen = {
        f.node
        for f in found
        if f.answer is Answer.DISAGREES and f.text.startswith("channels run over")
        and " instead of " in f.text
    }  # fmt: skip
    others = [node.name for node in facts.nodes if node.name not in fallen]
    if not fallen or not others:
        return list(found)
    alone = "alone, " if len(fallen) == 1 else ""
    return [
        replace(f, text=f"{alone}{f.text}; not so {', '.join(others)}")
        if f.node in fallen and " instead of " in f.text
        else f
        for f in found
    ]


def _device(name: str) -> str:
    return name.partition(":")[0]

"""Messages, sums and the proof of transport on a virtual cluster: what ranks would read and log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.mesh import SUMMED_SIZES_BYTES, judge_exchange, judge_sum, judge_sums
from pytest_mnode.criteria.transport.counted import expected_bytes, judge
from pytest_mnode.criteria.transport.evidence import Evidence, NodeTraffic, RankTransport
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.limits import CHECKED_CALLS
from pytest_mnode.measuring.messages import DTYPES, Exchange, Sums
from pytest_mnode.spec.fabric import TransportPromise
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.machines import links_of
from pytest_mnode.virtual.ports import ports

_MESH = "acceptance/test_mesh.py"
_HEADERS = 1.01
"""Bytes of a port over its payload, with headers. [choice] 1 to 2 % at an MTU of 4096."""
_BESIDE = 20_000
"""Bytes of other NICs meanwhile. [choice]"""
_NETS = {
    "infiniband": ("IB", "NET/IB : Using"),
    "roce": ("IB", "NET/IB : Using"),
    "efa": ("AWS Libfabric", "NET/OFI Selected provider is efa, fabric is efa (found {} nics)"),
    "cxi": ("AWS Libfabric", "NET/OFI Selected provider is cxi, fabric is cxi (found {} nics)"),
    "tcpx": ("GPUDirectTCPX_v7", ""),
    "tcpxo": ("FasTrak", ""),
}
"""NCCL's name for the network of a fabric, and a line of its log beside."""


def mesh(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of `acceptance/test_mesh.py`."""
    names, world, ranks = cluster.nodes, cluster.world, cluster.ranks
    rng = cluster.rng
    wrong = tuple(
        (rank, other)
        for rank, share in cluster.corrupts.items()
        for other in range(ranks)
        if other != rank and rng.random() < share
    )
    met = judge_exchange(Exchange(world, wrong))
    yield case(f"{_MESH}::test_every_rank_meets_every_other", [met], names)
    for size in SUMMED_SIZES_BYTES:
        counts, senders = cluster.wrong_calls(CHECKED_CALLS)
        found = judge_sum(world, counts, senders)
        yield case(f"{_MESH}::test_sum_is_right[{size}]", [found], names)
    sums = (Sums(world, *cluster.wrong_calls(CHECKED_CALLS)) for _ in DTYPES)
    found_sums = [judge_sums(*pair) for pair in zip(DTYPES, sums, strict=True)]
    yield case(f"{_MESH}::test_sum_is_right_in_every_dtype", found_sums, names)
    yield ports(cluster, _MESH)


def why_no_proof(cluster: VirtualCluster) -> str:
    """Why the proof of transport cannot be rehearsed; "" if it can."""
    if cluster.backend != "nccl" or cluster.spec.fabric.kind not in _NETS:
        return f"what {cluster.backend} connects on {cluster.spec.fabric.kind} is not known here"
    return "" if len(cluster.nodes) > 1 else "one node has no other"


def proof(cluster: VirtualCluster, promise: TransportPromise) -> list[Measurement]:
    """The four facts, by logs of ranks that go through their reader, and counters."""
    spec = cluster.spec
    names, management = links_of(spec.fabric), spec.management
    other = links_of(management)[0] if management else "eth0"
    ranks = tuple(
        RankTransport(
            rank=rank,
            node=cluster.nodes[rank // cluster.per_node],
            environment={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH"},
            log=read_nccl_log(_log(cluster, rank, other)),
        )
        for rank in range(cluster.ranks)
    )
    bare = tuple(
        NodeTraffic(name=name, machine=survey.machine)
        for name, survey in zip(cluster.nodes, cluster.machines, strict=True)
    )
    facts = Evidence(
        backend="nccl", size_bytes=promise.size_bytes, calls=promise.calls, nodes=bare, ranks=ranks
    )
    sent = expected_bytes(facts, spec.fabric, promise).payload_bytes * _HEADERS
    each, nodes = max(1, spec.accelerators.nodes_of_a_domain), []
    for index, node in enumerate(bare):
        counts = {nic.name: _BESIDE for nic in node.machine.interfaces or ()}
        # NVLink joins the nodes of a domain, and the last sends to the next domain.
        last = (index + 1) % each == 0 or index + 1 == len(bare)
        leaves = last and len(bare) > each
        for name, moved in cluster.carried(index, int(sent) if leaves else 0).items():
            nic = f"{name}:1" if spec.fabric.protocol and name in names else name
            counts[nic] = max(moved, _BESIDE)
        nodes.append(replace(node, sent_bytes=counts, received_bytes=counts))
    return judge(replace(facts, nodes=tuple(nodes)), spec, promise)


def _log(cluster: VirtualCluster, rank: int, beside: str) -> str:
    """What NCCL prints of a rank's channels to the next node and from the one before."""
    each, names, domains = cluster.per_node, links_of(cluster.spec.fabric), cluster.domains
    node, local = divmod(rank, each)
    net, said = _NETS[cluster.spec.fabric.kind]
    first = local * len(names) // each
    nics = [*range(first, max(first + 1, (local + 1) * len(names) // each))]
    if node in cluster.crossed and len(names) > 1:
        nics = [max(1, nics[0])]
    gdr = "" if node in cluster.staged or cluster.spec.fabric.by_kernel else "/GDRDMA"
    if net == "IB":
        layer = "RoCE" if cluster.spec.fabric.kind == "roce" else "IB"
        said += "".join(f" [{i}]{name}:1/{layer}" for i, name in enumerate(names))
        said += f" [RO]; OOB {beside}:10.0.0.1<0>"
    if node in cluster.tcp:
        net, said, nics, gdr = "Socket", f"NET/Socket : Using [0]{beside}:10.0.0.1<0>", [0], ""
    comm = f"comm 0x7f1b0{rank:05x}000 rank {rank} nranks {cluster.ranks} cudaDev {local} nvmlDev "
    comm += f"{local} busId {local + 1}a000 commId 0x3c1d2e5f60718293"
    ahead, behind = ((rank + step) % cluster.ranks for step in (each, -each))
    channels = []
    for one, other, way in ((behind, rank, "receive"), (rank, ahead, "send")):
        if one // each != other // each and domains[one // each] == domains[other // each]:
            channels.append(f"Channel 00/0 : {one}[{local}] -> {other}[{local}] via P2P/MNNVL")
            continue
        channels += (
            f"Channel {nic:02d}/0 : {one}[{local}] -> {other}[{local}] [{way}] via "
            f"NET/{net}/{nic}{gdr}"
            for nic in nics
        )
    lines = (
        *([said.format(len(names))] if said else []),
        f"Using network {net}",
        f"ncclCommInitRank {comm} - Init START",
        *channels,
        "Connected all rings, use ring PXN 0 GDR 1",
        f"ncclCommInitRank {comm} - Init COMPLETE",
    )
    who = f"{cluster.nodes[node]}:{5000 + local}:{5100 + local} [{local}] NCCL INFO "
    head = "NCCL version 2.28.9+cuda13.0\n" if rank == 0 else ""
    return head + "\n".join(who + line for line in lines) + "\n"

"""How the sum of a node's NIC rates bounds the bus bandwidth of each collective. Pure.

Bus bandwidth counts bytes as they pass a rank; NICs count them as they leave a node. The two agree
where one ring runs over all nodes, and for other ways to move data this says by how much they
differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mnode.spec import wire
from pytest_mnode.spec.quantity import RATE
from pytest_mnode.spec.wire import Collective

_FORMULA = {
    Collective.ALL_REDUCE: "2(n-1)/n",
    Collective.BROADCAST: "1",
    Collective.REDUCE: "1",
    Collective.SEND_RECV: "1",
}


@dataclass(frozen=True, slots=True)
class BusbwLine:
    """What the NICs of a node allow the bus bandwidth of one collective to be.

    gbytes_s: with the algorithm in use; what a promise is a part of. text: how that follows from
    the spec, for the source of a bound. ceiling_gbytes_s: what nothing can exceed that moves each
    byte over the fabric as often as a ring or a direct message does; None within one node, where no
    byte goes over it.
    """

    gbytes_s: float
    text: str
    ceiling_gbytes_s: float | None


def ring_line(fabric: wire.HasLineRate) -> BusbwLine:
    """The line of one ring over all ranks: the sum of a node's NIC rates."""
    total = wire.line_rate_gbytes_s(fabric)
    nics = f" × {fabric.nics_per_node} NICs" if fabric.nics_per_node > 1 else ""
    return BusbwLine(total, f"fabric.line_rate {RATE.text(fabric.line_rate_bits_s)}{nics}", total)


def busbw_line(
    collective: str,
    fabric: wire.HasLineRate,
    nodes: int,
    ranks_per_node: int,
    backend: str,
) -> BusbwLine:
    """The line of a collective over `nodes` × `ranks_per_node` ranks.

    One ring over all ranks enters and leaves a node once, so that busbw is the NICs' rate: all of
    all-reduce, all-gather, reduce-scatter, broadcast, reduce. In an all-to-all each of g ranks
    sends (n-g)/n of S to other nodes, which makes the line (n-1)/(g(n-g)) of the NICs' rate. In an
    exchange with neighbours one rank of a node sends to the next node, over its own share of the
    NICs. gloo broadcasts by a tree (`gloo_tree_copies`), and makes a reduce-scatter of an
    all-reduce, which moves twice the bytes. Raises ValueError as `wire` does.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth"; gloo, broadcast.cc; torch,
    ProcessGroupGloo.cpp.
    """
    ranks = nodes * ranks_per_node
    ring = ring_line(fabric)
    total = ring.gbytes_s
    if nodes == 1:
        return BusbwLine(total, ring.text, None)
    match collective, backend:
        case Collective.ALL_TO_ALL, _ if ranks_per_node > 1:
            line = total * (ranks - 1) / (ranks_per_node * (ranks - ranks_per_node))
            how = f" × (n-1)/(g(n-g)) for g={ranks_per_node} of n={ranks} ranks on a node"
            return BusbwLine(line, ring.text + how, line)
        case Collective.SEND_RECV, _:
            of_a_rank = max(1.0, fabric.nics_per_node / ranks_per_node)
            how = f" × {of_a_rank:g} NICs of a rank" if of_a_rank > 1 else ""
            line = total * of_a_rank / fabric.nics_per_node
            text = f"fabric.line_rate {RATE.text(fabric.line_rate_bits_s)}{how}"
            return BusbwLine(line, text, total)
        case Collective.BROADCAST, "gloo" if ranks > 2:
            copies = gloo_tree_copies(nodes, ranks_per_node)
            how = f" ÷ {copies} copies that the root's node sends in gloo's tree"
            return BusbwLine(total / copies, ring.text + how, total)
        case Collective.REDUCE_SCATTER, "gloo":
            how = " ÷ 2 as gloo's reduce_scatter is an all_reduce inside"
            return BusbwLine(total / 2, ring.text + how, total)
        case _:
            return ring


def gloo_tree_copies(nodes: int, ranks_per_node: int) -> int:
    """How often the busiest node sends the whole message to others in a broadcast by gloo.

    Ranks that have it double: rank r sends to r + 1, r + 2, r + 4 …, each power of two above r. For
    g ranks a node, a power of two, that is g · log2(k) on k nodes.

    Source: gloo, broadcast.cc.
    """
    ranks = nodes * ranks_per_node
    sent = [0] * nodes
    for rank in range(ranks):
        step = 1 << rank.bit_length()
        while rank + step < ranks:
            sent[rank // ranks_per_node] += (
                rank // ranks_per_node != (rank + step) // ranks_per_node
            )
            step *= 2
    return max(sent)


def busbw_formula(collective: str) -> str:
    """How busbw follows from size and time, with its source, for a reader of a measurement."""
    factor = _FORMULA.get(Collective(collective), "(n-1)/n")
    return f"busbw = size/time × {factor} (nccl-tests, PERFORMANCE.md)"


def least_node_bytes(
    collective: str, size_bytes: int, nodes: int, ranks_per_node: int
) -> float | None:
    """Bytes that each node sends to others at the least, by whatever algorithm, without headers.

    None where a node may send nothing: all but the root's in a broadcast. Less than this on a
    kernel's counters means that the kernel did not see the traffic.
    """
    ranks = nodes * ranks_per_node
    match Collective(collective):
        case Collective.ALL_REDUCE | Collective.SEND_RECV:
            return float(size_bytes)
        case Collective.ALL_GATHER:
            return size_bytes / nodes
        case Collective.REDUCE_SCATTER:
            return size_bytes * (nodes - 1) / nodes
        case Collective.ALL_TO_ALL:
            return ranks_per_node * size_bytes * (ranks - ranks_per_node) / ranks
        case _:
            return None

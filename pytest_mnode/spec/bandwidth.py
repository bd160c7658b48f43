"""Bandwidth that NICs and links allow: formulas of sizes, times and rates, with their sources.

Pure, without pydantic. GB is 10^9 bytes throughout, and rates count one direction of the link. Bus
bandwidth counts bytes as they pass a rank; NICs count bytes as they leave a node. The two agree
if one ring runs over all nodes; `busbw_at_line_rate` gives their ratio otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from pytest_mnode.spec.quantity import RATE

ETHERNET_HEADER_BYTES = 14
"""Destination, source and type of a frame: what a Linux shaper (tbf) counts besides the packet."""

ETHERNET_WIRE_BYTES = 38
"""Header 14, checksum 4, preamble 8 and gap 12: what a frame costs besides its packet.

Source: IEEE 802.3, clauses 3 (frame) and 4.4 (inter-packet gap).
"""


class Collective(StrEnum):
    """Collectives that have a bus factor, by torch.distributed's names."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    GATHER = "gather"
    SCATTER = "scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND_RECV = "send_recv"


class NicRates(Protocol):
    """The NICs of a node: their number, and the line rate of each."""

    @property
    def line_rate_bits_s(self) -> int: ...

    @property
    def nics_per_node(self) -> int: ...


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value!r} is not a finite number above 0")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}={value!r} is below {least}")


@lru_cache
def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw: bytes on the busiest link for each byte of the collective's size.

    All-reduce 2(n-1)/n; all-gather, reduce-scatter, all-to-all, gather, scatter (n-1)/n; broadcast,
    reduce, send-recv 1. Raises ValueError for an unknown collective or fewer than 2 ranks.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    _at_least("ranks", ranks, 2)
    if collective not in tuple(Collective):
        raise ValueError(f"collective {collective!r} is not one of {', '.join(Collective)}")
    match Collective(collective):
        case Collective.ALL_REDUCE:
            return 2 * (ranks - 1) / ranks
        case Collective.BROADCAST | Collective.REDUCE | Collective.SEND_RECV:
            return 1.0
        case _:
            return (ranks - 1) / ranks


def algbw_gbytes_s(size_bytes: int, time_s: float) -> float:
    """Size over time, S/t.

    For all-gather, reduce-scatter and all-to-all the size is the total across ranks; for the others
    it is what one rank holds.

    Source: nccl-tests, doc/PERFORMANCE.md, "Algorithm bandwidth".
    """
    _positive("size_bytes", size_bytes)
    _positive("time_s", time_s)
    return size_bytes / time_s / 1e9


def busbw_gbytes_s(collective: str, size_bytes: int, time_s: float, ranks: int) -> float:
    """algbw × bus factor: comparable with the line rate for any number of ranks.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    return algbw_gbytes_s(size_bytes, time_s) * bus_factor(collective, ranks)


def flat_ring_node_bytes(size_bytes: int, nodes: int, ranks_per_node: int) -> float:
    """Bytes that leave one node in an all-reduce of S over one ring of n = kg ranks: 2(n-1)/n · S.

    The ring enters and leaves a node once, whatever the number of ranks in it. Add the headers
    (`tcp_payload_share`) to compare with a NIC's counters.

    Source: Patarasuk and Yuan 2009, section 4: what each rank sends.
    """
    _positive("size_bytes", size_bytes)
    _at_least("nodes", nodes, 2)
    _at_least("ranks_per_node", ranks_per_node, 1)
    return bus_factor(Collective.ALL_REDUCE, nodes * ranks_per_node) * size_bytes


def hierarchical_node_bytes(size_bytes: int, nodes: int) -> float:
    """Bytes that leave one node when ranks reduce inside nodes first: 2(k-1)/k · S for k nodes.

    Each of g ranks sends 2(k-1)/k · S/g between nodes. Less than a flat ring's, so that busbw may
    exceed the sum of NIC rates without being an error.

    Source: Patarasuk and Yuan 2009, applied to k nodes that each hold S/g in g places.
    """
    _positive("size_bytes", size_bytes)
    _at_least("nodes", nodes, 2)
    return bus_factor(Collective.ALL_REDUCE, nodes) * size_bytes


def in_network_node_bytes(size_bytes: int, nodes: int) -> float:
    """Bytes that leave one node when switches reduce: about S, once up.

    Source: Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COMHPC 2016.
    """
    _positive("size_bytes", size_bytes)
    _at_least("nodes", nodes, 2)
    return float(size_bytes)


def tcp_payload_share(
    mtu_bytes: int,
    *,
    framing_bytes: int = ETHERNET_WIRE_BYTES,
    ip_header_bytes: int = 20,
    tcp_options_bytes: int = 12,
) -> float:
    """The part of an Ethernet line rate that TCP can carry as payload, with full packets.

    (mtu - IP - TCP 20 - options) / (mtu + framing). At MTU 1500 that is 0.941 of the wire, and
    0.956 of what a Linux shaper counts (`framing_bytes=ETHERNET_HEADER_BYTES`). The options are the
    12 bytes of time stamps that Linux sends; `ip_header_bytes` is 40 for IPv6.

    Source: IEEE 802.3 framing, RFC 791 (IP), RFC 9293 (TCP), RFC 7323 (time stamps).
    """
    for name, value in (
        ("framing_bytes", framing_bytes),
        ("ip_header_bytes", ip_header_bytes),
        ("tcp_options_bytes", tcp_options_bytes),
    ):
        _at_least(name, value, 0)
    payload_bytes = mtu_bytes - ip_header_bytes - 20 - tcp_options_bytes
    if payload_bytes < 1:
        raise ValueError(f"mtu_bytes={mtu_bytes!r} leaves no room for payload")
    return payload_bytes / (mtu_bytes + framing_bytes)


def line_rate_gbytes_s(fabric: NicRates) -> float:
    """Line rate of all NICs of one node together, in one direction, headers included.

    Source: the spec's `fabric.line_rate` × `fabric.nics_per_node` / 8 bits per byte.
    """
    _positive("line_rate_bits_s", fabric.line_rate_bits_s)
    _at_least("nics_per_node", fabric.nics_per_node, 1)
    return fabric.line_rate_bits_s * fabric.nics_per_node / 8 / 1e9


_FORMULA = {
    Collective.ALL_REDUCE: "2(n-1)/n",
    Collective.BROADCAST: "1",
    Collective.REDUCE: "1",
    Collective.SEND_RECV: "1",
}


@dataclass(frozen=True, slots=True)
class BusbwAtLineRate:
    """The bus bandwidth of one collective that the NICs of a node allow.

    gbytes_s: with the algorithm in use; promises are fractions of it. text: its derivation from the
    spec, for the source of a bound. ceiling_gbytes_s: the limit of all algorithms that move each
    byte over the fabric as often as a ring or a direct message does; None within one node, where no
    byte crosses the fabric. line_rate_bits_s: that of one NIC, which all of these follow.
    """

    gbytes_s: float
    text: str
    ceiling_gbytes_s: float | None
    line_rate_bits_s: float


def ring_at_line_rate(fabric: NicRates) -> BusbwAtLineRate:
    """The line of one ring over all ranks: the sum of a node's NIC rates."""
    total = line_rate_gbytes_s(fabric)
    nics = f" × {fabric.nics_per_node} NICs" if fabric.nics_per_node > 1 else ""
    text = f"fabric.line_rate {RATE.text(fabric.line_rate_bits_s)}{nics}"
    return BusbwAtLineRate(total, text, total, fabric.line_rate_bits_s)


def busbw_at_line_rate(
    collective: str,
    fabric: NicRates,
    nodes: int,
    ranks_per_node: int,
    backend: str,
) -> BusbwAtLineRate:
    """The line of a collective over `nodes` × `ranks_per_node` ranks.

    One ring over all ranks enters and leaves a node once, so that busbw is the NICs' rate: for
    all-reduce, all-gather, reduce-scatter, broadcast, reduce. In an all-to-all each of g ranks
    sends (n-g)/n of S to other nodes, which makes the line (n-1)/(g(n-g)) of the NICs' rate. In an
    exchange with neighbours one rank of a node sends to the next node, over its own share of the
    NICs. gloo broadcasts by a tree (`gloo_tree_copies`), and runs a reduce-scatter as an
    all-reduce, which moves twice the bytes. Raises ValueError as `bus_factor` does.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth"; gloo, broadcast.cc; torch,
    ProcessGroupGloo.cpp.
    """
    ranks = nodes * ranks_per_node
    ring = ring_at_line_rate(fabric)
    total = ring.gbytes_s
    if nodes == 1:
        return replace(ring, ceiling_gbytes_s=None)
    match collective, backend:
        case Collective.ALL_TO_ALL, _ if ranks_per_node > 1:
            line = total * (ranks - 1) / (ranks_per_node * (ranks - ranks_per_node))
            how = f" × (n-1)/(g(n-g)) for g={ranks_per_node} of n={ranks} ranks on a node"
            return replace(ring, gbytes_s=line, text=ring.text + how, ceiling_gbytes_s=line)
        case Collective.SEND_RECV, _:
            of_a_rank = max(1.0, fabric.nics_per_node / ranks_per_node)
            how = f" × {of_a_rank:g} NICs of a rank" if of_a_rank > 1 else ""
            line = total * of_a_rank / fabric.nics_per_node
            text = f"fabric.line_rate {RATE.text(fabric.line_rate_bits_s)}{how}"
            return replace(ring, gbytes_s=line, text=text)
        case Collective.BROADCAST, "gloo" if ranks > 2:
            copies = gloo_tree_copies(nodes, ranks_per_node)
            how = f" ÷ {copies} copies that the root's node sends in gloo's tree"
            return replace(ring, gbytes_s=total / copies, text=ring.text + how)
        case Collective.REDUCE_SCATTER, "gloo":
            how = " ÷ 2 as gloo's reduce_scatter is an all_reduce inside"
            return replace(ring, gbytes_s=total / 2, text=ring.text + how)
        case _:
            return ring


def gloo_tree_copies(nodes: int, ranks_per_node: int) -> int:
    """Copies of the whole message that the busiest node sends to others in a broadcast by gloo.

    The ranks that have it double in each step: rank r sends to r + p for each power of two p above
    r. For g ranks per node, a power of two, that is g · log2(k) on k nodes.

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
    """The formula of busbw from size and time, with its source, for a reader of a measurement."""
    factor = _FORMULA.get(Collective(collective), "(n-1)/n")
    return f"busbw = size/time × {factor} (nccl-tests, PERFORMANCE.md)"


def least_node_bytes(
    collective: str, size_bytes: int, nodes: int, ranks_per_node: int
) -> float | None:
    """Fewest bytes that each node sends to others by any algorithm, without headers.

    None if a node may send nothing, as all but the root's do in a broadcast. If the kernel's
    counters show less than this, the kernel did not see the traffic.
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

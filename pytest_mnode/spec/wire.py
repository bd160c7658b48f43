"""What the wire allows: formulas from sizes, times and rates, each with its source.

Pure, without pydantic. GB is 10^9 bytes throughout, and rates count one direction of the link.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Protocol

ETHERNET_HEADER_BYTES = 14
"""Destination, source and type of a frame: what a Linux shaper (tbf) counts beside the packet."""

ETHERNET_WIRE_BYTES = 38
"""Header 14, checksum 4, preamble 8 and gap 12: what a frame costs beside its packet.

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


class HasLineRate(Protocol):
    """What `line_rate_gbytes_s` needs to know of a fabric."""

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
    """algbw × bus factor: comparable with the line rate, whatever the number of ranks.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
    """
    return algbw_gbytes_s(size_bytes, time_s) * bus_factor(collective, ranks)


def ring_all_reduce_time_s(
    size_bytes: int, ranks: int, *, latency_s: float, bandwidth_gbytes_s: float
) -> float:
    """2(n-1)α + 2(n-1)/n · S/B: the least time of a ring all-reduce.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", J. Parallel Distrib. Comput. 69(2), 2009, with a latency α for each step.
    """
    _positive("bandwidth_gbytes_s", bandwidth_gbytes_s)
    _positive("size_bytes", size_bytes)
    if not (math.isfinite(latency_s) and latency_s >= 0):
        raise ValueError(f"latency_s={latency_s!r} is not a finite number of 0 or more")
    transfer_s = bus_factor(Collective.ALL_REDUCE, ranks) * size_bytes / (bandwidth_gbytes_s * 1e9)
    return 2 * (ranks - 1) * latency_s + transfer_s


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


def line_rate_gbytes_s(fabric: HasLineRate) -> float:
    """What all NICs of one node together carry in one direction, headers included.

    Source: the spec's `fabric.line_rate` × `fabric.nics_per_node` / 8 bits a byte.
    """
    _positive("line_rate_bits_s", fabric.line_rate_bits_s)
    _at_least("nics_per_node", fabric.nics_per_node, 1)
    return fabric.line_rate_bits_s * fabric.nics_per_node / 8 / 1e9

"""The range of bytes, headers included, that an all-reduce must send out of each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_mnode.criteria.transport.evidence import Evidence
from pytest_mnode.spec import bandwidth
from pytest_mnode.spec.fabric import TransportPromise
from pytest_mnode.spec.inventory import Fabric

_RDMA_MTUS = (4096, 2048, 1024, 512, 256)
_RDMA_HEADER_BYTES = {"infiniband": 8 + 40 + 12 + 16 + 4 + 2, "roce": 18 + 40 + 8 + 12 + 16 + 4}
"""Most header bytes per packet: link 8 or Ethernet 18, global or IPv6 40, UDP 8, base transport 12,
RDMA 16, checksums 4 (and 2). Source: InfiniBand Architecture Specification 1.4, chapter 5, and its
annex A17 (RoCEv2)."""
_LIBFABRIC_HEADER_SHARE = 0.02
"""An upper bound for EFA: packets of 8 kB with headers of about 100 bytes; counters include none or
all. Slingshot's have 2 kB and about 40 bytes."""
_ACK_BYTES = 14 + 40 + 20 + 12
_GLOO_ALGORITHM = "a flat ring"
_PROTOCOL_COST = {"LL": 2.0, "LL128": 128 / 120}
"""Bytes sent per byte of payload, flags included. Source: NCCL, src/include/device.h."""


@dataclass(frozen=True, slots=True)
class ExpectedBytes:
    """The range of bytes that each node must send, tolerances included, and its source."""

    least_bytes: float
    most_bytes: float
    payload_bytes: float
    source: str


def expected_bytes(
    facts: Evidence, fabric: Fabric, promise: TransportPromise, groups: int | None = None
) -> ExpectedBytes:
    """The range for all fabric NICs of a node together, for two nodes or more.

    groups: number of groups that NVLink makes of the nodes, if it is less than that of nodes: the
    range is that of a group, and of a single one the NICs need not send at all.

    gloo runs a flat ring. NCCL chooses, unless a setting does, between rings, trees and reduction
    in the network: from S (`in_network_node_bytes`; a leaf of both trees) to 2·S (an inner node of
    both trees, which sends its sum up once and results down twice). Sources: `spec.bandwidth`;
    Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan", Parallel Computing 35(12), 2009.
    """
    moved, nodes, each = facts.size_bytes * facts.calls, len(facts.nodes), facts.ranks_per_node
    environment = facts.ranks[0].environment
    ring = bandwidth.flat_ring_node_bytes(moved, nodes, each)
    if facts.backend == "gloo":
        least = most = ring
        how = _GLOO_ALGORITHM
    elif _only(environment, "NCCL_ALGO") == "RING":
        least = most = ring
        how = "a flat ring (NCCL_ALGO)"
    else:
        least = min(
            ring,
            bandwidth.hierarchical_node_bytes(moved, max(2, groups or nodes)),
            bandwidth.in_network_node_bytes(moved, max(2, groups or nodes)),
        )
        most = max(ring, 2.0 * moved)
        how = "ring, trees or reduction in the network"
    if groups is not None:
        least = least if groups > 1 else 0.0
        how += f", NVLink joins the nodes to {groups}"
    if facts.backend != "gloo":
        protocol = _only(environment, "NCCL_PROTO")
        most *= _PROTOCOL_COST.get(protocol or "LL128", 1.0)
    headers = header_share(fabric)
    return ExpectedBytes(
        least * (1 - promise.under_fraction),
        most * (1 + headers) * (1 + promise.over_fraction),
        ring,
        f"{facts.calls} × all-reduce of {facts.size_bytes} B over {nodes} × {each} ranks: {how} "
        f"− {promise.under_fraction:.0%}, + {headers:.1%} headers + {promise.over_fraction:.0%}",
    )


def header_share(fabric: Fabric) -> float:
    """The most that headers, and acknowledgements of received bytes, add to the payload sent."""
    if fabric.kind in ("efa", "cxi"):
        return _LIBFABRIC_HEADER_SHARE
    if fabric.kind in _RDMA_HEADER_BYTES:
        mtu = next((mtu for mtu in _RDMA_MTUS if mtu <= fabric.mtu_bytes), _RDMA_MTUS[-1])
        return _RDMA_HEADER_BYTES[fabric.kind] / mtu
    share = bandwidth.tcp_payload_share(
        fabric.mtu_bytes, framing_bytes=bandwidth.ETHERNET_HEADER_BYTES, ip_header_bytes=40
    )
    # One acknowledgement for two full packets. Source: RFC 9293, section 3.8.6.3.
    return 1 / share - 1 + _ACK_BYTES / (2 * fabric.mtu_bytes)


def _only(environment: Mapping[str, str], name: str) -> str | None:
    """The single value of a variable; None if it is not set, or has more than one value."""
    value = environment.get(name, "").strip().upper()
    return value if value and not set(value) & set(",;:^=") else None

"""Counters of a virtual cluster's ports before and after a criterion, and clocks set meanwhile."""

from __future__ import annotations

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.port_counters.reading import (
    CARRIER,
    TCP,
    TCP_OUT_OF_ORDER,
    Counters,
    PortReading,
)
from pytest_mnode.criteria.port_counters.rises import rises
from pytest_mnode.criteria.port_counters.watching import TEST, judged
from pytest_mnode.evidence.row import Row
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.machines import links_of

_LASTS_S = 300.0
_OF_PROMISED = 1 / 3
"""[choice] Time of a criterion, and the bit errors of a healthy link, of those that are promised at
most: 64 ports of 400 Gbit/s have 2 or 3 in each criterion."""
_PACKETS = 50_000_000
_PORT, _LINK = ("port_xmit_packets", "port_rcv_packets"), ("tx_packets", "rx_packets")
_PORT_ERRORS: Counters = dict.fromkeys(
    ("symbol_error", "link_downed", "port_rcv_errors", "out_of_sequence"), 0
)
_LINK_ERRORS: Counters = {"rx_errors": 0, "rx_dropped": 0, CARRIER: 1}


def ports(cluster: VirtualCluster, file: str) -> CaseResult:
    """The case on counters of ports, which each loaded criterion has."""
    return case(f"{file}::{TEST}", judged(counted(cluster), cluster.spec), cluster.nodes)


def counted(cluster: VirtualCluster) -> list[Row]:
    """How counters of all ports and NVLinks rose, and clocks stepped, during a criterion."""
    fabric, nodes = cluster.spec.fabric, cluster.nodes
    rdma = fabric.protocol is not None
    packets, still = (_PORT, _PORT_ERRORS) if rdma else (_LINK, _LINK_ERRORS)
    usual = _OF_PROMISED * fabric.bit_error_rate_at_most * fabric.line_rate_bits_s * _LASTS_S
    names = links_of(fabric)
    # A generator of its own: other values of a night stay those of its seed.
    damaged = cluster.rng.spawn(1)[0].poisson(usual, (len(nodes), len(names)))

    def reading(node: int, *, after: bool) -> PortReading:
        found: dict[str, Counters] = {}
        for number, name in enumerate(names):
            counted: Counters = {**dict.fromkeys(packets, _PACKETS * after), **still}
            counted["symbol_error" if rdma else "rx_errors"] = after * int(damaged[node, number])
            found[f"{name}:1" if rdma else name] = counted
            for (at, of, counter), count in cluster.errors.items():
                if after and (at, of) == (node, name):
                    counted[counter] = (counted.get(counter) or 0) + count
        if not rdma:
            found[TCP] = {"OutSegs": _PACKETS * after, "RetransSegs": 0, TCP_OUT_OF_ORDER: 0}
        step_s = cluster.clock_steps_s.get(node, 0.0) if after else 0.0
        uptime_s = _LASTS_S * after
        return PortReading(f"boot-{node}", found, step_s, uptime_s, {"every link": (0, 0)})

    before = {name: reading(node, after=False) for node, name in enumerate(nodes)}
    last = {name: reading(node, after=True) for node, name in enumerate(nodes)}
    return [*rises(before, last, fabric.interfaces)]

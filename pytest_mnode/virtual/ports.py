"""Counters of a virtual cluster's ports before and after a criterion, and clocks set meanwhile."""

from __future__ import annotations

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.port_counters.judging import clock_steps, judge
from pytest_mnode.criteria.port_counters.reading import CARRIER, TCP, Counters, PortReading
from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.evidence.check import CHECKS
from pytest_mnode.measurement import Measurement
from pytest_mnode.virtual.cases import case
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.machines import links_of

_PACKETS = 50_000_000
_PORT, _LINK = ("port_xmit_packets", "port_rcv_packets"), ("tx_packets", "rx_packets")
_PORT_ERRORS: Counters = dict.fromkeys(
    ("symbol_error", "link_downed", "port_rcv_errors", "out_of_sequence"), 0
)
_LINK_ERRORS: Counters = {"rx_errors": 0, "rx_dropped": 0, CARRIER: 1}


def ports(cluster: VirtualCluster, file: str) -> CaseResult:
    """The case on counters of ports, which each loaded criterion has."""
    test = f"{file}::test_fabric_ports_stay_up_and_free_of_errors"
    return case(test, _counted(cluster), cluster.nodes)


def _counted(cluster: VirtualCluster) -> list[Measurement]:
    fabric, nodes = cluster.spec.fabric, cluster.nodes
    rdma = fabric.protocol is not None
    packets, still = (_PORT, _PORT_ERRORS) if rdma else (_LINK, _LINK_ERRORS)

    def reading(node: int, *, after: bool) -> PortReading:
        found: dict[str, Counters] = {}
        for name in links_of(fabric):
            counted: Counters = {**dict.fromkeys(packets, _PACKETS * after), **still}
            found[f"{name}:1" if rdma else name] = counted
            for (at, of, counter), count in cluster.errors.items():
                if after and (at, of) == (node, name):
                    counted[counter] = (counted.get(counter) or 0) + count
        if not rdma:
            found[TCP] = {"OutSegs": _PACKETS * after, "RetransSegs": 0, "TCPOFOQueue": 0}
        step_s = cluster.clock_steps_s.get(node, 0.0) if after else 0.0
        return PortReading(f"boot-{node}", found, step_s)

    before = {name: reading(node, after=False) for node, name in enumerate(nodes)}
    last = {name: reading(node, after=True) for node, name in enumerate(nodes)}
    measurements = judge(before, last, fabric)
    clocks = promise_of(CHECKS["test_clocks_agree"], cluster.spec)
    if clocks is not None:
        measurements.append(clock_steps(before, last, clocks.skew_s))
    return measurements

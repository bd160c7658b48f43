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


def ports(cluster: VirtualCluster, file: str) -> CaseResult:
    """The case on counters of ports, which each loaded criterion has."""
    question = "Did every fabric port stay up, free of errors and losses, during this criterion?"
    test = f"{file}::test_fabric_ports_stay_up_and_free_of_errors"
    return case(test, question, _counted(cluster), cluster.nodes)


def _counted(cluster: VirtualCluster) -> list[Measurement]:
    fabric, nodes = cluster.spec.fabric, cluster.nodes
    names = links_of(fabric)
    steps = cluster.clock_steps_s

    def reading(node: int, *, after: bool) -> PortReading:
        found: dict[str, Counters] = {}
        for name in names:
            port = name if fabric.protocol is None else f"{name}:1"
            counted: Counters = (
                {"tx_packets": 0, "rx_packets": 0, "rx_errors": 0, "rx_dropped": 0, CARRIER: 1}
                if fabric.protocol is None
                else {
                    "port_xmit_packets": 0,
                    "port_rcv_packets": 0,
                    "symbol_error": 0,
                    "link_downed": 0,
                    "port_rcv_errors": 0,
                    "out_of_sequence": 0,
                }
            )
            found[port] = counted
            if after:
                for counter in counted:
                    counted[counter] = _PACKETS if "packets" in counter else counted[counter]
                for (at, of, counter), count in cluster.errors.items():
                    if (at, of) == (node, name):
                        counted[counter] = (counted.get(counter) or 0) + count
        if fabric.protocol is None:
            found[TCP] = {"OutSegs": _PACKETS if after else 0, "RetransSegs": 0, "TCPOFOQueue": 0}
        return PortReading(f"boot-{node}", found, steps.get(node, 0.0) if after else 0.0)

    before = {name: reading(node, after=False) for node, name in enumerate(nodes)}
    last = {name: reading(node, after=True) for node, name in enumerate(nodes)}
    measurements = judge(before, last, fabric)
    clocks = promise_of(CHECKS["test_clocks_agree"], cluster.spec)
    if clocks is not None:
        measurements.append(clock_steps(before, last, clocks.skew_s))
    return measurements

"""Third and fourth fact: what the fabric's NICs carried, and that all others were quiet."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mnode.criteria.transport.facts import Facts, NodeFacts
from pytest_mnode.criteria.transport.moved import Expected
from pytest_mnode.criteria.transport.proof import Answer, Case, Fact, FactVerdict, Finding
from pytest_mnode.criteria.transport.rails import (
    Carrier,
    carriers,
    is_rdma,
    megabytes,
    of_fabric,
    rails_expected,
    same_wire,
)
from pytest_mnode.spec.fabric import TransportPromise
from pytest_mnode.spec.models import Spec

_LOOPBACK = "lo"


def counted(facts: Facts, spec: Spec, promise: TransportPromise, range_: Expected) -> FactVerdict:
    """Whether the NICs of the fabric sent what the algorithm must move, each its share."""
    found = [
        finding
        for node in facts.nodes
        for finding in _counted_on(node, facts, spec, promise, range_)
    ]
    return FactVerdict(Fact.COUNTED, tuple(found))


def sent_on_fabric(node: NodeFacts, spec: Spec) -> int | None:
    """Bytes that the fabric's NICs of a node sent together; None where one is not known."""
    fabric = of_fabric(node, spec)
    if fabric is None:
        return None
    sent = [nic.sent_bytes for nic in fabric]
    return None if None in sent else sum(count or 0 for count in sent)


def busiest_elsewhere(node: NodeFacts, spec: Spec) -> Carrier | None:
    """Of the other NICs of a node, loopback included, the one that carried most."""
    return max(_others(node, spec), key=_carried, default=None)


def allowed_elsewhere(nic: str, facts: Facts, promise: TransportPromise, range_: Expected) -> float:
    """Bytes that a NIC that is not of the fabric may carry.

    On loopback ranks of one node may speak with each other: a ring has as many hops in a node as it
    has ranks there, less one.
    """
    within = (facts.ranks_per_node - 1) * range_.payload_bytes if nic == _LOOPBACK else 0.0
    return promise.elsewhere_fraction * range_.payload_bytes + within * (1 + promise.over_fraction)


def _counted_on(
    node: NodeFacts, facts: Facts, spec: Spec, promise: TransportPromise, range_: Expected
) -> Iterator[Finding]:
    names = ", ".join(spec.fabric.interfaces)
    what = "RDMA device" if is_rdma(spec) else "interface"
    fabric = of_fabric(node, spec)
    if fabric is None:
        yield _finding(node, Answer.MISSING, Case.NO_COUNTER, f"no {what}s could be listed")
        return
    if not fabric:
        any_ = carriers(node, spec, rdma=is_rdma(spec), of_fabric=False)
        there = f"; there is {', '.join(c.name for c in any_)}" if any_ else ""
        case = Case.NO_DEVICE if is_rdma(spec) else Case.WRONG_INTERFACE
        text = f"no {what} of the fabric ({names}){there}{_instead(node, spec, range_)}"
        yield _finding(node, Answer.DISAGREES, case, text)
        return
    if unknown := [nic.shown for nic in fabric if nic.sent_bytes is None]:
        text = f"bytes sent by {', '.join(unknown)} could not be read"
        yield _finding(node, Answer.MISSING, Case.NO_COUNTER, text)
        return
    sent = sum(nic.sent_bytes or 0 for nic in fabric)
    said = f"the fabric ({names}) sent {megabytes(sent)}"
    if sent < range_.least_bytes:
        text = (
            f"{said}, {megabytes(range_.least_bytes)} at least expected"
            f"{_instead(node, spec, range_)}"
        )
        yield _finding(node, Answer.DISAGREES, Case.NOT_ON_FABRIC, text)
    elif sent > range_.most_bytes:
        text = (
            f"{said}, {megabytes(range_.most_bytes)} at most expected: "
            "something else used it, or packets were sent again and again"
        )
        yield _finding(node, Answer.DISAGREES, Case.TOO_MANY_BYTES, text)
    if len(fabric) < spec.fabric.nics_per_node:
        text = f"{len(fabric)} of {spec.fabric.nics_per_node} NICs of the fabric are there: "
        text += ", ".join(nic.shown for nic in fabric)
        yield _finding(node, Answer.DISAGREES, Case.RAIL_DOWN, text)
    if sent >= range_.least_bytes:  # shares of nothing say nothing
        yield from _rails(node, fabric, rails_expected(facts, spec), spec, promise)


def _rails(
    node: NodeFacts, fabric: list[Carrier], expected: int, spec: Spec, promise: TransportPromise
) -> Iterator[Finding]:
    sent = sum(nic.sent_bytes or 0 for nic in fabric)
    promised = spec.fabric.nics_per_node
    share = sent / expected
    idle = [nic for nic in fabric if (nic.sent_bytes or 0) < promise.rail_fraction * share]
    carrying = len(fabric) - len(idle)
    if carrying < min(expected, len(fabric)):
        told = ", ".join(
            f"{nic.shown} sent {(nic.sent_bytes or 0) / share:.0%} of its share" for nic in idle
        )
        text = f"{carrying} of {expected} rails carried the traffic: {told}"
        yield _finding(node, Answer.DISAGREES, Case.RAIL_DOWN, text)
    busy = [nic for nic in fabric if (nic.sent_bytes or 0) > promise.elsewhere_fraction * sent]
    if len(busy) > promised:
        names = ", ".join(nic.name for nic in busy)
        text = f"{len(busy)} NICs sent, {promised} are promised: {names}"
        yield _finding(node, Answer.DISAGREES, Case.STRAY_RAIL, text)


def quiet(facts: Facts, spec: Spec, promise: TransportPromise, range_: Expected) -> FactVerdict:
    """Whether all NICs that are not of the fabric carried next to nothing, in both directions."""
    found = [
        finding for node in facts.nodes for finding in _quiet_on(node, facts, spec, promise, range_)
    ]
    return FactVerdict(Fact.QUIET, tuple(found))


def _quiet_on(
    node: NodeFacts, facts: Facts, spec: Spec, promise: TransportPromise, range_: Expected
) -> Iterator[Finding]:
    def finding(answer: Answer, case: Case, text: str) -> Finding:
        return Finding(fact=Fact.QUIET, answer=answer, case=case, text=text, node=node.name)

    if node.nics is None:
        text = "interfaces could not be listed, so none is known to be quiet"
        yield finding(Answer.MISSING, Case.NO_COUNTER, text)
    if node.ports is None and is_rdma(spec):
        text = "RDMA devices could not be listed, so none is known to be quiet"
        yield finding(Answer.MISSING, Case.NO_COUNTER, text)
    ipoib = {nic.name for nic in node.nics or () if nic.infiniband}
    management = spec.management
    for nic in _others(node, spec):
        limit = allowed_elsewhere(nic.name, facts, promise, range_)
        if nic.sent_bytes is None or nic.received_bytes is None:
            if not nic.state:  # what is down carries nothing
                text = f"what {nic.name} carried could not be read"
                yield finding(Answer.MISSING, Case.NO_COUNTER, text)
        elif _carried(nic) > limit:
            kind = ""
            case = Case.NOT_QUIET
            if nic.name in ipoib:
                kind, case = " (IP over InfiniBand)", Case.IPOIB
            elif management is not None and management.has_interface(nic.name):
                kind = " (management)"
            elif is_rdma(spec) and nic.name in _port_names(node, spec):
                case = Case.STRAY_RAIL
            text = (
                f"{nic.name}{kind} sent {megabytes(nic.sent_bytes)} and received "
                f"{megabytes(nic.received_bytes)}, {megabytes(limit)} at most expected"
            )
            yield finding(Answer.DISAGREES, case, text)


def _others(node: NodeFacts, spec: Spec) -> list[Carrier]:
    """NICs by which traffic could go elsewhere; not those that carry the fabric's own bytes."""
    netdevs = carriers(node, spec, rdma=False, of_fabric=False) or []
    ports = carriers(node, spec, rdma=True, of_fabric=False) or []
    if not is_rdma(spec):
        wires = [nic.name for nic in node.nics or () if spec.fabric.has_interface(nic.name)]
        own = same_wire(node, wires)
        beside = {p.device for p in node.ports or () if set(p.netdevs) & own}
        return [n for n in netdevs if n.name not in own] + [
            p for p in ports if p.name.partition(":")[0] not in beside
        ]
    ours = [p for p in node.ports or () if spec.fabric.has_interface(p.device)]
    ipoib = {nic.name for nic in node.nics or () if nic.infiniband}
    own = same_wire(node, [name for port in ours for name in port.netdevs]) - ipoib
    # Interfaces of RoCE are left out: some drivers count RDMA there too, and the port's own
    # counters tell both apart. IP over InfiniBand is told: the port counts it as if it were RDMA.
    named = carriers(node, spec, rdma=False, of_fabric=True) or []
    return [n for n in [*netdevs, *named] if n.name not in own] + ports


def _port_names(node: NodeFacts, spec: Spec) -> set[str]:
    return {p.name for p in carriers(node, spec, rdma=True, of_fabric=False) or []}


def _instead(node: NodeFacts, spec: Spec, range_: Expected) -> str:
    """Who carried the traffic instead, where one did."""
    nic = busiest_elsewhere(node, spec)
    if nic is None or _carried(nic) < 0.1 * range_.least_bytes:
        return ""
    return f"; {nic.name} sent {megabytes(nic.sent_bytes or 0)}"


def _carried(nic: Carrier) -> int:
    return max(nic.sent_bytes or 0, nic.received_bytes or 0)


def _finding(node: NodeFacts, answer: Answer, case: Case, text: str) -> Finding:
    return Finding(fact=Fact.COUNTED, answer=answer, case=case, text=text, node=node.name)

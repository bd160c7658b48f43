"""Judges facts three and four: bytes of the fabric's NICs, and quiet on all other NICs."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mnode.criteria.transport.evidence import Evidence, is_rdma
from pytest_mnode.criteria.transport.expected import ExpectedBytes
from pytest_mnode.criteria.transport.node_traffic import Carrier, NodeTraffic
from pytest_mnode.criteria.transport.remarks import About, Case, ProofFact, Remark
from pytest_mnode.measurement import Measurement, at_least, at_most
from pytest_mnode.spec.fabric import TransportPromise
from pytest_mnode.spec.models import Spec

_LOOPBACK = "lo"


def counted(
    facts: Evidence, spec: Spec, promise: TransportPromise, expected: ExpectedBytes
) -> Iterator[Remark]:
    """Whether the fabric's NICs sent the bytes that the algorithm must move, each its share."""
    for node in facts.nodes:
        yield from _counted_on(node, facts, spec, promise, expected)


def quiet(
    facts: Evidence, spec: Spec, promise: TransportPromise, expected: ExpectedBytes
) -> Iterator[Remark]:
    """Whether every NIC outside the fabric carried next to nothing."""
    for node in facts.nodes:
        yield from _quiet_on(node, facts, spec, promise, expected)


def measured_bytes(
    facts: Evidence, spec: Spec, promise: TransportPromise, expected: ExpectedBytes
) -> list[Measurement]:
    """Bytes on the fabric of the nodes that sent least and most, and off it of each node."""
    sent = {node.name: _sent_on_fabric(node, spec) for node in facts.nodes}
    known = {name: count for name, count in sent.items() if count is not None}
    found = []
    for word, choose, bound in (
        ("least", min, at_least(expected.least_bytes / 1e6)),
        ("most", max, at_most(expected.most_bytes / 1e6)),
    ):
        node = choose(known, key=lambda name: known[name], default=None)
        found.append(
            Measurement(
                f"transport, bytes on the fabric of the node that sent {word}",
                known[node] / 1e6 if node is not None and len(known) == len(sent) else None,
                "MB",
                bound,
                expected.source,
                note=node or "",
            )
        )
    for facts_of_node in facts.nodes:
        nic = _busiest_elsewhere(facts_of_node, spec)
        if nic is not None:
            limit = _allowed_elsewhere(nic.name, facts, promise, expected)
            found.append(
                Measurement(
                    f"transport, bytes sent on other networks by {facts_of_node.name}",
                    None if nic.sent_bytes is None else nic.sent_bytes / 1e6,
                    "MB",
                    note=f"{nic.name}, at most {limit / 1e6:.3g} MB",
                )
            )
    return found


def _sent_on_fabric(node: NodeTraffic, spec: Spec) -> int | None:
    """Bytes that the fabric's NICs of a node sent together; None if one is not known."""
    fabric = node.carriers(spec, rdma=is_rdma(spec), of_fabric=True)
    if fabric is None or any(nic.sent_bytes is None for nic in fabric):
        return None
    return sum(nic.sent_bytes or 0 for nic in fabric)


def _busiest_elsewhere(node: NodeTraffic, spec: Spec) -> Carrier | None:
    """The NIC outside the fabric, loopback included, that carried most."""
    return max(_others(node, spec), key=lambda nic: nic.carried_bytes, default=None)


def _allowed_elsewhere(
    nic: str, facts: Evidence, promise: TransportPromise, expected: ExpectedBytes
) -> float:
    """Bytes that a NIC outside the fabric may carry.

    Ranks of one node may use loopback: a ring has one hop less in a node than it has ranks there.
    """
    within = (facts.ranks_per_node - 1) * expected.payload_bytes if nic == _LOOPBACK else 0.0
    return promise.elsewhere_fraction * expected.payload_bytes + within * (
        1 + promise.over_fraction
    )


def _counted_on(
    node: NodeTraffic,
    facts: Evidence,
    spec: Spec,
    promise: TransportPromise,
    expected: ExpectedBytes,
) -> Iterator[Remark]:
    about = About(ProofFact.COUNTED, node.name)
    names = ", ".join(spec.fabric.interfaces)
    what = "RDMA device" if is_rdma(spec) else "interface"
    fabric = node.carriers(spec, rdma=is_rdma(spec), of_fabric=True)
    instead = _instead(node, spec, expected)
    if fabric is None:
        yield about.inconclusive(Case.NO_COUNTER, f"no {what}s could be listed")
        return
    if not fabric:
        others = node.carriers(spec, rdma=is_rdma(spec), of_fabric=False)
        there = f"; there is {', '.join(nic.name for nic in others)}" if others else ""
        case = Case.NO_DEVICE if is_rdma(spec) else Case.WRONG_INTERFACE
        yield about.fail(case, f"no {what} of the fabric ({names}){there}{instead}")
        return
    if unknown := [nic.shown for nic in fabric if nic.sent_bytes is None]:
        most = [nic.sent_at_most_bytes for nic in fabric]
        known = [count for count in most if count is not None]
        if len(known) == len(most) and sum(known) < expected.least_bytes:
            packets = sum(nic.sent_packets or 0 for nic in fabric)
            text = f"the fabric ({names}) sent {packets} packets, {_shown(sum(known))} at most, "
            text += f"expected at least {_shown(expected.least_bytes)}{instead}"
            yield about.fail(Case.NOT_ON_FABRIC, text)
        else:
            text = f"bytes sent by {', '.join(unknown)} could not be read"
            yield about.inconclusive(Case.NO_COUNTER, text)
        return
    sent = sum(nic.sent_bytes or 0 for nic in fabric)
    text = f"the fabric ({names}) sent {_shown(sent)}"
    if sent < expected.least_bytes:
        text += f", expected at least {_shown(expected.least_bytes)}{instead}"
        yield about.fail(Case.NOT_ON_FABRIC, text)
    elif sent > expected.most_bytes:
        text += (
            f", expected at most {_shown(expected.most_bytes)}: "
            "other traffic used it, or packets were retransmitted"
        )
        yield about.fail(Case.TOO_MANY_BYTES, text)
    if len(fabric) < spec.fabric.nics_per_node:
        text = f"{len(fabric)} of {spec.fabric.nics_per_node} NICs of the fabric are present: "
        text += ", ".join(nic.shown for nic in fabric)
        yield about.fail(Case.RAIL_DOWN, text)
    if sent >= expected.least_bytes:  # below it, shares mean nothing
        yield from _idle_rails(about, fabric, facts.rails_expected(spec), spec, promise)


def _idle_rails(
    about: About, fabric: list[Carrier], expected: int, spec: Spec, promise: TransportPromise
) -> Iterator[Remark]:
    sent = sum(nic.sent_bytes or 0 for nic in fabric)
    promised = spec.fabric.nics_per_node
    busy = [nic for nic in fabric if (nic.sent_bytes or 0) > promise.elsewhere_fraction * sent]
    share = sent / max(expected, len(busy))  # fewer ranks than accelerators may use every NIC
    idle = [nic for nic in fabric if (nic.sent_bytes or 0) < promise.rail_fraction * share]
    carrying = len(fabric) - len(idle)
    if carrying < min(expected, len(fabric)):
        shares = ", ".join(
            f"{nic.shown} sent {(nic.sent_bytes or 0) / share:.0%} of its share" for nic in idle
        )
        text = f"{carrying} of {expected} rails carried the traffic: {shares}"
        yield about.fail(Case.RAIL_DOWN, text)
    if len(busy) > promised:
        names = ", ".join(nic.name for nic in busy)
        text = f"{len(busy)} NICs sent, {promised} are promised: {names}"
        yield about.fail(Case.STRAY_RAIL, text)


def _instead(node: NodeTraffic, spec: Spec, expected: ExpectedBytes) -> str:
    """Text on the NIC that carried the traffic instead, or ""; RoCE interfaces count too."""
    below = [name for port in node.fabric_ports(spec) for name in node.netdevs_of(port)]
    interfaces = node.carriers(spec, rdma=False, of_fabric=False) or []
    own = [nic for nic in interfaces if is_rdma(spec) and nic.name in below]
    nic = max([*_others(node, spec), *own], key=lambda nic: nic.carried_bytes, default=None)
    if nic is None or nic.carried_bytes < 0.1 * expected.least_bytes:
        return ""
    return f"; {nic.name} sent {_shown(nic.sent_bytes or 0)}"


def _quiet_on(
    node: NodeTraffic,
    facts: Evidence,
    spec: Spec,
    promise: TransportPromise,
    expected: ExpectedBytes,
) -> Iterator[Remark]:
    about = About(ProofFact.QUIET, node.name)
    if node.machine.interfaces is None:
        text = "interfaces could not be listed, so none is known to be quiet"
        yield about.inconclusive(Case.NO_COUNTER, text)
    if node.machine.rdma is None and is_rdma(spec):
        text = "RDMA devices could not be listed, so none is known to be quiet"
        yield about.inconclusive(Case.NO_COUNTER, text)
    ports = {nic.name for nic in node.carriers(spec, rdma=True, of_fabric=False) or ()}
    for nic in _others(node, spec):
        limit = _allowed_elsewhere(nic.name, facts, promise, expected)
        if nic.sent_bytes is None or nic.received_bytes is None:
            if not nic.state:  # a NIC that is down carries nothing
                yield about.inconclusive(
                    Case.NO_COUNTER, f"counters of {nic.name} could not be read"
                )
        elif nic.carried_bytes > limit:
            kind, case = "", Case.NOT_QUIET
            if nic.name in node.ipoib:
                kind, case = " (IP over InfiniBand)", Case.IPOIB
            elif spec.management is not None and spec.management.has_interface(nic.name):
                kind = " (management)"
            elif is_rdma(spec) and nic.name in ports:
                case = Case.STRAY_RAIL
            text = (
                f"{nic.name}{kind} sent {_shown(nic.sent_bytes)} and received "
                f"{_shown(nic.received_bytes)}, expected at most {_shown(limit)}"
            )
            yield about.fail(case, text)


def _others(node: NodeTraffic, spec: Spec) -> list[Carrier]:
    """NICs over which traffic could leave the fabric; not those that carry the fabric's bytes."""
    interfaces = node.carriers(spec, rdma=False, of_fabric=False) or []
    ports = node.carriers(spec, rdma=True, of_fabric=False) or []
    if not is_rdma(spec):
        named = [name for name in node.machine.by_name if spec.fabric.has_interface(name)]
        own = node.same_wire(named)
        beside = {p.device for p in node.machine.ports if own & set(node.netdevs_of(p))}
        return [nic for nic in interfaces if nic.name not in own] + [
            port for port in ports if port.name.partition(":")[0] not in beside
        ]
    netdevs = [name for port in node.fabric_ports(spec) for name in node.netdevs_of(port)]
    # Interfaces of RoCE do not count: some drivers count RDMA there too, and the port's own
    # counters tell them apart. IP over InfiniBand counts: the port counts it as if it were RDMA.
    own = node.same_wire(netdevs) - node.ipoib
    named_ones = node.carriers(spec, rdma=False, of_fabric=True) or []
    return [nic for nic in [*interfaces, *named_ones] if nic.name not in own] + ports


def _shown(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.4g} GB"

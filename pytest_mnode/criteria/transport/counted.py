"""Judges facts three and four, bytes of the fabric's NICs and quiet on all other NICs; then all
four together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_mnode.criteria.transport.evidence import (
    Carrier,
    Evidence,
    NodeTraffic,
    is_rdma,
    nvlink_groups,
)
from pytest_mnode.criteria.transport.logged import logged
from pytest_mnode.criteria.transport.pinned import pinned
from pytest_mnode.criteria.transport.remarks import About, Case, ProofFact, Remark, measured
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, all_of, at_least, at_most
from pytest_mnode.spec import bandwidth
from pytest_mnode.spec.fabric import TransportPromise
from pytest_mnode.spec.inventory import Fabric
from pytest_mnode.spec.models import Spec

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
_LOOPBACK = "lo"


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


@dataclass(frozen=True)
class ByteCounts:
    """What the NICs of all nodes counted, compared with what the promise lets them carry."""

    facts: Evidence
    spec: Spec
    promise: TransportPromise

    @cached_property
    def expected(self) -> ExpectedBytes:
        """Bytes that each node must send."""
        count = len(self.groups)
        joined = count if count < len(self.facts.nodes) else None
        return expected_bytes(self.facts, self.spec.fabric, self.promise, joined)

    @cached_property
    def groups(self) -> tuple[frozenset[str], ...]:
        """Nodes, those together that NVLink joins: of a group any node may send the bytes."""
        return nvlink_groups(self.facts, self.spec)

    @cached_property
    def alone(self) -> frozenset[str]:
        """Nodes that NVLink joins to no other."""
        return frozenset[str]().union(*(one for one in self.groups if len(one) == 1))

    @cached_property
    def rdma(self) -> bool:
        """Whether RDMA ports carry the traffic, and not interfaces."""
        return is_rdma(self.spec)

    @property
    def counters_see(self) -> bool:
        """Whether counters see all bytes of the promised transport: too few then prove a fault."""
        return self.rdma or self.spec.fabric.by_kernel

    def counted(self) -> Iterator[Remark]:
        """Whether the fabric's NICs sent the bytes that the algorithm must move, each its share."""
        for node in self.facts.nodes:
            yield from self._counted_on(node)
        least = self.expected.least_bytes
        for group, count in self._sent_by_group().items():
            if len(group) > 1 and count is not None and count < least:
                text = f"NICs of {len(group)} nodes that NVLink joins sent {_shown(count)}, "
                text += f"expected at least {_shown(least)}"
                for name in sorted(group):
                    remark = About(ProofFact.COUNTED, name).fail(Case.NOT_ON_FABRIC, text)
                    yield replace(remark, sure=False)

    def _sent_by_group(self) -> dict[frozenset[str], int | None]:
        """Bytes that the fabric's NICs of each group of nodes sent; None if not known."""
        sent: dict[frozenset[str], int | None] = {}
        for group in self.groups:
            total: int | None = 0
            for node in (one for one in self.facts.nodes if one.name in group):
                fabric = node.carriers(self.spec, rdma=self.rdma, of_fabric=True)
                unread = fabric is None or any(nic.sent_bytes is None for nic in fabric)
                total = None if unread or total is None else total + _sum(fabric or ())
            seen = self.counters_see or (total or 0) >= self.expected.least_bytes
            sent[group] = total if seen else None
        return sent

    def quiet(self) -> Iterator[Remark]:
        """Whether every NIC outside the fabric carried next to nothing."""
        for node in self.facts.nodes:
            yield from self._quiet_on(node)

    def measurements(self) -> Iterator[Measurement]:
        """Bytes on the fabric of the nodes that sent least and most, and off it of each node."""
        expected, sent = self.expected, self._sent_by_group()
        counts = {group: count for group, count in sent.items() if count is not None}
        for word, choose, bound in (
            ("least", min, at_least(expected.least_bytes / 1e6)),
            ("most", max, at_most(expected.most_bytes / 1e6)),
        ):
            group = choose(counts, key=lambda group: counts[group], default=frozenset[str]())
            wrong = (group for group, count in counts.items() if not bound.holds(count / 1e6))
            yield Measurement(
                f"transport, bytes on the fabric of the node that sent {word}",
                counts[group] / 1e6 if counts and len(counts) == len(sent) else None,
                "MB",
                bound,
                expected.source,
                all_of(map(_culprit, wrong), separator=", "),
                _culprit(group) if group else "",
            )
        for node in self.facts.nodes:
            others = self._others(node)
            nic = max(others, key=lambda nic: nic.carried_bytes, default=None)
            if nic is not None:
                yield Measurement(
                    f"transport, off-fabric traffic of {node.name}",
                    None if nic.sent_bytes is None else nic.sent_bytes / 1e6,
                    "MB",
                    note=f"{nic.name}, at most {self._allowed_elsewhere(nic.name) / 1e6:.3g} MB",
                )

    def _allowed_elsewhere(self, nic: str) -> float:
        """Bytes that a NIC outside the fabric may carry.

        Ranks of one node may use loopback: a ring has one hop less in a node than it has ranks
        there.
        """
        payload = self.expected.payload_bytes
        within = (self.facts.ranks_per_node - 1) * payload if nic == _LOOPBACK else 0.0
        return self.promise.elsewhere_fraction * payload + within * (1 + self.promise.over_fraction)

    def _counted_on(self, node: NodeTraffic) -> Iterator[Remark]:
        about, expected = About(ProofFact.COUNTED, node.name), self.expected
        names, promised = ", ".join(self.spec.fabric.interfaces), self.spec.fabric.nics_per_node
        what = "RDMA device" if self.rdma else "interface"
        fabric = node.carriers(self.spec, rdma=self.rdma, of_fabric=True)
        instead, alone = self._instead(node), node.name in self.alone
        if fabric is None:
            yield about.inconclusive(Case.NO_COUNTER, f"no {what}s could be listed")
            return
        if not fabric and not self.spec.fabric.is_shown:
            text = f"nodes have no counter of bytes over {self.spec.fabric.kind}{instead}"
            yield about.inconclusive(Case.NO_COUNTER, text)
            return
        if not fabric:
            others = node.carriers(self.spec, rdma=self.rdma, of_fabric=False)
            there = f"; there is {', '.join(nic.name for nic in others)}" if others else ""
            case = Case.NO_DEVICE if self.rdma else Case.WRONG_INTERFACE
            yield about.fail(case, f"no {what} of the fabric ({names}){there}{instead}")
            return
        if unknown := [nic.shown for nic in fabric if nic.sent_bytes is None]:
            most = [nic.sent_at_most_bytes for nic in fabric]
            known = [count for count in most if count is not None]
            if alone and len(known) == len(most) and sum(known) < expected.least_bytes:
                packets = sum(nic.sent_packets or 0 for nic in fabric)
                text = f"the fabric ({names}) sent {packets} packets, {_shown(sum(known))} at most,"
                text += f" expected at least {_shown(expected.least_bytes)}{instead}"
                yield about.fail(Case.NOT_ON_FABRIC, text)
            else:
                text = f"bytes sent by {', '.join(unknown)} could not be read"
                yield about.inconclusive(Case.NO_COUNTER, text)
            return
        sent = _sum(fabric)
        text = f"the fabric ({names}) sent {_shown(sent)}"
        short = alone and sent < expected.least_bytes
        if short and not self.counters_see:
            text += f", and no counter sees bytes that pass the kernel by ({self.spec.fabric.kind})"
            yield about.inconclusive(Case.NO_COUNTER, text)
        elif short:
            text += f", expected at least {_shown(expected.least_bytes)}{instead}"
            yield about.fail(Case.NOT_ON_FABRIC, text)
        elif sent > expected.most_bytes:
            text += f", expected at most {_shown(expected.most_bytes)}: "
            text += "other traffic used it, or packets were retransmitted"
            yield about.fail(Case.TOO_MANY_BYTES, text)
        if len(fabric) < promised:
            text = f"{len(fabric)} of {promised} NICs of the fabric are present: "
            text += ", ".join(nic.shown for nic in fabric)
            yield about.fail(Case.RAIL_DOWN, text)
        if alone and not short:  # below it, shares mean nothing
            yield from self._idle_rails(about, fabric)

    def _idle_rails(self, about: About, fabric: Sequence[Carrier]) -> Iterator[Remark]:
        sent, promised = _sum(fabric), self.spec.fabric.nics_per_node
        expected = self.facts.rails_expected(self.spec)
        least = self.promise.elsewhere_fraction * sent
        busy = [nic for nic in fabric if (nic.sent_bytes or 0) > least]
        share = sent / max(expected, len(busy))  # fewer ranks than accelerators may use every NIC
        idle = [n for n in fabric if (n.sent_bytes or 0) < self.promise.rail_fraction * share]
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

    def _instead(self, node: NodeTraffic) -> str:
        """Text on the NIC that carried the traffic instead, or ""; RoCE interfaces count too."""
        below = [name for port in node.fabric_ports(self.spec) for name in node.netdevs_of(port)]
        interfaces = node.carriers(self.spec, rdma=False, of_fabric=False) or []
        own = [nic for nic in interfaces if self.rdma and nic.name in below]
        nics = [*self._others(node), *own]
        nic = max(nics, key=lambda nic: nic.carried_bytes, default=None)
        if nic is None or nic.carried_bytes < 0.1 * self.expected.least_bytes:
            return ""
        return f"; {nic.name} sent {_shown(nic.sent_bytes or 0)}"

    def _quiet_on(self, node: NodeTraffic) -> Iterator[Remark]:
        about, management = About(ProofFact.QUIET, node.name), self.spec.management
        if node.machine.interfaces is None:
            text = "interfaces could not be listed, so none is known to be quiet"
            yield about.inconclusive(Case.NO_COUNTER, text)
        if node.machine.rdma is None and self.rdma:
            text = "RDMA devices could not be listed, so none is known to be quiet"
            yield about.inconclusive(Case.NO_COUNTER, text)
        ports = {nic.name for nic in node.carriers(self.spec, rdma=True, of_fabric=False) or ()}
        for nic in self._others(node):
            limit = self._allowed_elsewhere(nic.name)
            if nic.sent_bytes is None or nic.received_bytes is None:
                if not nic.state:  # a NIC that is down carries nothing
                    text = f"counters of {nic.name} could not be read"
                    yield about.inconclusive(Case.NO_COUNTER, text)
            elif nic.carried_bytes > limit:
                kind, case = "", Case.NOT_QUIET
                if nic.name in node.ipoib:
                    kind, case = " (IP over InfiniBand)", Case.IPOIB
                elif management is not None and management.has_interface(nic.name):
                    kind = " (management)"
                elif self.rdma and nic.name in ports:
                    case = Case.STRAY_RAIL
                text = f"{nic.name}{kind} sent {_shown(nic.sent_bytes)} and received "
                text += f"{_shown(nic.received_bytes)}, expected at most {_shown(limit)}"
                yield about.fail(case, text)

    def _others(self, node: NodeTraffic) -> list[Carrier]:
        """NICs over which traffic could leave the fabric; not those that carry its bytes."""
        spec = self.spec
        interfaces = node.carriers(spec, rdma=False, of_fabric=False) or []
        ports = node.carriers(spec, rdma=True, of_fabric=False) or []
        if not self.rdma:
            named = [name for name in node.machine.by_name if spec.fabric.has_interface(name)]
            own = node.same_wire(named)
            beside = {p.device for p in node.machine.ports if own & set(node.netdevs_of(p))}
            return [nic for nic in interfaces if nic.name not in own] + [
                port for port in ports if port.name.partition(":")[0] not in beside
            ]
        netdevs = [name for port in node.fabric_ports(spec) for name in node.netdevs_of(port)]
        # Interfaces of RoCE do not count: some drivers count RDMA there too, and the port's own
        # counters tell them apart. IP over InfiniBand counts: the port counts it as if it were
        # RDMA.
        own = node.same_wire(netdevs) - node.ipoib
        named_ones = node.carriers(spec, rdma=False, of_fabric=True) or []
        return [nic for nic in [*interfaces, *named_ones] if nic.name not in own] + ports


def _sum(nics: Sequence[Carrier]) -> int:
    return sum(nic.sent_bytes or 0 for nic in nics)


def _culprit(group: frozenset[str]) -> Culprit:
    """A node, or nodes that NVLink joins, of which any may be to blame."""
    if len(group) == 1:
        [name] = group
        return Culprit(name, name)
    names = ", ".join(sorted(group))
    return Culprit(f"{names} (joined by NVLink)", either=[group])


def _shown(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e9:.4g} GB"


def judge(facts: Evidence, spec: Spec, promise: TransportPromise) -> list[Measurement]:
    """One measurement per fact, and the bytes on which two of them are judged."""
    remarks = remarks_on(facts, spec, promise)
    nodes = [node.name for node in facts.nodes]
    found = [measured(fact, remarks, nodes) for fact in ProofFact]
    return [*found, *ByteCounts(facts, spec, promise).measurements()]


def remarks_on(facts: Evidence, spec: Spec, promise: TransportPromise) -> list[Remark]:
    """The remarks of each of the four facts on the fabric that `spec` promises.

    Raises ValueError for fewer than two nodes, because no traffic leaves them, and for no rank.
    """
    if len(facts.nodes) < 2:
        raise ValueError("traffic of one node leaves no node; give two nodes or more")
    if not facts.ranks:
        raise ValueError("the facts contain no rank; give the facts of every rank")
    counts = ByteCounts(facts, spec, promise)
    return [
        *pinned(facts, spec, promise.roce_version),
        *logged(facts, spec, promise.roce_version),
        *counts.counted(),
        *counts.quiet(),
    ]

"""RDMA ports of the fabric: ACTIVE, with the right GIDs, to be opened, and without new errors."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.criteria.preflight.node_links import by_wire, ports, rarest_first
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.intervals import least_mean
from pytest_mnode.machine.counters import BIT_ERRORS_FALSE_ALARM, counts_bit_errors, error_increases
from pytest_mnode.machine.netdev import Interface
from pytest_mnode.machine.rdma import UNKNOWN_GID, Gid, Port
from pytest_mnode.measurement import Measurement, at_least, at_most, equals
from pytest_mnode.spec.fields import Count, Section
from pytest_mnode.spec.inventory import Fabric, Inventory


class RdmaPromise(Section):
    """The RDMA devices of `fabric` exist, and their ports are ACTIVE."""

    gid_types: tuple[Literal["IB", "RoCE v1", "RoCE v2"], ...] | None = Field(None, min_length=1)
    """Each port has a GID of one of these types."""
    errors_at_most: Count | None = None
    """By how much all error counters of a node together may rise during preflight. Damaged symbols
    and packets count only above `fabric.bit_error_rate_at_most`."""


class _OfPorts(SurveyCheck):
    """Counts a node's working ports of the fabric: as many as it has NICs."""

    promise: RdmaPromise
    parts: ClassVar[tuple[str, ...]] = ("rdma",)
    alone = True
    stops = ("fabric",)
    counted: ClassVar[str]

    @property
    def subject(self) -> Subject:
        count = self.spec.fabric.nics_per_node
        bound = at_least(count).of("fabric.nics_per_node", count)
        return Subject(self.counted, "", bound, f"fabric.nics_per_node {count}")

    def enough(
        self, survey: Survey, me: NodeSurvey, good: Iterable[Port], faults: Mapping[str, str]
    ) -> Measurement:
        """The number of good ports. faults: why a device is not counted, by name; without any,
        ports that are not ACTIVE are to blame."""
        working = len(by_wire(me, good))
        found = rarest_first(survey, me, self.spec.fabric, _faults)
        named = listed([*faults.values()] or [f"{port} {fault}" for port, fault in found])
        devices = [*faults] or [port for port, _ in found]
        words = f"{me.name} {named}" if named else f"{me.name}: RDMA devices are missing"
        culprit = Culprit.device(words, me.name, *devices)
        return self.subject.measured(working, culprit, f"{me.name}: {named or f'{working} ports'}")


@check("preflight.rdma")
class RdmaPortsAreActive(_OfPorts):
    """Are this node's RDMA ports present, ACTIVE, and with a GID of the right type?"""

    counted = "RDMA ports that are ACTIVE"

    def judge(self, evidence: Survey, node: str) -> Iterator[Measurement]:
        me, fabric = evidence.node(node), self.spec.fabric
        if why := self.unread(me):
            yield self.subject.unknown(f"{node}: {why}")
            return
        faults = [(port, _fault(port, fabric.protocol)) for port in ports(me, fabric)]
        active = [port for port, fault in faults if fault == ""]
        mute = [port.name for port, fault in faults if fault is None]
        working = len(by_wire(me, active))
        if working < fabric.nics_per_node <= working + len(mute):
            why = f"{listed(mute)} does not report its state or protocol"
            yield self.subject.unknown(f"{node}: {why}")
        else:
            yield self.enough(evidence, me, active, {})
        if self.promise.gid_types is not None:
            yield _gids(me, active, self.promise.gid_types)

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        kind = cluster.fabric.kind
        if cluster.fabric.protocol is None:
            yield f": given, but fabric.kind is {kind}, which has no RDMA port"
        types = self.promise.gid_types or ()
        wrong = [one for one in types if (one == "IB") is not (kind == "infiniband")]
        if wrong and kind in ("infiniband", "roce"):
            yield f".gid_types: {', '.join(wrong)}, which ports of {kind} do not have"


@check("preflight.rdma")
class RdmaDevicesCanBeOpened(_OfPorts):
    """May a process on this node open as many of the fabric's RDMA devices as promised?

    NCCL skips a device that it cannot open, and sends over fewer NICs or over TCP.
    """

    counted = "RDMA ports whose device can be opened"
    parts = ("rdma", "verbs")

    def judge(self, evidence: Survey, node: str) -> Iterator[Measurement]:
        me, fabric = evidence.node(node), self.spec.fabric
        if why := self.unread(me):
            yield self.subject.unknown(f"{node}: {why}")
            return
        verbs = me.machine.verbs or ()
        opened = {one.device for one in verbs if not one.problem}
        problems = {one.device: f"{one.name} {one.problem}".rstrip() for one in verbs}
        there = [port for port in ports(me, fabric) if not _fault(port, fabric.protocol)]
        none = "the kernel has no uverbs device for it"
        unopened = sorted({port.device for port in there} - opened)
        faults = {name: f"{name} ({problems.get(name, none)})" for name in unopened}
        yield self.enough(evidence, me, (p for p in there if p.device in opened), faults)


@check("preflight.rdma")
class RdmaErrorsStandStill(SurveyCheck):
    """Are the error counters of this node's RDMA ports unchanged?"""

    promise: RdmaPromise
    needs = "errors_at_most"
    parts = ("rdma",)
    alone = True

    def judge(self, evidence: Survey, node: str) -> Iterator[Measurement]:
        me, most, fabric = evidence.node(node), self.promise.errors_at_most, self.spec.fabric
        if most is None:
            return
        key = f"{self.key}.errors_at_most"
        bound = at_most(most).of(f"criteria.{key}", most)
        subject = Subject("errors counted by RDMA ports", "", bound, f"{key} {most}")
        if me.facts is None or me.last is None:
            yield subject.unknown(f"{node}: {me.why() or me.problem or 'no answer at the end'}")
            return
        after = {port.name: port for device in me.last.rdma or () for port in device.ports}
        there = [one for one in ports(me, fabric) if one.may_carry(fabric.protocol)]
        rises = {port.name: error_increases(port, after.get(port.name)) for port in there}
        mute = [f"{port} without error counters" for port, found in rises.items() if not found]
        counters = {f"{p} {name}": by for p, found in rises.items() for name, by in found.items()}
        risen = {name: by for name, by in counters.items() if by is not None}
        mute += [name for name, by in counters.items() if by is None]
        bits = fabric.line_rate_bits_s * me.last.after_s
        few = bits * fabric.bit_error_rate_at_most
        rare = BIT_ERRORS_FALSE_ALARM / (len(counters) * len(evidence.nodes)) if counters else 0.0
        by_chance = {
            name
            for name, by in risen.items()
            if counts_bit_errors(name.rpartition(" ")[2]) and least_mean(by, rare) <= few
        }
        total = sum(by for name, by in risen.items() if name not in by_chance)
        if not risen:
            yield subject.unknown(f"{node}: no error counter can be read")
        elif mute and total <= most:
            why = "may have risen: unreadable, reset or saturated"
            yield subject.unknown(f"{node}: {listed(mute)} {why}")
        else:
            words = listed([f"{name} +{by}" for name, by in risen.items() if by])
            note = words or f"{len(risen)} counters of {len(there)} ports"
            rising = [
                port
                for port, found in rises.items()
                if any(by for name, by in found.items() if f"{port} {name}" not in by_chance)
            ]
            yield subject.measured(total, Culprit.device(f"{node} {words}", node, *rising), note)


def _faults(node: NodeSurvey, fabric: Fabric) -> list[tuple[str, str]]:
    """Ports of a node that do not carry the fabric, by name, each with the reason."""
    faults = ((port.name, _fault(port, fabric.protocol)) for port in ports(node, fabric))
    return [(port, fault) for port, fault in faults if fault]


def _fault(port: Port, wanted: str | None) -> str | None:
    """Why a port does not carry a fabric of this protocol; "" if it does, None if unknown.

    A card that supports two protocols may have started with the wrong one: RoCE in place of
    InfiniBand, or iWARP in place of RoCE.
    """
    if port.protocol is not None and wanted is not None and port.protocol != wanted:
        return f"is {port.protocol}, not {wanted}"
    if port.state is not None and port.state != "ACTIVE":
        return port.state
    if port.phys_state not in (None, "LinkUp"):
        return f"{port.state or 'of unknown state'}, {port.phys_state}"
    return None if port.state is None or (wanted and port.protocol is None) else ""


def _gids(me: NodeSurvey, active: Sequence[Port], wanted: Sequence[str]) -> Measurement:
    """Number of active ports without a GID of a wanted type.

    A device that several network namespaces share shows the GIDs of all of them; a process can use
    only those of its own namespace.
    """
    label = f"ports without a GID of {' or '.join(wanted)}"
    subject = Subject(label, "", equals(0), "preflight.rdma.gid_types")
    if not active:
        return subject.unknown(f"{me.name}: no port is ACTIVE")
    active = [_in_namespace(me, port) for port in active]
    lacking = [port for port in active if not set(wanted) & set(port.gid_types)]
    unknown = [port.name for port in lacking if UNKNOWN_GID in port.gid_types]
    words = {
        port.name: f"{port.name} has {listed(port.gid_types) or 'none'}"
        for port in lacking
        if UNKNOWN_GID not in port.gid_types
    }
    if unknown and not words:
        return subject.unknown(f"{me.name}: not every GID of {listed(unknown)} has a known type")
    for port in active:
        if port not in lacking and (address := _without_gid(me, port, wanted)):
            words[port.name] = f"{port.name} has no {' or '.join(wanted)} GID for {address}"
    shown = listed([*words.values()])
    culprit = Culprit.device(f"{me.name} {shown}", me.name, *words)
    return subject.measured(len(words), culprit, f"{me.name}: {shown}" if words else "")


def _without_gid(me: NodeSurvey, port: Port, wanted: Sequence[str]) -> str:
    """An IPv4 address of a port's interface if no GID of a wanted type has one; else "".

    Peers on other subnets cannot answer a GID of a link-local address.
    """
    known = me.machine.by_name
    there = [a for n in port.netdevs if n in known for a in known[n].addresses if "." in a]
    types = {gid.type for gid in port.gids or ()}
    if not there or port.protocol != "RoCE" or not types.issubset({"RoCE v2", "IB/RoCE v1"}):
        return ""
    ours = [gid for gid in port.gids or () if (gid.type or "").rpartition("/")[2] in wanted]
    return "" if any(_ipv4(gid) in there for gid in ours) else there[0]


def _ipv4(gid: Gid) -> str | None:
    """The IPv4 address that a GID contains; None if it contains none."""
    try:
        address = ipaddress.IPv6Address(gid.gid).ipv4_mapped
    except ValueError:
        return None
    return None if address is None else str(address)


def _in_namespace(me: NodeSurvey, port: Port) -> Port:
    """A port with only the GIDs of its node's own network namespace."""
    known = me.machine.by_name
    if port.gids is None or not known:
        return port
    return replace(port, gids=tuple(gid for gid in port.gids if _is_of(gid, known)))


def _is_of(gid: Gid, known: Mapping[str, Interface]) -> bool:
    """Whether a GID belongs to one of these interfaces. Another namespace may have an interface of
    the same name, so the interface must also have the address of an IPv4 GID."""
    if gid.netdev is None:
        return True
    interface, address = known.get(gid.netdev), _ipv4(gid)
    if interface is None or address is None:
        return interface is not None
    return not interface.addresses or address in interface.addresses

"""Judges of RDMA ports, and of the access of NICs to the memory of accelerators."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.criteria.preflight.judges.common import (
    Subject,
    listed,
    no_answer,
    promises,
    rarest_first,
    why_unread,
)
from pytest_mnode.criteria.preflight.node_links import by_wire, ports
from pytest_mnode.machine.counters import error_increases
from pytest_mnode.machine.netdev import Interface
from pytest_mnode.machine.rdma import UNKNOWN_GID, Gid, Port
from pytest_mnode.machine.software import Software
from pytest_mnode.measurement import Measurement, at_least, at_most, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Fabric

_DEPRECATED_SINCE = 580
"""First NVIDIA driver branch in which nvidia_peermem's interface is deprecated."""


def rdma_ports(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Number of ACTIVE RDMA ports of the fabric, and of those without a GID of a promised type."""
    promise = promises(spec).rdma
    if promise is None:
        return []
    me, count = survey.node(name), spec.fabric.nics_per_node
    source = f"fabric.nics_per_node {count}"
    subject = Subject(
        "RDMA ports that are ACTIVE", "", at_least(count).of("fabric.nics_per_node", count), source
    )
    if me.machine.rdma is None:
        return [subject.unknown(why_unread(me, "rdma"))]
    there = ports(me, spec.fabric)
    faults = {port.name: _fault(port, spec.fabric.protocol) for port in there}
    active = [port for port in there if faults[port.name] == ""]
    working = len(by_wire(me, active))
    unreadable = [port for port, fault in faults.items() if fault is None]
    inactive = rarest_first(survey, me, spec.fabric, _faults)
    if working < count <= working + len(unreadable):
        why = f"{name}: {listed(unreadable)} does not report its state or protocol"
        found = [subject.unknown(why)]
    else:
        state = listed(inactive) or f"{len(there)} ports"
        note = f"{name}: {state}" if there else f"{name}: no RDMA port"
        culprit = f"{name} {listed(inactive)}" if inactive else f"{name}: RDMA devices are missing"
        found = [subject.measured(working, culprit, note)]
    return found if promise.gid_types is None else [*found, _gids(me, active, promise.gid_types)]


def _faults(node: NodeSurvey, fabric: Fabric) -> list[str]:
    faults = ((port.name, _fault(port, fabric.protocol)) for port in ports(node, fabric))
    return [f"{port} {fault}" for port, fault in faults if fault]


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
    words = [
        f"{port.name} has {listed(port.gid_types) or 'none'}"
        for port in lacking
        if UNKNOWN_GID not in port.gid_types
    ]
    if unknown and not words:
        return subject.unknown(f"{me.name}: not every GID of {listed(unknown)} has a known type")
    for port in active:
        if port not in lacking and (address := _without_gid(me, port, wanted)):
            words.append(f"{port.name} has no {' or '.join(wanted)} GID for {address}")
    note = f"{me.name}: {listed(words)}" if words else ""
    return subject.measured(len(words), f"{me.name} {listed(words)}", note)


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


def rdma_opened(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Number of RDMA ports of the fabric that belong to devices that a process can open.

    NCCL skips a device that it cannot open, and sends over fewer NICs or over TCP.
    """
    if promises(spec).rdma is None:
        return []
    me, count = survey.node(name), spec.fabric.nics_per_node
    source = f"fabric.nics_per_node {count}"
    subject = Subject(
        "RDMA ports whose device can be opened",
        "",
        at_least(count).of("fabric.nics_per_node", count),
        source,
    )
    machine = me.machine
    for part in ("rdma", "verbs"):
        if getattr(machine, part) is None:
            return [subject.unknown(why_unread(me, part))]
    problems = {one.device: f"{one.name} {one.problem}".rstrip() for one in machine.verbs or ()}
    opened = {one.device for one in machine.verbs or () if not one.problem}
    there = [p for p in ports(me, spec.fabric) if not _fault(p, spec.fabric.protocol)]
    inactive = rarest_first(survey, me, spec.fabric, _faults)
    unopened = sorted({port.device for port in there} - opened)
    words = [
        f"{one} ({problems.get(one, 'the kernel has no uverbs device for it')})" for one in unopened
    ]
    found = len(by_wire(me, (port for port in there if port.device in opened)))
    named = listed(words or inactive)
    culprit = f"{name} {named}" if named else f"{name}: RDMA devices are missing"
    note = f"{name}: {listed(words) or f'{found} ports'}"
    return [subject.measured(found, culprit, note)]


def rdma_errors(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Rise of the error counters of the fabric's RDMA ports during the survey."""
    promise = promises(spec).rdma
    if promise is None or promise.errors_at_most is None:
        return []
    me, most = survey.node(name), promise.errors_at_most
    source = f"preflight.rdma.errors_at_most {most}"
    subject = Subject(
        "errors counted by RDMA ports",
        "",
        at_most(most).of("criteria.preflight.rdma.errors_at_most", most),
        source,
    )
    if me.facts is None or me.last is None:
        return [subject.unknown(no_answer(me))]
    after = {port.name: port for device in me.last.rdma or () for port in device.ports}
    risen: dict[str, int] = {}
    unknown: list[str] = []
    there = [one for one in ports(me, spec.fabric) if one.may_carry(spec.fabric.protocol)]
    for port in there:
        rises = error_increases(port, after.get(port.name))
        if not rises:
            unknown.append(f"{port.name} without error counters")
        unknown += [f"{port.name} {counter}" for counter, by in rises.items() if by is None]
        risen |= {f"{port.name} {counter}": by for counter, by in rises.items() if by is not None}
    if not risen:
        return [subject.unknown(f"{name}: no error counter can be read")]
    total = sum(risen.values())
    if unknown and total <= most:
        why = "may have risen: unreadable, reset or saturated"
        return [subject.unknown(f"{name}: {listed(unknown)} {why}")]
    words = listed([f"{what} +{by}" for what, by in risen.items() if by])
    note = words or f"{len(risen)} counters of {len(there)} ports"
    return [subject.measured(total, f"{name} {words}", note)]


def gpudirect(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Number of ways in which NICs can reach the memory of accelerators: dma-buf, peermem."""
    promise = promises(spec).gpudirect
    if promise is None:
        return []
    me = survey.node(name)
    source = f"preflight.gpudirect {promise}"
    subject = Subject("available GPUDirect RDMA methods", "", at_least(1), source)
    software = me.machine.software
    if software is None:
        return [subject.unknown(why_unread(me, "software"))]
    makers = {one.maker: one.is_nvidia for one in me.machine.pci.accelerators}
    if makers and not any(makers.values()):
        why = f"the methods of accelerators of {listed([*makers])} are not known"
        return [subject.unknown(f"{name}: {why}")]
    has = {"dma-buf": software.driver_is_open, "peermem": software.peermem is not None}
    wanted = tuple(has) if promise == "either" else (promise,)
    there = [method for method in wanted if has[method]]
    lacking = {
        "peermem": "module nvidia_peermem is not loaded",
        "dma-buf": "the driver is not the open kernel module",
    }
    if software.driver is None:
        lacking = dict.fromkeys(lacking, "no NVIDIA driver")
    why = listed([lacking[method] for method in wanted])
    if there == ["peermem"] and not _serves_peermem(software, promise):
        return [
            subject.unknown(
                f"{name}: module nvidia_peermem is loaded (driver {software.driver}), and no "
                "client nv_mem is registered in /sys/kernel/mm/memory_peers; use the open kernel "
                "module, which has dma-buf"
            )
        ]
    return [subject.measured(len(there), f"{name}: {why}", f"{name}: {listed(there) or why}")]


def _serves_peermem(software: Software, promise: str) -> bool:
    """Whether a loaded module nvidia_peermem shows that NICs can use it: it is registered.

    Up to R575 the module does not load where it cannot register itself with InfiniBand's core, so
    that a promise of the module itself is kept by loading it. The interface below it is deprecated
    since R580 (CUDA 13.0), and it was seen loaded without a registration (NCCL issue 1939).
    """
    major = (software.driver or "").partition(".")[0]
    old = major.isdecimal() and int(major) < _DEPRECATED_SINCE
    registered = any(name.startswith("nv_mem") for name in software.peer_clients)
    return registered or (promise == "peermem" and old)

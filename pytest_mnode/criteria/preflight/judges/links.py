"""Judges of the interfaces that the spec names: existence, state, speed and MTU."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.criteria.preflight.judges.common import (
    Subject,
    listed,
    mtus_of,
    networks_of,
    promises,
    rarest_first,
    why_unread,
)
from pytest_mnode.machine.netdev import Interface, Kind, physical_below, rate_mbits_s
from pytest_mnode.machine.rdma import Port
from pytest_mnode.measurement import Measurement, at_least, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Fabric, Network
from pytest_mnode.spec.quantity import RATE

_PATTERN = frozenset("*?[")


def interfaces(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """One measurement per network: number of its interfaces that are up; and one of loopback."""
    if promises(spec).interfaces is None:
        return []
    me = survey.node(name)
    networks = networks_of(spec).items()
    found = [_interfaces(survey, me, key, network) for key, network in networks]
    # Ranks of one node meet through loopback, and many programs listen on nothing else.
    for one in me.machine.interfaces or ():
        if one.kind is Kind.LOOPBACK:
            subject = Subject(f"{one.name} is up", "", equals(1), "every Linux node has loopback")
            culprit = f"{name} {one.name} is down"
            unread = subject.unknown(f"{name}: the state of {one.name} cannot be read")
            found.append(unread if one.up is None else subject.measured(one.up, culprit))
    return found


def _interfaces(survey: Survey, me: NodeSurvey, key: str, network: Network) -> Measurement:
    count = _promised_count(network)
    source = "fabric.nics_per_node" if key == "fabric" else f"{key}.interfaces"
    subject = Subject(f"{key} interfaces that are up", "", at_least(count), source)
    if me.machine.interfaces is None:
        return subject.unknown(why_unread(me, "interfaces"))
    faults = broken_links(survey, me, network)
    up = _up(me, network)
    # A single node shares its loopback with no other node, so its links are its own.
    if survey.on_loopback and len(survey.nodes) > 1 and not up:
        return subject.unknown(no_links(me, network))
    links, bare = _links(me, network)
    unreadable = [one.name for one in links if one.up is None]
    unreadable += [port.name for port in bare if port.state is None]
    if len(up) < count <= len(up) + len(unreadable):
        return subject.unknown(f"{me.name}: the state of {listed(unreadable)} cannot be read")
    culprit = f"{me.name} {listed(faults)}" if faults else f"{me.name}: too few interfaces"
    note = f"{me.name}: {listed([*faults, *(f'{n} is up' for n in up)])}"
    return subject.measured(len(up), culprit, note)


def _promised_count(network: Network) -> int:
    """Number of links of a network on each node."""
    if isinstance(network, Fabric):
        return network.nics_per_node
    return max(1, sum(_PATTERN.isdisjoint(name) for name in network.interfaces))


def no_links(node: NodeSurvey, network: Network) -> str:
    """Why links are unknown if nodes are processes of one machine."""
    named = "+".join(network.interfaces)
    return f"{node.name}: nodes that share one machine's loopback have no {named}"


def own(node: NodeSurvey, network: Network) -> list[Interface]:
    """A node's interfaces on a network, without virtual functions (SR-IOV) of another one."""
    there = node.machine.matching(network.interfaces)
    addresses = {one.pci_address for one in there} - {None}
    parent = node.machine.pci.physical_function
    return [one for one in there if parent(one.pci_address) not in addresses]


def ports(node: NodeSurvey, network: Network) -> list[Port]:
    """A node's RDMA ports whose device, or its interface, belongs to a network."""
    devices = _devices(node, own(node, network))
    return [
        port
        for port in node.machine.ports
        if port.device in devices or network.has_interface(port.device)
    ]


def by_wire(node: NodeSurvey, ports: Iterable[Port]) -> list[Port]:
    """The first of the ports on each wire, which a card and its virtual functions share."""
    found: dict[tuple[str, int], Port] = {}
    for port in ports:
        device = node.machine.device(port.device)
        address = None if device is None or device.virtual else device.pci_address
        card = node.machine.pci.physical_function(address) or address or port.device
        found.setdefault((card, port.number), port)
    return [*found.values()]


def _devices(node: NodeSurvey, links: list[Interface]) -> set[str]:
    """RDMA devices that interfaces belong to."""
    return {device for one in links for device in node.machine.rdma_devices_of(one.name)}


def _links(node: NodeSurvey, network: Network) -> tuple[list[Interface], list[Port]]:
    """A node's links on a network: interfaces, and RDMA ports without any of these interfaces.

    If the spec names an RDMA device, its ports are the links: InfiniBand works without its IPoIB
    interface.
    """
    known = ports(node, network)
    devices = {port.device for port in known}
    links = [
        one
        for one in own(node, network)
        if network.has_interface(one.name)
        or devices.isdisjoint(node.machine.rdma_devices_of(one.name))
    ]
    covered = _devices(node, links)
    return links, [port for port in known if port.device not in covered]


def _up(node: NodeSurvey, network: Network) -> list[str]:
    """Links that are up, without ports of another one, and without VLANs beside their interface.

    A virtual machine's NIC may have a virtual function as its port (hv_netvsc). Interfaces that the
    spec counts by name are each a link, even VLANs of one bond.
    """
    links, bare = _links(node, network)
    known, names = node.machine.by_name, {one.name for one in links}
    named = () if isinstance(network, Fabric) else network.interfaces
    wires: dict[tuple[str, ...], str] = {}
    for one in links:
        if one.up and (one.name in named or one.master not in names):
            below = () if one.name in named else physical_below(one, known)
            wires.setdefault(below or (one.name,), one.name)
    fit = (port for port in bare if port.state == "ACTIVE" and _fits(port, network))
    return [*wires.values(), *(port.name for port in by_wire(node, fit))]


def _fits(port: Port, network: Network) -> bool:
    return port.may_carry(network.protocol if isinstance(network, Fabric) else None)


def link_faults(node: NodeSurvey, network: Network) -> list[str]:
    """Faults of a node's interfaces on a network, each in words; [] if they cannot be read."""
    if node.machine.interfaces is None:
        return []
    there = own(node, network)
    names = {one.name for one in there} | _devices(node, there)
    names |= {port.device for port in ports(node, network)}
    faults = [
        f"{name} is not there"
        for name in network.interfaces
        if _PATTERN.isdisjoint(name) and name not in names
    ]
    if not names:
        faults = faults or [f"{'+'.join(network.interfaces)}: no such interface"]
    links, bare = _links(node, network)
    for one in links:
        if one.up is False:
            state = "is down" if one.admin_up is False else "has no carrier"
            faults.append(f"{one.name} {state}")
    for device in dict.fromkeys(port.device for port in bare):
        of_device = [port for port in bare if port.device == device]
        # A card with two ports may have a cable in only one of them.
        if all(port.state not in ("ACTIVE", None) for port in of_device):
            faults += [f"{port.name} is {port.state}" for port in of_device]
    unfit = (port for port in bare if not _fits(port, network))
    return faults + [f"{port.name} is {port.link_layer}" for port in unfit]


def broken_links(survey: Survey, node: NodeSurvey, network: Network) -> list[str]:
    """Faults of a node's links, those of fewest nodes first; [] if it has the promised number."""
    if len(_up(node, network)) >= _promised_count(network):
        return []
    return rarest_first(survey, node, network, link_faults)


def speed(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """One measurement per network: the rate of its slowest interface that is up."""
    promise = promises(spec).speed
    if promise is None:
        return []
    me, fraction = survey.node(name), promise.at_least_fraction
    found = []
    for key, network in networks_of(spec).items():
        subject = Subject(
            f"{key} speed of the slowest interface",
            "Mbit/s",
            at_least(network.line_rate_mbits_s * fraction)
            .of(f"{key}.line_rate", network.line_rate_bits_s)
            .of("criteria.preflight.speed.at_least_fraction", fraction),
            f"{key}.line_rate {RATE.text(network.line_rate_bits_s)} × {fraction:g}",
        )
        if me.machine.interfaces is None:
            found.append(subject.unknown(why_unread(me, "interfaces")))
            continue
        rates = _rates_mbits_s(me, network)
        known = {interface: rate for interface, rate in rates.items() if rate is not None}
        if not known or len(known) < len(rates):
            unreadable = listed([interface for interface in rates if interface not in known])
            why = f"the speed of {unreadable} is not known" if unreadable else "no interface is up"
            found.append(subject.unknown(f"{name}: {why}"))
            continue
        slowest = min(known, key=known.__getitem__)
        rate = known[slowest]
        found.append(subject.measured(rate, f"{name} {slowest} ({rate:g} Mbit/s)"))
    return found


def _rates_mbits_s(node: NodeSurvey, network: Network) -> dict[str, float | None]:
    """Rates of interfaces and ports that are up; a virtual interface has only its queue's rate."""
    (links, _), there = _links(node, network), own(node, network)
    known = node.machine.by_name
    rates = {one.name: rate_mbits_s(one, known) for one in links if one.up}
    sockets = not isinstance(network, Fabric) or network.kind == "ethernet"
    for port in ports(node, network):
        # TCP has the rate of the interface, whatever the rate of RDMA.
        if port.state != "ACTIVE" or not _fits(port, network):
            continue
        if sockets and not network.has_interface(port.device):
            continue
        of_port = [i for i in there if port.device in node.machine.rdma_devices_of(i.name)]
        # The bond itself is judged, and its ports may show the rate of one of its NICs.
        if any(one.kind is Kind.BOND and rates.get(one.name) for one in of_port):
            continue
        rates[port.name] = node.machine.port_rate_mbits_s(port)
        # The port carries the traffic; its interface may report no speed.
        for one in of_port:
            if rates.get(one.name) is None:
                rates.pop(one.name, None)
    return rates


def interface_mtu(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """One measurement per network: the MTU of its interfaces that differs most from the promise.

    A larger MTU than promised is wrong too: the switch drops the packets that the node then sends.
    """
    me = survey.node(name)
    found = []
    for key, (network, mtu_bytes) in mtus_of(spec).items():
        subject = Subject(
            f"{key} interface MTU",
            "B",
            equals(mtu_bytes).of(f"{key}.mtu", mtu_bytes),
            f"{key}.mtu {mtu_bytes}",
        )
        there = {one.name: one.mtu_bytes for one in _in_use(me, network)}
        known = {n: size for n, size in there.items() if size is not None}
        if not known:
            why = f"{name}: no interface {'+'.join(network.interfaces)}"
            if me.machine.interfaces is None:
                why = why_unread(me, "interfaces")
            elif there:
                why = f"{name}: no MTU can be read"
            found.append(subject.unknown(why))
            continue
        worst = max(known, key=lambda n: abs(known[n] - mtu_bytes))
        if known[worst] == mtu_bytes and len(known) < len(there):
            unreadable = listed([n for n in there if n not in known])
            found.append(subject.unknown(f"{name}: the MTU of {unreadable} cannot be read"))
        else:
            found.append(subject.measured(known[worst], wrong_mtu(me, network, mtu_bytes)))
    return found


def _in_use(node: NodeSurvey, network: Network) -> list[Interface]:
    """A node's interfaces on a network, all of them if none of these carries packets.

    Left out are spare ones that are down, and those that only carry the packets of a VLAN.
    """
    unfit = {port.device for port in node.machine.ports if not _fits(port, network)}
    there = [
        one
        for one in own(node, network)
        if network.has_interface(one.name)
        or unfit.isdisjoint(node.machine.rdma_devices_of(one.name))
    ]
    known = node.machine.by_name
    below = {n for one in there if one.usable_address for n in physical_below(one, known)}
    carrying = (
        one
        for one in there
        if one.up is not False and (one.usable_address or one.name not in below)
    )
    return list(carrying) or there


def wrong_mtu(node: NodeSurvey, network: Network, mtu_bytes: int) -> str | None:
    """The interface whose MTU differs most from `mtu_bytes`, with its MTU; None if none differs."""
    wrong = [one for one in _in_use(node, network) if one.mtu_bytes not in (None, mtu_bytes)]
    if not wrong:
        return None
    worst = max(wrong, key=lambda one: abs((one.mtu_bytes or 0) - mtu_bytes))
    return f"{node.name} {worst.name} (MTU {worst.mtu_bytes})"

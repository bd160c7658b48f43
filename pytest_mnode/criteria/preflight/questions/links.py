"""Do the interfaces that the spec names exist, are they up, and how fast are they?"""

from __future__ import annotations

from pytest_mnode.criteria.preflight.facts import Interface, NodeSurvey, RdmaPort, Survey
from pytest_mnode.criteria.preflight.machine import belonging
from pytest_mnode.criteria.preflight.questions.answer import (
    Answer,
    NotPromised,
    listed,
    silence,
    unknown,
)
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Fabric, Network
from pytest_mnode.spec.quantity import RATE

_PATTERN = frozenset("*?[")


def networks_of(spec: Spec) -> dict[str, Network]:
    """The networks of a spec by their key."""
    found: dict[str, Network] = {"fabric": spec.fabric}
    return found | ({"management": spec.management} if spec.management else {})


def promised_count(spec: Spec, key: str) -> tuple[int, str]:
    """How many interfaces of a network each node has, and which key says so."""
    if key == "fabric":
        return spec.fabric.nics_per_node, "fabric.nics_per_node"
    network = networks_of(spec)[key]
    literal = [name for name in network.interfaces if _PATTERN.isdisjoint(name)]
    return max(1, len(literal)), f"{key}.interfaces"


def interfaces(survey: Survey, spec: Spec, name: str) -> Answer:
    """One measurement a network: how many of its interfaces are there and up."""
    promise = spec.criteria.preflight
    if promise is None or promise.interfaces is None:
        return NotPromised("interfaces that are up")
    me = survey.node(name)
    found: list[Measurement] = []
    for key, network in networks_of(spec).items():
        count, source = promised_count(spec, key)
        label, bound = f"{key} interfaces that are up", at_least(count)
        if me.facts is None or me.facts.interfaces is None:
            found += unknown(label, "", bound, source, why_unread(me, "interfaces"))
            continue
        faults = link_faults(me, network)
        up = carriers(me, network)
        # A node by itself shares its loopback with no other: its links are its own.
        if survey.on_loopback and len(survey.nodes) > 1 and not up:
            found += unknown(label, "", bound, source, no_links(me, network))
            continue
        mute = _untold(me, network)
        if len(up) < count <= len(up) + len(mute):
            why = f"{name}: it cannot be read whether {listed(mute)} is up"
            found += unknown(label, "", bound, source, why)
            continue
        found.append(
            Measurement(
                label,
                len(up),
                "",
                bound,
                source,
                culprit=f"{name} {listed(faults)}" if faults else f"{name}: too few of them",
                note=f"{name}: {listed([*faults, *(f'{n} is up' for n in up)])}",
            )
        )
    return tuple(found)


def no_links(node: NodeSurvey, network: Network) -> str:
    """Why nothing can be said of links where nodes are processes of one machine."""
    named = "+".join(network.interfaces)
    return f"{node.name}: nodes that share one machine's loopback have no {named}"


def why_unread(node: NodeSurvey, part: str) -> str:
    """Why a part of a node's facts is missing."""
    if node.facts is None:
        return silence(node)
    return f"{node.name}: {node.facts.unread.get(part, f'no {part}')}"


def own(node: NodeSurvey, network: Network) -> list[Interface]:
    """A node's interfaces on a network."""
    facts = node.facts
    return belonging(facts.interfaces or (), network.interfaces) if facts else []


def ports(node: NodeSurvey, network: Network) -> list[RdmaPort]:
    """A node's RDMA ports whose device, or its interface, belongs to a network."""
    facts = node.facts
    if facts is None:
        return []
    devices = {one.rdma_device for one in own(node, network)}
    return [p for p in facts.rdma or () if p.device in devices or network.has_interface(p.device)]


def carriers(node: NodeSurvey, network: Network) -> list[str]:
    """Interfaces of a network that can carry something; RDMA ports count where they have none."""
    own_links = _links(node, network)
    up = [one.name for one in own_links if one.admin_up and one.carrier]
    covered = {one.rdma_device for one in own_links}
    return up + [
        f"{port.device}:{port.port}"
        for port in ports(node, network)
        if port.device not in covered and port.state == "ACTIVE"
    ]


def link_faults(node: NodeSurvey, network: Network) -> list[str]:
    """What is wrong with a node's interfaces on a network, each in words."""
    there = own(node, network)
    names = {one.name for one in there} | {one.rdma_device for one in there}
    names |= {port.device for port in ports(node, network)}
    faults = [
        f"{name} is not there"
        for name in network.interfaces
        if _PATTERN.isdisjoint(name) and name not in names
    ]
    if not names:
        faults = faults or [f"{'+'.join(network.interfaces)}: no such interface"]
    own_links = _links(node, network)
    for one in own_links:
        if one.admin_up is False:
            faults.append(f"{one.name} is down")
        elif one.carrier is False:
            faults.append(f"{one.name} has no carrier")
    covered = {one.rdma_device for one in own_links}
    states: dict[str, list[RdmaPort]] = {}
    for port in ports(node, network):
        if port.device not in covered:
            states.setdefault(port.device, []).append(port)
    for of_device in states.values():
        # Of a card with two ports one may have no cable.
        if all(port.state not in ("ACTIVE", None) for port in of_device):
            faults += [f"{port.device}:{port.port} is {port.state}" for port in of_device]
    return faults


def _untold(node: NodeSurvey, network: Network) -> list[str]:
    """Interfaces and ports of which it is not known whether they are up."""
    own_links = _links(node, network)
    mute = [
        one.name
        for one in own_links
        if None in (one.admin_up, one.carrier) and False not in (one.admin_up, one.carrier)
    ]
    covered = {one.rdma_device for one in own_links}
    return mute + [
        f"{port.device}:{port.port}"
        for port in ports(node, network)
        if port.device not in covered and port.state is None
    ]


def _links(node: NodeSurvey, network: Network) -> list[Interface]:
    """A node's interfaces on a network, but for those whose RDMA ports stand for them.

    Where the spec names an RDMA device, its ports are the links: InfiniBand works without the
    interface for IP over it.
    """
    told = {port.device for port in ports(node, network)}
    return [
        one
        for one in own(node, network)
        if network.has_interface(one.name) or one.rdma_device not in told
    ]


def speed(survey: Survey, spec: Spec, name: str) -> Answer:
    """One measurement a network: the rate of its slowest interface that is up."""
    promise = spec.criteria.preflight
    if promise is None or promise.speed is None:
        return NotPromised("the speed of interfaces")
    me = survey.node(name)
    fraction = promise.speed.at_least_fraction
    found: list[Measurement] = []
    for key, network in networks_of(spec).items():
        label = f"{key} speed of the slowest interface"
        bound = at_least(network.line_rate_mbits_s * fraction)
        source = f"{key}.line_rate {RATE.text(network.line_rate_bits_s)} × {fraction:g}"
        if me.facts is None or me.facts.interfaces is None:
            found += unknown(label, "Mbit/s", bound, source, why_unread(me, "interfaces"))
            continue
        rates = _rates_mbits_s(me, network)
        known = {interface: rate for interface, rate in rates.items() if rate is not None}
        if not known or len(known) < len(rates):
            mute = listed([interface for interface in rates if interface not in known])
            why = f"{name}: {mute} tells no speed" if mute else f"{name}: none is up"
            found += unknown(label, "Mbit/s", bound, source, why)
            continue
        slowest = min(known, key=known.__getitem__)
        rate = known[slowest]
        found.append(
            Measurement(label, rate, "Mbit/s", bound, source, f"{name} {slowest} ({rate:g} Mbit/s)")
        )
    return tuple(found)


def _rates_mbits_s(node: NodeSurvey, network: Network) -> dict[str, float | None]:
    """Rates of interfaces and ports that are up. A virtual interface has that of its queue only."""
    rates: dict[str, float | None] = {}
    for one in _links(node, network):
        if one.admin_up and one.carrier:
            rates[one.name] = one.shaped_mbits_s or (None if one.virtual else one.speed_mbits_s)
    sockets = not isinstance(network, Fabric) or network.kind == "ethernet"
    for port in ports(node, network):
        # TCP has the rate of the interface, whatever RDMA over it may have.
        if port.state == "ACTIVE" and not (sockets and not network.has_interface(port.device)):
            rate = port.rate_gbits_s
            rates[f"{port.device}:{port.port}"] = None if rate is None else rate * 1e3
            # The port is what carries; its interface may know no speed of its own.
            for one in own(node, network):
                if one.rdma_device == port.device and rates.get(one.name) is None:
                    rates.pop(one.name, None)
    return rates

"""The links of a node on the networks of a spec: interfaces, and RDMA ports without one.

What is there, what is up, and what is wrong with it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from typing import TypeVar

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.machine.netdev import Interface, Kind, physical_below, rests_on_hardware
from pytest_mnode.machine.rdma import Port
from pytest_mnode.spec.inventory import Fabric, Inventory, Network

N = TypeVar("N", bound=Network)
F = TypeVar("F", bound=Hashable)
_PATTERN = frozenset("*?[")


def networks_of(cluster: Inventory) -> dict[str, Network]:
    """The networks of a cluster by their key."""
    found: dict[str, Network] = {"fabric": cluster.fabric}
    return found | ({"management": cluster.management} if cluster.management else {})


def named_in(keys: Iterable[str], cluster: Inventory) -> dict[str, Network]:
    """The networks that a promise names, as far as the cluster has them."""
    there = networks_of(cluster)
    return {key: there[key] for key in keys if key in there}


def undescribed(keys: Iterable[str], cluster: Inventory) -> Iterator[str]:
    """The doubt about a promise that names a network which the spec does not describe."""
    for key in keys:
        if key not in networks_of(cluster):
            yield f".networks: {key}, which the spec does not describe"


def promised_count(network: Network) -> int:
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


def links_of(node: NodeSurvey, network: Network) -> tuple[list[Interface], list[Port]]:
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


def up(node: NodeSurvey, network: Network) -> list[str]:
    """Links that are up, without ports of another one, and without VLANs beside their interface.

    A virtual machine's NIC may have a virtual function as its port (hv_netvsc). Interfaces that the
    spec counts by name are each a link, even VLANs of one bond.
    """
    links, bare = links_of(node, network)
    known, names = node.machine.by_name, {one.name for one in links}
    named = () if isinstance(network, Fabric) else network.interfaces
    wires: dict[tuple[str, ...], str] = {}
    for one in links:
        if one.up and (one.name in named or one.master not in names):
            below = () if one.name in named else physical_below(one, known)
            wires.setdefault(below or (one.name,), one.name)
    fit = (port for port in bare if port.state == "ACTIVE" and fits(port, network))
    return [*wires.values(), *(port.name for port in by_wire(node, fit))]


def fits(port: Port, network: Network) -> bool:
    """Whether the traffic of a network may run on a port."""
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
    links, bare = links_of(node, network)
    for one in links:
        if one.up is False:
            state = "is down" if one.admin_up is False else "has no carrier"
            faults.append(f"{one.name} {state}")
    for device in dict.fromkeys(port.device for port in bare):
        of_device = [port for port in bare if port.device == device]
        # A card with two ports may have a cable in only one of them.
        if all(port.state not in ("ACTIVE", None) for port in of_device):
            faults += [f"{port.name} is {port.state}" for port in of_device]
    unfit = (port for port in bare if not fits(port, network))
    return faults + [f"{port.name} is {port.link_layer}" for port in unfit]


def broken_links(survey: Survey, node: NodeSurvey, network: Network) -> list[str]:
    """Faults of a node's links, those of fewest nodes first; [] if it has the promised number."""
    if len(up(node, network)) >= promised_count(network):
        return []
    return rarest_first(survey, node, network, link_faults)


def rarest_first(
    survey: Survey, node: NodeSurvey, network: N, faults_of: Callable[[NodeSurvey, N], list[F]]
) -> list[F]:
    """A node's faults on a network, those of fewest nodes first.

    Spare ports, such as the second ones of cards, have no cable on any node.
    """
    return sorted(faults_of(node, network), key=_counts(survey, network, faults_of).__getitem__)


@lru_cache(maxsize=8)
def _counts(
    survey: Survey, network: N, faults_of: Callable[[NodeSurvey, N], list[F]]
) -> Counter[F]:
    return Counter(fault for node in survey.nodes for fault in faults_of(node, network))


def sharing(survey: Survey, me: NodeSurvey, network: Network) -> dict[str, list[str]]:
    """Other nodes with an IP address of this node on a network, and these addresses."""
    if survey.on_loopback:
        return {}
    found: dict[str, list[str]] = {}
    for address in _addresses(me, network):
        for name in _owners(survey, network)[address]:
            if name != me.name:
                found.setdefault(name, []).append(address)
    return found


def detours(survey: Survey, me: NodeSurvey, network: Network, key: str) -> dict[str, str]:
    """Nodes that this node sends packets to by way of a third node of the run, and that node."""
    found: dict[str, str] = {}
    for one in me.paths.connections if me.paths else ():
        by = _owners(survey, network).get(one.gateway or "", [])
        other = survey.nodes[one.to].name
        if one.network == key and by and not {me.name, other} & {*by}:
            found[other] = by[0]
    return found


@lru_cache(maxsize=4)
def _owners(survey: Survey, network: Network) -> dict[str, list[str]]:
    """Names of the nodes that have each IP address."""
    found: dict[str, list[str]] = {}
    for node in survey.nodes:
        for address in _addresses(node, network):
            found.setdefault(address, []).append(node.name)
    return found


def _addresses(node: NodeSurvey, network: Network) -> list[str]:
    """Addresses that other nodes can reach, without those of loopback and of bridges between
    containers, which may be the same on all nodes."""
    known = node.machine.by_name
    there = (
        one
        for one in own(node, network)
        if one.kind is not Kind.LOOPBACK
        and (one.kind is not Kind.BRIDGE or rests_on_hardware(one, known))
    )
    return list(dict.fromkeys(address for one in there for address in one.usable_addresses))

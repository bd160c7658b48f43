"""Assignment of a node's interfaces to its fabric and its management network. Pure.

It is a guess, given with its reason, which the operator must confirm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pytest_mnode.discover.nodes import FoundNetwork, FoundNode, Kind, Networks, machine_of
from pytest_mnode.machine import netdev
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Interface
from pytest_mnode.machine.pci import Distance, data_gbits_s, full_address
from pytest_mnode.machine.rdma import Port, RdmaDevice

T = TypeVar("T")
N = TypeVar("N", int, float)
_NEAR = (Distance.PIX, Distance.PXB)
"""Below the same PCI switch. Source: nvidia-smi topo --matrix, legend."""
_CRAY = "17db"
"""Maker of Slingshot's NICs, as pci.ids names it."""
_KINDS: dict[str, Kind] = {"InfiniBand": "infiniband", "RoCE": "roce", "EFA": "efa"}


def networks_of(node: FoundNode, shared: frozenset[str] = frozenset()) -> Networks:
    """Networks of a node. shared: addresses that other nodes have too, and so reach no node."""
    machine = machine_of(node)
    fabric = _rdma_fabric(node, machine) or _ethernet_fabric(node, machine, shared)
    if fabric is None:
        return Networks(None, _management(node, machine, ()), _no_fabric(machine, shared))
    covered = _covered(machine, fabric)
    management = _management(node, machine, covered)
    reason = "" if management else _no_management(node, machine, covered)
    return Networks(fabric, management, "", reason)


def shared_addresses(nodes: Iterable[FoundNode]) -> frozenset[str]:
    """Addresses that several nodes have: of container bridges, or of a machine that they share."""
    counted = Counter(
        address
        for node in nodes
        for address in {a for nic in _nics(machine_of(node)) for a in nic.addresses}
    )
    return frozenset(address for address, count in counted.items() if count > 1)


def has_accelerators(machine: Machine) -> bool:
    """Whether NVML or PCI shows accelerators."""
    return bool(machine.accelerators or machine.pci.accelerators)


def _nics(machine: Machine) -> list[Interface]:
    return [one for one in machine.interfaces or () if one.kind is not netdev.Kind.LOOPBACK]


def _rate(machine: Machine, nic: Interface) -> float | None:
    return netdev.rate_mbits_s(nic, machine.by_name)


def _wires(machine: Machine, nic: Interface) -> tuple[str, ...]:
    return netdev.physical_below(nic, machine.by_name)


def _rdma_fabric(node: FoundNode, machine: Machine) -> FoundNetwork | None:
    if not has_accelerators(machine):
        return None  # ranks on CPUs use TCP
    devices = {d.name: d for d in machine.rdma or () if not d.virtual}
    real = [port for port in machine.ports if port.device in devices]
    ports = [port for port in real if port.active and _kind(port) is not None]
    not_chosen = [f"{p.name} is {p.state or 'of unknown state'}" for p in real if not p.active]
    not_chosen += [
        f"{p.name} has {p.protocol or 'an unknown protocol'}"
        for p in real
        if p.active and _kind(p) is None
    ]
    control = [p for p in ports if _carries_control(devices[p.device], node, machine)]
    ports, control_ports = _split(ports, control)
    not_chosen += [f"{p.device} carries control traffic" for p in control_ports]
    ports, functions = _split(
        ports, [p for p in ports if machine.pci.physical_function(devices[p.device].pci_address)]
    )
    not_chosen += [f"{p.device} is a virtual function" for p in functions]
    nearest = {
        name: machine.pci.nearest_accelerator(device.pci_address)
        for name, device in devices.items()
    }
    near, far = _split(ports, [p for p in ports if nearest[p.device] not in _NEAR])
    how = ""
    if far:
        not_chosen += [
            f"{p.device} is at PCI distance {nearest[p.device] or 'unknown'} from accelerators"
            for p in far
        ]
        ports, how = near, ", below the same PCI switch as an accelerator"
    if not ports:
        return None
    groups: dict[tuple[Kind | None, float | None], list[Port]] = {}
    for port in ports:
        groups.setdefault((_kind(port), port.rate_gbits_s), []).append(port)
    (kind, rate), chosen = max(
        groups.items(), key=lambda g: ((g[0][1] or 0) * len(g[1]), len(g[1]))
    )
    assert kind is not None
    not_chosen += [
        f"{p.device} at {p.rate_gbits_s or 'an unknown rate'} Gbit/s"
        for p in ports
        if p not in chosen
    ]
    names = {name for port in chosen for name in devices[port.device].netdevs}
    own = [nic for nic in _nics(machine) if nic.name in names]
    # Of a bond and its ports, or a VLAN and its NIC, only one has an address.
    with_address = {nic.name: nic for nic in own if nic.usable_address}
    addressed = all(with_address.keys() & devices[port.device].netdevs for port in chosen)
    # The MTU of IP over InfiniBand is often left wrong where IP is not used.
    sized = [*with_address.values()] if addressed else own if kind != "infiniband" else []
    each, limited = _of_each(machine, [_card_port(machine, p, devices) for p in chosen], rate)
    mtus = machine.active_mtus or {}
    sizes = [nic.mtu_bytes for nic in sized] or [mtus.get(port.name) for port in chosen]
    return FoundNetwork(
        kind=kind,
        interfaces=tuple(dict.fromkeys(port.device for port in chosen)),
        nics=len(chosen),
        rate_mbits_s=None if each is None else each * 1e3,
        mtu_bytes=_only(sizes),
        addressed=addressed,
        why=f"RDMA ports that are ACTIVE{how}{limited}",
        not_chosen=tuple(not_chosen),
        gid_types=tuple(sorted({t for port in chosen for t in port.gid_types})),
    )


@dataclass(frozen=True, slots=True)
class _CardPort:
    """Where a NIC sends. address: of its PCI function, of a virtual one that of its physical one;
    wire: equal for NICs that share a port; both None if unknown. part: what its wires carry of the
    rate that it shows, because a bond adds up the rates of functions that share a wire."""

    address: str | None
    wire: object
    part: float = 1.0


def _card_port(machine: Machine, port: Port, devices: Mapping[str, RdmaDevice]) -> _CardPort:
    """Of an RDMA port. Functions of one card in several slots, as for two sockets, have one GUID,
    and the same function number for the same port."""
    device = devices[port.device]
    below = [
        wire
        for name in port.netdevs or device.netdevs
        for nic in [machine.by_name.get(name)]
        if nic is not None
        for wire in _wires(machine, nic)
    ]
    wires = tuple(sorted({w for name in below if (w := machine.by_name[name].wire)}))
    address = full_address(device.pci_address)
    if card := machine.pci.physical_function(address):
        return _CardPort(card, (card, port.number))
    if port.link_layer == "Unknown":  # EFA: the links of virtual machines are made up
        return _CardPort(None, None)
    if not wires and device.image_guid and address:
        return _CardPort(address, (device.image_guid, address[-1], port.number))
    return _CardPort(address, wires or None)


def _port_below(machine: Machine, nic: Interface) -> _CardPort:
    """Of an interface. The slots of a bond's interfaces are not compared with its rate."""
    below = [machine.by_name[name] for name in _wires(machine, nic)]
    if not below or nic.shaped_mbits_s:
        return _CardPort(None, None)
    if len(below) > 1:
        wires = {one.wire for one in below}
        return _CardPort(None, None, 1.0 if None in wires else len(wires) / len(below))
    address = full_address(below[0].pci_address)
    card = machine.pci.physical_function(address)
    return _CardPort(card or address, (card, below[0].wire) if card else below[0].wire)


def _of_each(
    machine: Machine, ports: Sequence[_CardPort], gbits_s: float | None
) -> tuple[float | None, str]:
    """Rate in Gbit/s that each of these NICs has while all send, and why it is less; "" if not.

    gbits_s: of a wire. NICs that share a wire share its rate, and functions of one slot share its
    PCIe link. A link of less than a quarter of the wire is taken for a made-up one.
    """
    if gbits_s is None:
        return None, ""
    wires = Counter(port.wire for port in ports if port.wire is not None)
    slots = Counter(p.address.rpartition(".")[0] for p in ports if p.address)
    least, why = gbits_s, ""
    for count in wires.values():
        if gbits_s / count < least:
            least = gbits_s / count
            why = f", {count} PCI functions to each wire of {gbits_s:g} Gbit/s"
    if (part := min((port.part for port in ports), default=1.0)) < 1:
        least, why = gbits_s * part, f", whose bonds join functions of one wire ({part:.0%} each)"
    for slot, count in slots.items():
        width, gtransfers_s = machine.pci.full_link(slot)
        if not width or not gtransfers_s:
            continue
        link = data_gbits_s(width, gtransfers_s)
        if gbits_s <= 4 * link and int(link / count) < least:
            least = float(int(link / count))
            why = f", limited by PCIe x{width} at {gtransfers_s:g} GT/s"
            why += f" for {count} functions" if count > 1 else ""
    return least, why


def _kind(port: Port) -> Kind | None:
    return _KINDS.get(port.protocol or "")


def _carries_control(device: RdmaDevice, node: FoundNode, machine: Machine) -> bool:
    """Whether an interface of a device, or one built on it, has the address for control."""
    return any(
        node.address in nic.addresses and set(device.netdevs) & {nic.name, *_wires(machine, nic)}
        for nic in _nics(machine)
    )


def _ethernet_fabric(
    node: FoundNode, machine: Machine, shared: frozenset[str]
) -> FoundNetwork | None:
    links, doubled = _one_per_wire(machine, _links(machine, shared), node.address)
    rates = {nic.name: _rate(machine, nic) for nic in links}
    others, control = _split(links, [nic for nic in links if node.address in nic.addresses])
    best = max((rate for rate in rates.values() if rate), default=None)
    fastest = [nic for nic in links if best is not None and rates[nic.name] == best]
    chosen, spared = _split(fastest, control)
    why = "the fastest interfaces that are up and have an address of their own"
    if not chosen or (chosen == control and any(rates[nic.name] is None for nic in others)):
        # Their speed is unknown: one without the address for control is more likely the fabric.
        chosen = [nic for nic in others if rates[nic.name] is None] or others or control
        why = "interfaces that are up, with an address of their own; rates do not show the fastest"
    if not chosen:
        return None
    not_chosen = [f"{nic.name} is as fast, but carries control traffic" for nic in spared]
    not_chosen += doubled
    if not has_accelerators(machine):
        virtual = {device.name for device in machine.rdma or () if device.virtual}
        not_chosen += [
            f"{port.device} could do RDMA, but ranks without accelerators use TCP"
            for port in machine.ports
            if port.active and port.device not in virtual
        ]
    not_chosen += [
        f"{nic.name} at {rates[nic.name] or 'an unknown rate'} Mbit/s"
        for nic in others
        if nic not in chosen
    ]
    rate = _only(rates[nic.name] for nic in chosen)
    ports = [_port_below(machine, nic) for nic in chosen]
    each, limited = _of_each(machine, ports, None if rate is None else rate / 1e3)
    makers = {one.vendor for port in ports if (one := machine.pci.function(port.address))}
    return FoundNetwork(
        kind="cxi" if makers == {_CRAY} and has_accelerators(machine) else "ethernet",
        interfaces=tuple(nic.name for nic in chosen),
        nics=len(chosen),
        rate_mbits_s=None if each is None else each * 1e3,
        mtu_bytes=_only(nic.mtu_bytes for nic in chosen),
        addressed=True,
        why=f"{why}{limited}",
        not_chosen=tuple(not_chosen),
    )


def _links(machine: Machine, shared: frozenset[str]) -> list[Interface]:
    """Interfaces that could carry traffic to another node."""
    known = machine.by_name
    return [
        nic
        for nic in _nics(machine)
        if nic.up is not False
        and nic.master is None
        and (nic.shaped_mbits_s or netdev.rests_on_hardware(nic, known))
        and (address := nic.usable_address) is not None
        and address not in shared
    ]


def _one_per_wire(
    machine: Machine, links: Sequence[Interface], control: str
) -> tuple[list[Interface], list[str]]:
    """One interface for each wire, and for every other interface a text that names its wire.

    The interface with the address for control represents its wire, else the one with the device.
    """
    wires = {nic.name: _wires(machine, nic) for nic in links}
    ranked = sorted(
        links, key=lambda nic: (control not in nic.addresses, nic.name not in wires[nic.name])
    )
    kept: list[Interface] = []
    doubled = []
    for nic in ranked:
        mine = set(wires[nic.name])
        first = next((one for one in kept if mine & set(wires[one.name])), None)
        if first is None:
            kept.append(nic)
        else:
            doubled.append(f"{nic.name} is on the wire of {first.name}")
    return [nic for nic in links if nic in kept], doubled


def _covered(machine: Machine, fabric: FoundNetwork) -> tuple[str, ...]:
    """Interfaces of a fabric and of its RDMA devices, and all others on the same wires."""
    names = set(fabric.interfaces)
    own = [
        nic
        for nic in _nics(machine)
        if nic.name in names or names & set(machine.rdma_devices_of(nic.name))
    ]
    wires = {wire for nic in own for wire in _wires(machine, nic)}
    return tuple(
        nic.name for nic in _nics(machine) if nic in own or wires & set(_wires(machine, nic))
    )


def _control(node: FoundNode, machine: Machine) -> Interface | None:
    """The interface with the address for control."""
    return next((nic for nic in _nics(machine) if node.address in nic.addresses), None)


def _management(node: FoundNode, machine: Machine, covered: Sequence[str]) -> FoundNetwork | None:
    nic = _control(node, machine)
    if nic is None or nic.name in covered or (rate := _rate(machine, nic)) is None:
        return None
    return FoundNetwork(
        kind="ethernet",
        interfaces=(nic.name,),
        nics=1,
        rate_mbits_s=rate,
        mtu_bytes=nic.mtu_bytes,
        addressed=True,
        why="it has the address by which this run reaches the node",
    )


def _no_management(node: FoundNode, machine: Machine, covered: Sequence[str]) -> str:
    nic = _control(node, machine)
    if nic is None:
        return f"no interface has {node.address}, the address for control traffic"
    if nic.name in covered:
        return f"{nic.name} of the fabric also carries control traffic"
    return f"{nic.name} carries control traffic, and its rate is unknown"


def _no_fabric(machine: Machine, shared: frozenset[str]) -> str:
    if machine.interfaces is None:
        return machine.unread.get("interfaces", "its interfaces cannot be read")
    reasons = []
    for nic in _nics(machine):
        address = nic.usable_address
        if nic.up is False:
            reasons.append(f"{nic.name} is down")
        elif address is None:
            reasons.append(f"{nic.name} has no address")
        elif address in shared:
            reasons.append(f"{nic.name} has {address}, which other nodes also have")
        else:
            reasons.append(f"{nic.name} is virtual, and its physical device is unknown")
    return "; ".join(reasons) or "it has no interface but loopback"


def _split(links: list[T], taken: list[T]) -> tuple[list[T], list[T]]:
    """Links outside and inside `taken`; all of them and none if `taken` has all."""
    rest = [link for link in links if link not in taken]
    return (rest, [link for link in links if link in taken]) if rest else (links, [])


def _only(values: Iterable[N | None]) -> N | None:
    """The common value; None if values differ or one is unknown."""
    found = set(values)
    return found.pop() if len(found) == 1 else None

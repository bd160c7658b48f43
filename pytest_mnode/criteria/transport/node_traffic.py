"""Bytes that the NICs of a node carried between two readings of counters. None: not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pytest_mnode.criteria.transport.settings import Selection
from pytest_mnode.machine.counters import estimated_port_bytes, increases, port_bytes, port_packets
from pytest_mnode.machine.fabric_nics import fabric_ports, named_ports
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Kind, plain
from pytest_mnode.machine.rdma import Port
from pytest_mnode.measuring.traffic import all_lower_devices, lower_devices_of
from pytest_mnode.spec.models import Spec

PARTS = ("interfaces", "rdma")
"""The parts of a machine that transport is judged on."""
_PACKET_BYTES = 4096
"""The largest RDMA MTU, which does not include headers."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """Traffic of a NIC: an RDMA port, or an interface for sockets.

    state: as the kernel reports it, if the NIC is down; else empty. sent_packets: if the NIC
    counts packets and no bytes.
    """

    name: str
    sent_bytes: int | None
    received_bytes: int | None
    state: str = ""
    sent_packets: int | None = None

    @property
    def shown(self) -> str:
        """The name, with the state of a NIC that is down."""
        return f"{self.name} ({self.state})" if self.state else self.name

    @property
    def sent_at_most_bytes(self) -> int | None:
        """The bytes that it sent, or the most that its packets can hold."""
        if self.sent_bytes is not None or self.sent_packets is None:
            return self.sent_bytes
        return self.sent_packets * _PACKET_BYTES

    @property
    def carried_bytes(self) -> int:
        """The larger of both directions; 0 where neither is known."""
        return max(self.sent_bytes or 0, self.received_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTraffic:
    """A node: its machine after the traffic, and the traffic of each NIC.

    sent_bytes, received_bytes: by interface (eth0) and RDMA port (mlx5_0:1); without those whose
    counters could not be read twice, or decreased. sent_packets: by RDMA port that counts them.
    """

    name: str
    machine: Machine
    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    received_bytes: Mapping[str, int] = field(default_factory=dict)
    sent_packets: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def between(cls, name: str, before: Machine, after: Machine) -> NodeTraffic:
        """The traffic between two readings; parts that one of them lacks are not known."""
        machine = replace(
            after,
            interfaces=None if before.interfaces is None else after.interfaces,
            rdma=None if before.rdma is None else after.rdma,
        )
        return cls(
            name=name,
            machine=machine,
            sent_bytes=_grown_bytes(before, machine, sent=True),
            received_bytes=_grown_bytes(before, machine, sent=False),
            sent_packets=increases(_port_packets(before), _port_packets(machine)),
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of RDMA devices."""
        return tuple(device.name for device in self.machine.rdma or ())

    @property
    def ipoib(self) -> frozenset[str]:
        """Interfaces of IP over InfiniBand."""
        interfaces = self.machine.interfaces or ()
        return frozenset(nic.name for nic in interfaces if nic.kind is Kind.IPOIB)

    def interface_of(self, address: str) -> str | None:
        """The interface that has an IP address."""
        interfaces = self.machine.interfaces or ()
        owners = (nic.name for nic in interfaces if address in map(plain, nic.addresses))
        return next(owners, None)

    def fabric_ports(self, spec: Spec) -> list[Port]:
        """RDMA ports of the fabric."""
        fabric, devices = spec.fabric, self.machine.rdma or ()
        return fabric_ports(fabric.interfaces, fabric.nics_per_node, fabric.protocol, devices)

    def is_named(self, name: str, spec: Spec) -> bool:
        """Whether the spec names a NIC (mlx5_0, mlx5_0:1, eth0), or the interface of a device."""
        nic = name.partition(":")[0]
        ports = named_ports(spec.fabric.interfaces, self.machine.rdma or ())
        return spec.fabric.has_interface(nic) or any(port.device == nic for port in ports)

    def why_not_taken(self, chosen: Selection) -> str:
        """Why a list of RDMA devices takes no port that is up, in words; "" if it takes one."""
        taken = [port for port in self.machine.ports if chosen.takes(port.device, port.number)]
        if any(port.active is not False for port in taken):
            return ""
        down = ", ".join(f"{port.name} ({state_of(port)})" for port in taken)
        return f"takes only {down}" if down else f"takes no RDMA device of this node{chosen.doubt}"

    def netdevs_of(self, port: Port) -> tuple[str, ...]:
        """Interfaces of a port; those of its device if its GIDs name none."""
        device = self.machine.device(port.device)
        return port.netdevs or (device.netdevs if device else ())

    def carriers(self, spec: Spec, *, rdma: bool, of_fabric: bool) -> list[Carrier] | None:
        """RDMA ports if `rdma`, else interfaces, of the fabric or not; None if not known."""
        if rdma:
            if self.machine.rdma is None:
                return None
            several = {p.device for p in self.machine.ports if p.number > 1}
            ours = {port.name for port in self.fabric_ports(spec)}
            return [
                self._carrier(p.name, p.name if p.device in several else p.device, state_of(p))
                for p in self.machine.ports
                if (p.name in ours) is of_fabric
            ]
        if self.machine.interfaces is None:
            return None
        has, below = spec.fabric.has_interface, lower_devices_of(self.machine.interfaces, ())

        def counted_below(name: str) -> bool:
            """Whether a lower device is of the fabric too: `bond*` names a VLAN and its bond."""
            return any(map(has, all_lower_devices(name, below)))

        return [
            self._carrier(nic.name, nic.name, "down" if nic.up is False else "")
            for nic in self.machine.interfaces
            if has(nic.name) is of_fabric and not (of_fabric and counted_below(nic.name))
        ]

    def _carrier(self, key: str, name: str, state: str) -> Carrier:
        sent, received = self.sent_bytes.get(key), self.received_bytes.get(key)
        return Carrier(name, sent, received, state, self.sent_packets.get(key))

    def same_wire(self, names: Iterable[str]) -> set[str]:
        """`names` and all interfaces that carry the same bytes: bonds, their links, VLANs."""
        pairs = {
            (nic.name, other)
            for nic in self.machine.interfaces or ()
            for other in (*nic.slaves, nic.master, nic.parent)
            if other
        }
        found, linked = set[str](), set(names)
        while linked - found:
            found |= linked
            linked = {b for a, b in pairs if a in found} | {a for a, b in pairs if b in found}
        return found


def state_of(port: Port) -> str:
    """The state of a port that is not active; empty for any other."""
    if port.active is not False:
        return ""
    return str(port.phys_state if port.state == "ACTIVE" else port.state)


def gid_types(port: Port) -> dict[int, str] | None:
    """Types of a port's GIDs by index: v1 or v2 for RoCE, else as the kernel names them."""
    if port.gids is None:
        return None
    return {gid.index: _short(gid.type.strip()) for gid in port.gids if gid.type}


def _short(gid_type: str) -> str:
    version = gid_type[-2:].lower()
    return version if version in ("v1", "v2") else gid_type


def _grown_bytes(before: Machine, after: Machine, *, sent: bool) -> dict[str, int]:
    """Bytes by interface and port. For ports that count packets, see `estimated_port_bytes`."""
    # An interface that was made since then, such as a container's, has counted from 0.
    new = (nic.name for nic in after.interfaces or () if nic.kind is Kind.VIRTUAL)
    first = {name: 0 for name in new if name not in before.by_name}
    grown = increases(first | _bytes(before, sent=sent), _bytes(after, sent=sent))
    packets = increases(_port_packets(before, sent=sent), _port_packets(after, sent=sent))
    below = increases(_packets(before, sent=sent), _packets(after, sent=sent))
    for port in after.ports:
        device = after.device(port.device)
        [netdev, *others] = (device and device.netdevs) or [""]
        if port.name in packets and port.name not in grown and not others and netdev in below:
            count = estimated_port_bytes(packets[port.name], below[netdev], grown.get(netdev, 0))
            grown |= {} if count is None else {port.name: count}
    return grown


def _bytes(machine: Machine, *, sent: bool) -> dict[str, int]:
    nics = [(n.name, n.sent_bytes if sent else n.received_bytes) for n in machine.interfaces or ()]
    return _known([*nics, *((port.name, port_bytes(port, sent=sent)) for port in machine.ports)])


def _packets(machine: Machine, *, sent: bool) -> dict[str, int]:
    nics = machine.interfaces or ()
    return _known((nic.name, nic.sent_packets if sent else nic.received_packets) for nic in nics)


def _port_packets(machine: Machine, *, sent: bool = True) -> dict[str, int]:
    return _known((port.name, port_packets(port, sent=sent)) for port in machine.ports)


def _known(counts: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    return {name: count for name, count in counts if count is not None}

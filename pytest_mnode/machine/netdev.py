"""Network interfaces of this network namespace from sysfs."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from socket import AF_INET, AF_INET6

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.netlink import shaped_mbits_s

_IFF_UP = 0x1
_INFINIBAND, _LOOPBACK = 32, 772
"""ARPHRD_INFINIBAND and ARPHRD_LOOPBACK, as `type` gives them."""
_ERRORS = (
    *("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_frame_errors"),
    *("rx_missed_errors", "rx_fifo_errors", "tx_carrier_errors", "tx_aborted_errors", "collisions"),
)

_PORT = re.compile(r"p\d+(?:s\d+)?")
"""Names of a card's own ports and of their parts; functions behind its switch are pf0, pf0vf1."""
_SIOCETHTOOL = 0x8946
_OFFLOADS = {
    "rx-checksum": (0x14, 1),
    "tx-checksum": (0x16, 1),
    "scatter-gather": (0x18, 1),
    "tso": (0x1E, 1),
    "gso": (0x23, 1),
    "gro": (0x2B, 1),
    "lro": (0x25, 1 << 15),
}
"""Commands of ethtool, and the bit of their answer that is set if the offload is on."""


class Kind(StrEnum):
    """Kind of an interface. NICs of a virtual machine are `PHYSICAL` too: they have a device."""

    PHYSICAL = "physical"
    VIRTUAL = "virtual"
    LOOPBACK = "loopback"
    BOND = "bond"
    BRIDGE = "bridge"
    IPOIB = "ipoib"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network interface.

    operstate: up, down, unknown, lowerlayerdown, …; loopback and some virtual ones stay "unknown"
    while they work. admin_up: set up by an administrator. carrier: None while it is not set up.
    speed_mbits_s: as the driver reports it, which for veth is always 10000; None if the driver does
    not know it (−1) or the interface is down. carrier_changes: number of times the carrier came or
    went since the interface was created. address: MAC, of 20 bytes on IPoIB. slaves: interfaces
    below it, also the ports of a bridge. wire: identifies the port of the card that it sends over,
    which several PCI functions may share; None if the driver does not tell. errors: counters of
    errors and drops by the kernel's names, only those that can be read. addresses: IPv4 and IPv6;
    shaped_mbits_s: rate of its egress queue (tbf); offloads: whether the NIC or the kernel joins
    and cuts segments and computes checksums, only those that can be read; all three only of a live
    machine: see `live`.
    """

    name: str
    kind: Kind
    operstate: str | None = None
    admin_up: bool | None = None
    carrier: bool | None = None
    speed_mbits_s: int | None = None
    mtu_bytes: int | None = None
    address: str | None = None
    master: str | None = None
    slaves: tuple[str, ...] = ()
    pci_address: str | None = None
    numa_node: int | None = None
    wire: str | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    sent_packets: int | None = None
    received_packets: int | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    carrier_changes: int | None = None
    addresses: tuple[str, ...] = ()
    shaped_mbits_s: float | None = None
    offloads: Mapping[str, bool] = field(default_factory=dict)

    @property
    def up(self) -> bool | None:
        """Whether it can carry traffic now: set up, with a carrier if known; None if unknown."""
        if self.admin_up is False or self.carrier is False:
            return False
        if self.operstate in ("down", "lowerlayerdown", "notpresent", "dormant"):
            return False
        if self.operstate == "up" or (self.admin_up and self.carrier):
            return True
        return None

    @property
    def usable_addresses(self) -> tuple[str, ...]:
        """Addresses that other nodes can reach without a zone; IPv4 first."""
        parsed = [ipaddress.ip_address(one.partition("%")[0]) for one in self.addresses]
        fit = [one for one in parsed if not one.is_link_local and not one.is_unspecified]
        return tuple(str(one) for one in sorted(fit, key=lambda one: one.version))

    @property
    def usable_address(self) -> str | None:
        """The first of its usable addresses."""
        return next(iter(self.usable_addresses), None)

    @property
    def parent(self) -> str | None:
        """Name of the parent: the part of a VLAN's or IPoIB child's name before its number."""
        head, separator, _ = self.name.rpartition(".")
        return head if separator and head else None


def rate_mbits_s(interface: Interface, known: Mapping[str, Interface]) -> float | None:
    """Rate of an interface's queue, else speed of its hardware; None if neither is known.

    A bridge itself reports the speed of its fastest port, which may be a veth: only ports with
    hardware count, unless they are down. known: all interfaces by name.
    """
    if interface.shaped_mbits_s or not rests_on_hardware(interface, known):
        return interface.shaped_mbits_s
    if interface.kind is not Kind.BRIDGE:
        return interface.speed_mbits_s
    ports = (known[name] for name in interface.slaves if name in known)
    real = (port for port in ports if port.up is not False and rests_on_hardware(port, known))
    rates = [rate_mbits_s(port, known) for port in real]
    return None if None in rates else max((rate for rate in rates if rate), default=None)


def rests_on_hardware(interface: Interface, known: Mapping[str, Interface]) -> bool:
    """Whether an interface has a device: its own, or those of all interfaces below a bond or VLAN.

    Only then is its speed meaningful: veth and tunnels report a constant. For a bridge, one port
    with a device is enough. known: all interfaces by name.
    """
    found, bare = _below(interface, known)
    return bool(found) and (not bare or interface.kind is Kind.BRIDGE)


def physical_below(interface: Interface, known: Mapping[str, Interface]) -> tuple[str, ...]:
    """Names of the interfaces with a device below `interface`, or its own if it has a device.

    Interfaces with the same result share a wire. known: all interfaces by name.
    """
    return tuple(sorted(_below(interface, known)[0]))


def _below(interface: Interface, known: Mapping[str, Interface]) -> tuple[set[str], bool]:
    """Interfaces with a device below `interface`, and whether there are others without one."""
    waiting, seen, bare = [interface.name], set[str](), False
    found = set[str]()
    while waiting:
        one = known.get(waiting.pop())
        if one is None or one.name in seen:
            continue
        seen.add(one.name)
        below = [n for n in (*one.slaves, one.parent) if n in known and n not in seen]
        child = one.kind is Kind.IPOIB and one.parent in known  # uses its parent's device
        if one.kind in (Kind.PHYSICAL, Kind.IPOIB) and not child:
            found.add(one.name)
        elif below:
            waiting += [str(name) for name in below]
        else:
            bare = True
    return found, bare


def read_interfaces(root: Path = Path("/")) -> tuple[Interface, ...] | None:
    """Interfaces below `root`/sys/class/net, ordered by name; None if they cannot be listed.

    /sys shows the network namespace in which it was mounted.

    Source: Linux, Documentation/ABI/testing/sysfs-class-net, …-statistics.
    """
    folder = root / "sys/class/net"
    if not folder.is_dir():
        return None
    # bonding_masters lies beside the interfaces and is a file.
    return tuple(_interface(path, root) for path in sysfs.entries(folder) if path.is_dir())


def live(found: Iterable[Interface]) -> tuple[Interface, ...]:
    """The same interfaces with addresses, shaped rates and offloads, known on a live machine."""
    addresses = _addresses()
    shaped: Mapping[str, float] = {}
    with contextlib.suppress(OSError):
        shaped = shaped_mbits_s()
    return tuple(
        replace(
            one,
            addresses=addresses.get(one.name, ()),
            shaped_mbits_s=shaped.get(one.name),
            offloads=_offloads(one.name),
        )
        for one in found
    )


def _offloads(name: str) -> dict[str, bool]:
    """Offloads of an interface. Source: Linux, include/uapi/linux/ethtool.h."""
    found: dict[str, bool] = {}
    for offload, (command, bit) in _OFFLOADS.items():
        with contextlib.suppress(OSError):  # not every kind of interface answers
            found[offload] = bool(ethtool(name, command) & bit)
    return found


def ethtool(name: str, command: int, value: int = 0) -> int:
    """Ask an interface for the value of an ethtool command, or set it. Raises OSError."""
    data = ctypes.create_string_buffer(struct.pack("=II", command, value), 8)
    request = struct.pack("16sP16x", name.encode(), ctypes.addressof(data))
    with socket.socket(AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    return int(struct.unpack("=II", data.raw)[1])


def plain(address: str) -> str:
    """Canonical form of an address, for comparison; without the zone of fe80::1%eth0."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def _addresses() -> dict[str, tuple[str, ...]]:
    import psutil

    found: dict[str, tuple[str, ...]] = {}
    for label, addresses in psutil.net_if_addrs().items():
        name = label.partition(":")[0]  # IPv4 addresses may have labels, such as eth0:1
        own = tuple(one.address for one in addresses if one.family in (AF_INET, AF_INET6))
        found[name] = found.get(name, ()) + own
    return found


def _wire(path: Path) -> str | None:
    """The port of a card by the identifier of its switch and its name, or by its own identifier.

    Source: Linux, Documentation/ABI/testing/sysfs-class-net, phys_switch_id and phys_port_*.
    """
    card, port = (sysfs.text(path / f"phys_{name}") for name in ("switch_id", "port_name"))
    if card and port and _PORT.fullmatch(port):
        return f"{card} {port}"
    return sysfs.text(path / "phys_port_id") or None


def _interface(path: Path, root: Path) -> Interface:
    device = path / "device"
    addresses = sysfs.pci_addresses(sysfs.place(device, root))
    flags = sysfs.integer(path / "flags")
    carrier = sysfs.count(path / "carrier")
    statistics = path / "statistics"
    ports = sysfs.entries(path / "brif")
    lower = [p.name[6:] for p in sysfs.entries(path) if p.name.startswith("lower_")]
    slaves = (sysfs.text(path / "bonding/slaves") or "").split() or [p.name for p in ports] or lower
    return Interface(
        name=path.name,
        kind=_kind(path, sysfs.integer(path / "type")),
        operstate=sysfs.text(path / "operstate") or None,
        admin_up=None if flags is None else bool(flags & _IFF_UP),
        carrier=None if carrier is None else carrier != 0,
        speed_mbits_s=_speed(path / "speed"),
        mtu_bytes=sysfs.count(path / "mtu"),
        address=sysfs.text(path / "address") or None,
        master=sysfs.target_name(path / "master"),
        slaves=tuple(slaves),
        pci_address=addresses[-1] if addresses else None,
        numa_node=sysfs.numa_node(device, root),
        wire=_wire(path),
        sent_bytes=sysfs.count(statistics / "tx_bytes"),
        received_bytes=sysfs.count(statistics / "rx_bytes"),
        sent_packets=sysfs.count(statistics / "tx_packets"),
        received_packets=sysfs.count(statistics / "rx_packets"),
        errors={
            name: value for name in _ERRORS if (value := sysfs.count(statistics / name)) is not None
        },
        carrier_changes=sysfs.count(path / "carrier_changes"),
    )


def _kind(path: Path, number: int | None) -> Kind:
    if number == _LOOPBACK:
        return Kind.LOOPBACK
    if number == _INFINIBAND:
        return Kind.IPOIB
    if (path / "bonding").is_dir():
        return Kind.BOND
    if (path / "bridge").is_dir():
        return Kind.BRIDGE
    return Kind.PHYSICAL if (path / "device").exists() else Kind.VIRTUAL


def _speed(path: Path) -> int | None:
    speed = sysfs.count(path)
    return speed if speed and speed < (1 << 32) - 1 else None  # unknown is also written unsigned

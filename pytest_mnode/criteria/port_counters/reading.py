"""The program that reads the counters of a node's fabric ports, and prints one line of JSON.

`python -m pytest_mnode.criteria.port_counters.reading PATTERN …`, patterns as in
`fabric.interfaces`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_mnode.machine import netdev, rdma, sysfs
from pytest_mnode.machine.encoding import encode

Counters = dict[str, int | None]
"""Counters of one port by the kernel's names; None for one that cannot be read."""
CARRIER = "carrier_changes"
TCP = "TCP"
"""The pseudo port that counts the node's TCP segments over all interfaces."""


@dataclass(frozen=True, slots=True)
class PortReading:
    """Counters of one node by port: an interface (fab0) or an RDMA port (mlx5_0:1), and `TCP`.

    boot: an identifier that changes when the node is restarted.
    """

    boot: str
    ports: dict[str, Counters]


def read(patterns: Sequence[str], root: Path = Path("/")) -> PortReading:
    """Counters of interfaces and RDMA devices that match a pattern, and of the devices below them.

    A pattern that names an interface also names its RDMA device, and the reverse. These two
    parts of a machine are read by their own readers: this program starts twice per criterion on
    every node, and the model of a whole machine would take most of the time of a start.
    """

    def named(*names: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    known = {one.name: one for one in netdev.read_interfaces(root) or ()}
    devices = [one for one in rdma.read_rdma(root) or () if named(one.name, *one.netdevs)]
    fabric = {name for name in known if named(name)} | {n for d in devices for n in d.netdevs}
    for name in fabric & known.keys():
        fabric = fabric.union(netdev.physical_below(known[name], known))
    ports = {name: _of_interface(known[name]) for name in sorted(fabric & known.keys())}
    ports |= {port.name: _of_port(port) for device in devices for port in device.ports}
    if tcp := _tcp(root):
        ports[TCP] = tcp
    boot = f"{sysfs.boot_id(root)} {sysfs.target_name(root / 'proc/self/ns/net')}"
    return PortReading(boot, ports)


def _of_interface(one: netdev.Interface) -> Counters:
    packets = {"tx_packets": one.sent_packets, "rx_packets": one.received_packets}
    return {CARRIER: one.carrier_changes, **packets, **one.errors}


def _of_port(port: rdma.Port) -> Counters:
    unreadable = [n.rpartition("/")[2] for n in port.unreadable if "counters/" in n]
    counted = {**(port.hw_counters or {}), **(port.counters or {})}
    return {**dict.fromkeys(unreadable), **counted}


def _tcp(root: Path) -> Counters:
    """TCP segment counters; each prefix has two lines, first the names and then the values."""
    found: Counters = {}
    for file, head, wanted in (
        ("snmp", "Tcp:", ("OutSegs", "RetransSegs")),
        ("netstat", "TcpExt:", ("TCPOFOQueue",)),
    ):
        lines = (sysfs.text(root / "proc/net" / file) or "").splitlines()
        rows = [line.split()[1:] for line in lines if line.startswith(head)]
        values = dict(zip(*rows, strict=False)) if len(rows) == 2 else {}
        found |= {name: sysfs.number_of(values[name]) for name in wanted if name in values}
    return found


if __name__ == "__main__":
    print(encode(read(sys.argv[1:])))

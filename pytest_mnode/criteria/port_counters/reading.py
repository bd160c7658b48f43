"""The program that reads counters of a node's fabric ports, and its clock, as one line of JSON.

`python -m pytest_mnode.criteria.port_counters.reading [--of=NICS:PROTOCOL] [--nvlink] PATTERN …`,
patterns as in `fabric.interfaces`; NICS of a node, and their RDMA protocol, as in `fabric_ports`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.machine import netdev, rdma, sysfs
from pytest_mnode.machine.encoding import encode
from pytest_mnode.machine.fabric_nics import fabric_ports, named_ports
from pytest_mnode.machine.nvlink import read_nvlinks

if TYPE_CHECKING:
    from pytest_mnode.spec.inventory import Fabric

Counters = dict[str, int | None]
"""Counters of one port by the kernel's names; None for one that cannot be read."""
NvLinkErrors = tuple[int | None, int | None]
"""Errors of an NVLink, and its recoveries; see `NvLink`."""
CARRIER = "carrier_changes"
_OF, NVLINK = "--of=", "--nvlink"
_CLOCK_READINGS, _BETWEEN_S = 20, 1e-3
TCP = "TCP"
"""The pseudo port that counts the node's TCP segments over all interfaces."""
SENT_IN_VAIN = "TCPDSACKRecvSegs"
"""Segments sent again whose receiver had them already (DSACK): it was late to acknowledge them."""
TCP_OUT_OF_ORDER = "TCPOFOQueue"
"""Segments that came before one that was lost on its way here."""


def arguments_of(fabric: Fabric) -> list[str]:
    """The program's arguments for the ports of a fabric."""
    return [f"{_OF}{fabric.nics_per_node}:{fabric.protocol or ''}", *fabric.interfaces]


@dataclass(frozen=True, slots=True)
class PortReading:
    """Counters of one node by port: an interface (fab0) or an RDMA port (mlx5_0:1), and `TCP`.

    boot: an identifier that changes when the node is restarted. clock_s: the wall clock less the
    time since boot, which changes only where the clock is stepped; None if not known. uptime_s:
    time since boot. nvlinks: by link, or why they could not be read; None if nobody asked.
    """

    boot: str
    ports: dict[str, Counters]
    clock_s: float | None = None
    uptime_s: float | None = None
    nvlinks: dict[str, NvLinkErrors] | str | None = None


def read(
    patterns: Sequence[str],
    root: Path = Path("/"),
    *,
    nics: int | None = None,
    protocol: str | None = None,
) -> PortReading:
    """Counters of interfaces and RDMA devices that match a pattern, and of the devices below them.

    A pattern that names an interface also names its RDMA device, and the reverse. nics, protocol:
    of the fabric, see `fabric_ports`; None if all ports that match are of the fabric. These two
    parts of a machine are read by their own readers: this program starts twice per criterion on
    every node, and the model of a whole machine would take most of the time of a start.
    """

    def named(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    known = {one.name: one for one in netdev.read_interfaces(root) or ()}
    there = rdma.read_rdma(root) or ()
    of_fabric = (
        named_ports(patterns, there)
        if nics is None
        else fabric_ports(patterns, nics, protocol, there)
    )
    found = {port.device for port in of_fabric}
    devices = [one for one in there if one.name in found]
    fabric = {name for name in known if named(name)} | {n for d in devices for n in d.netdevs}
    for name in fabric & known.keys():
        fabric = fabric.union(netdev.physical_below(known[name], known))
    ports = {name: _of_interface(known[name]) for name in sorted(fabric & known.keys())}
    ports |= {port.name: _of_port(port) for device in devices for port in device.ports}
    if tcp := _tcp(root):
        ports[TCP] = tcp
    boot = f"{sysfs.boot_id(root)} {sysfs.target_name(root / 'proc/self/ns/net')}"
    return PortReading(boot, ports, _clock(root), _uptime_s(root))


def _uptime_s(root: Path) -> float | None:
    uptime = (sysfs.text(root / "proc/uptime") or "").split()
    return float(uptime[0]) if uptime else None


def _clock(root: Path) -> float | None:
    """From a file, since programs that fake the wall clock fake the system call for this as well.

    Slewing (NTP, PTP) changes both clocks alike, so that the difference shows steps only. The file
    counts hundredths of a second, and a busy machine may pause this process between the two
    readings. Both only add to the difference, so that the least of many is right to 1 ms.
    """
    found = []
    for _ in range(_CLOCK_READINGS):
        if (uptime_s := _uptime_s(root)) is None:
            return None
        found.append(time.time() - uptime_s)
        time.sleep(_BETWEEN_S)
    return min(found)


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
        ("netstat", "TcpExt:", (TCP_OUT_OF_ORDER, SENT_IN_VAIN)),
    ):
        lines = (sysfs.text(root / "proc/net" / file) or "").splitlines()
        rows = [line.split()[1:] for line in lines if line.startswith(head)]
        values = dict(zip(*rows, strict=False)) if len(rows) == 2 else {}
        found |= {name: sysfs.number_of(values[name]) for name in wanted if name in values}
    return found


def main(arguments: Sequence[str]) -> None:
    """Print the counters of this machine."""
    of = [word.removeprefix(_OF).partition(":") for word in arguments if word.startswith(_OF)]
    patterns = [word for word in arguments if not word.startswith("--")]
    nics, protocol = (int(of[0][0]), of[0][2] or None) if of else (None, None)
    found = read(patterns, nics=nics, protocol=protocol)
    if NVLINK in arguments:
        found = replace(found, nvlinks=_nvlinks())
    print(encode(found))


def _nvlinks() -> dict[str, NvLinkErrors] | str:
    try:
        return {
            f"accelerator {gpu} link {number}": (one.errors, one.recoveries)
            for gpu, links in read_nvlinks().items()
            for number, one in (links.items() if not isinstance(links, str) else ())
        }
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    main(sys.argv[1:])

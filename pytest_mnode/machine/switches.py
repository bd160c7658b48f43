"""The switches that a node's ports are cabled to, by LLDP and by InfiniBand's tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mnode.logs import lldp, subnet
from pytest_mnode.machine.netdev import physical_below, read_interfaces
from pytest_mnode.machine.programs import NoOutput, json_in, output_of
from pytest_mnode.machine.rdma import RdmaDevice, read_rdma

_FIRMWARE = re.compile(r"(?m)^FW Version:\s*(\d\S*)")
_MFT = "MFT (mstflint, of distributions)"


@dataclass(frozen=True, slots=True)
class SwitchVersion:
    """What runs on the switch of a port. names: of the port. why: why no version is known."""

    names: tuple[str, ...]
    switch: str
    version: str | None
    why: str = ""


def lldp_heard() -> Any:
    """The JSON of LLDP's neighbours. Raises NoOutput, or ValueError."""
    try:
        return json_in(output_of("lldpctl", "-f", "json", package="lldpd"))
    except NoOutput as error:
        if "not installed" not in str(error):
            raise
    return json_in(output_of("lldpcli", "-f", "json", "show", "neighbors", package="lldpd"))


def cabled_to(device: str, port: int) -> subnet.PortLink | None:
    """The link of an InfiniBand port of this node; None if none is listed. Raises NoOutput."""
    where = ("-C", device, "-P", str(port), "-D", "0", "--line")
    links = subnet.link_info(output_of("iblinkinfo", *where, package=subnet.PACKAGE))
    return next((one for one in links if one.peer), None)


def ethernet_ports(root: Path, devices: Iterable[RdmaDevice]) -> dict[str, list[str]]:
    """All names of each interface with hardware and a link, such as its own, bond0 and mlx5_0."""
    devices = tuple(devices)
    known = {one.name: one for one in read_interfaces(root) or ()}
    infiniband = {
        name
        for device in devices
        if any(port.protocol == "InfiniBand" for port in device.ports)
        for name in device.netdevs
    }
    names = dict[str, list[str]]()
    for link in known.values():
        for name in physical_below(link, known) if link.up and link.name not in infiniband else ():
            names.setdefault(name, [name]).append(link.name)
    for device in devices:
        for name in device.netdevs:
            names.get(name, []).append(device.name)
    return names


def switch_versions(root: Path = Path("/")) -> Iterator[SwitchVersion]:
    """Of the switch of each port with a link: firmware by `flint`, or what LLDP describes."""
    devices = read_rdma(root) or ()
    for device in devices:
        for port in device.ports:
            if port.protocol == "InfiniBand" and port.state != "DOWN":
                yield _of_infiniband(device, port.number)
    names = ethernet_ports(root, devices)
    if not names:
        return
    try:
        heard, why = list(lldp.neighbours(lldp_heard())), "hears no switch by LLDP"
    except (NoOutput, ValueError) as error:
        heard, why = [], f"LLDP: {error}"
    for one in heard:
        every = tuple(dict.fromkeys(names.get(one.interface, [one.interface])))
        said = one.system.partition("\n")[0][:60]
        lacks = f"its description names no version: {said!r}" if said else "it describes nothing"
        yield SwitchVersion(every, one.switch, lldp.version_in(one.system), lacks)
    for name in names.keys() - {one.interface for one in heard}:
        yield SwitchVersion(tuple(dict.fromkeys(names[name])), "", None, why)


def _of_infiniband(device: RdmaDevice, port: int) -> SwitchVersion:
    names = (device.name, *device.netdevs)
    try:
        link = cabled_to(device.name, port)
        if link is None or link.peer_lid is None:
            return SwitchVersion(names, "", None, "iblinkinfo lists no link of it")
        # A LID is that of one subnet: by the port that lists it. Source: mstflint, mtcr_ib_ofed.c.
        printed = _flint(f"lid-{link.peer_lid},{device.name},{port}")
    except NoOutput as error:
        return SwitchVersion(names, "", None, str(error))
    found = _FIRMWARE.search(printed)
    why = "flint prints no firmware version"
    return SwitchVersion(names, subnet.switch_name(link.peer), found[1] if found else None, why)


def _flint(device: str) -> str:
    try:
        return output_of("flint", "-d", device, "q", package=_MFT)
    except NoOutput as error:
        if "not installed" not in str(error):
            raise
    return output_of("mstflint", "-d", device, "q", package=_MFT)

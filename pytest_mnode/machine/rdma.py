"""RDMA devices and their ports: state, rate, link layer, GIDs, counters and location."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.machine import sysfs

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb/sec(?:\s*\((\d+)X(?:\s+(\w+))?\))?", re.IGNORECASE)
_NUMBERED = re.compile(r"\d+\s*:\s*(\S.*)", re.ASCII)
_ON_ETHERNET = {"CA": "RoCE", "RNIC": "iWARP", "usNIC": "usNIC", "usNIC UDP": "usNIC"}
"""Protocol by node type."""
_GID_TYPES = {"RoCE": "RoCE v1", "InfiniBand": "IB", "EFA": "IB", "iWARP": "iWARP"}
"""Meaning of the kernel's "IB/RoCE v1", by protocol."""
UNKNOWN_GID = "unknown"
"""Stands for a GID whose type cannot be read."""
_ZERO = re.compile(r"[0:]*")
"""A GID or GUID that is not set."""
_SOFT_IWARP = "Software iWARP"
"""Start of the node_desc of soft-iWARP. Source: Linux, drivers/infiniband/sw/siw."""
_REPRESENTS = re.compile(r"(?:c\d+)?pf\d+(?:(?:vf|sf)\d+)?")
"""Port names of interfaces that represent functions at the NIC's switch; a real port is p0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """One entry of a port's GID table. type: "IB/RoCE v1" or "RoCE v2". netdev: its interface."""

    index: int
    gid: str
    type: str | None = None
    netdev: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of an RDMA device.

    state: ACTIVE, DOWN, INIT, ARMED, …; phys_state: LinkUp, Disabled, Polling, …. rate_gbits_s: of
    the link; a port that is down shows the lowest possible rate. link_layer: InfiniBand, Ethernet,
    or Unknown (EFA). node_type: of its device, such as CA or RNIC. gids: without empty entries;
    None if the table cannot be listed.
    counters: the port's own, by the kernel's names and in its units (port_xmit_data counts units of
    4 bytes); hw_counters: the driver's. None if the device has no such folder; a counter that
    cannot be read is absent, and named in `unreadable`.
    """

    device: str
    number: int
    state: str | None = None
    phys_state: str | None = None
    rate_gbits_s: float | None = None
    link_layer: str | None = None
    gids: tuple[Gid, ...] | None = None
    counters: Mapping[str, int] | None = None
    hw_counters: Mapping[str, int] | None = None
    unreadable: tuple[str, ...] = ()
    node_type: str | None = None

    @property
    def protocol(self) -> str | None:
        """InfiniBand, RoCE, iWARP, usNIC or EFA; None if node type and link layer do not decide it.

        iWARP has the link layer of RoCE, and the kernel calls its GID "IB/RoCE v1": the node type
        alone distinguishes them. Kernels older than EFA do not know its node type.

        Source: Linux, drivers/infiniband/core/sysfs.c, node_type_show and link_layer_show.
        """
        if self.link_layer == "InfiniBand":
            return "InfiniBand"
        if self.link_layer == "Unknown":
            return "EFA" if self.node_type in ("unspecified", None) else None
        return _ON_ETHERNET.get(self.node_type or "") if self.link_layer == "Ethernet" else None

    def may_carry(self, protocol: str | None) -> bool:
        """Whether its link layer allows a protocol: mlx5_* matches InfiniBand and Ethernet ports.

        True if either is unknown.
        """
        kinds = {layer == "InfiniBand" for layer in (protocol, self.link_layer) if layer}
        return len(kinds) < 2

    @property
    def gid_types(self) -> tuple[str, ...]:
        """Its GID types, each once: IB, RoCE v1, RoCE v2, iWARP; `UNKNOWN_GID` if unknown.

        The kernel has one name for the GID types of InfiniBand, RoCE v1 and iWARP: the protocol
        decides.
        """
        if self.gids is None:
            return (UNKNOWN_GID,)
        first = _GID_TYPES.get(self.protocol or "", UNKNOWN_GID)
        unread = "IB" if self.protocol == "InfiniBand" else UNKNOWN_GID  # its only type
        types = {"IB/RoCE v1": first, None: unread}
        return tuple(dict.fromkeys(types.get(gid.type) or str(gid.type) for gid in self.gids))

    @property
    def name(self) -> str:
        """Device and port as NCCL writes them, such as mlx5_0:1."""
        return f"{self.device}:{self.number}"

    @property
    def active(self) -> bool | None:
        """Whether it carries traffic: ACTIVE, and not with a physical state other than LinkUp.

        None if the state cannot be read. A port can still be DOWN just after its link came up:
        read it again before blaming it.
        """
        if self.state is None:
            return None
        return self.state == "ACTIVE" and self.phys_state in (None, "LinkUp")

    @property
    def netdevs(self) -> tuple[str, ...]:
        """Interfaces that its GIDs name, each once."""
        return tuple(dict.fromkeys(g.netdev for g in self.gids or () if g.netdev))


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    """One RDMA device.

    netdevs: its network interfaces: the `parent` of soft-RoCE, those that its GIDs name, those of
    the same PCI function, or, without any of these, the one whose MAC address is in its GUID.
    virtual: whether it lacks a device of its own, like soft-RoCE and soft-iWARP, to which Linux
    before 5.10 gave that of their interface. image_guid: of the card, equal for all its functions;
    None if it is not set. pci_address, numa_node: its own, or those of its
    first interface if it is virtual.
    """

    name: str
    ports: tuple[Port, ...] = ()
    node_type: str | None = None
    firmware: str | None = None
    parent: str | None = None
    netdevs: tuple[str, ...] = ()
    pci_address: str | None = None
    numa_node: int | None = None
    virtual: bool = False
    image_guid: str | None = None


def parse_rate_gbits_s(text: str | None) -> float | None:
    """Rate of "400 Gb/sec (4X NDR)" or "2.5 Gb/sec (1X SDR)"; None for anything else."""
    match = _RATE.match((text or "").strip())
    return float(match[1]) if match and float(match[1]) > 0 else None


def parse_state(text: str | None) -> str | None:
    """The word of "4: ACTIVE"; None for anything else, <unknown> too."""
    match = _NUMBERED.fullmatch((text or "").strip())
    return match[1] if match and not match[1].startswith("<") else None


def read_rdma(root: Path = Path("/")) -> tuple[RdmaDevice, ...] | None:
    """RDMA devices below `root`/sys/class/infiniband, mlx5_2 before mlx5_10.

    Empty if there are none, None if /sys cannot be read at all. Devices of other network
    namespaces may be missing or listed: see `rdma system`.

    Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband.
    """
    if not (root / "sys/class").is_dir():
        return None
    return tuple(_device(path, root) for path in sysfs.entries(root / "sys/class/infiniband"))


def _device(path: Path, root: Path) -> RdmaDevice:
    device = path / "device"
    parent = sysfs.text(path / "parent") or None
    soft = (sysfs.text(path / "node_desc") or "").startswith(_SOFT_IWARP)
    virtual = parent is not None or soft or not device.exists()
    node_type = parse_state(sysfs.text(path / "node_type"))
    ports = tuple(
        _port(path.name, port, node_type)
        for port in sysfs.entries(path / "ports")
        if port.name.isascii() and port.name.isdigit()
    )
    guid = sysfs.text(path / "node_guid")
    image = sysfs.text(path / "sys_image_guid") or ""
    netdevs = _netdevs(device, ports, parent)
    if not netdevs and virtual:
        netdevs = _made_of(guid, root)
    below = root / "sys/class/net" / netdevs[0] / "device" if virtual and netdevs else device
    addresses = sysfs.pci_addresses(sysfs.place(below, root))
    return RdmaDevice(
        name=path.name,
        ports=ports,
        node_type=node_type,
        firmware=sysfs.text(path / "fw_ver") or None,
        parent=parent,
        netdevs=netdevs,
        pci_address=addresses[-1] if addresses else None,
        numa_node=sysfs.numa_node(below, root),
        virtual=virtual,
        image_guid=None if _ZERO.fullmatch(image) else image,
    )


def _netdevs(device: Path, ports: tuple[Port, ...], parent: str | None) -> tuple[str, ...]:
    found = [parent] if parent else []
    for port in ports:
        found += port.netdevs
    found += [
        path.name
        for path in sysfs.entries(device / "net")
        if not _REPRESENTS.fullmatch(sysfs.text(path / "phys_port_name") or "")
    ]
    return tuple(dict.fromkeys(found))


def _made_of(guid: str | None, root: Path) -> tuple[str, ...]:
    """The one interface whose MAC address a GUID holds as an EUI-64."""
    digits = (guid or "").replace(":", "")
    if _ZERO.fullmatch(digits) or len(digits) != 16 or digits[6:10] != "fffe":
        return ()
    mac = f"{int(digits[:2], 16) ^ 2:02x}{digits[2:6]}{digits[10:]}"
    found = [
        path.name
        for path in sysfs.entries(root / "sys/class/net")
        if (sysfs.text(path / "address") or "").replace(":", "") == mac
    ]
    return tuple(found) if len(found) == 1 else ()


def _port(device: str, path: Path, node_type: str | None) -> Port:
    state, phys_state = sysfs.text(path / "state"), sysfs.text(path / "phys_state")
    rate = sysfs.text(path / "rate")
    counters, unreadable = _counters(path / "counters")
    hw_counters, unreadable_hw = _counters(path / "hw_counters")
    layer = sysfs.text(path / "link_layer")
    read = {"state": state, "phys_state": phys_state, "rate": rate, "link_layer": layer}
    return Port(
        device=device,
        number=int(path.name),
        state=parse_state(state),
        phys_state=parse_state(phys_state),
        rate_gbits_s=parse_rate_gbits_s(rate),
        link_layer=layer or None,
        gids=_gids(path),
        counters=counters,
        hw_counters=hw_counters,
        unreadable=(*[n for n, text in read.items() if text is None], *unreadable, *unreadable_hw),
        node_type=node_type,
    )


def _gids(port: Path) -> tuple[Gid, ...] | None:
    if not (port / "gids").is_dir():
        return None
    found = []
    for path in sysfs.entries(port / "gids"):
        gid = sysfs.text(path)
        if gid is None or _ZERO.fullmatch(gid) or not path.name.isdigit():
            continue
        found.append(
            Gid(
                index=int(path.name),
                gid=gid,
                type=sysfs.text(port / "gid_attrs/types" / path.name) or None,
                netdev=sysfs.text(port / "gid_attrs/ndevs" / path.name) or None,
            )
        )
    return tuple(found)


def _counters(folder: Path) -> tuple[dict[str, int] | None, tuple[str, ...]]:
    """Counters of a folder by name, and the names of those that could not be read."""
    if not folder.is_dir():
        return None, ()
    # lifespan is not a counter: it is how long the driver keeps values before it reads new ones.
    values = {path.name: sysfs.count(path) for path in sysfs.entries(folder)}
    values.pop("lifespan", None)
    return (
        {name: value for name, value in values.items() if value is not None},
        tuple(f"{folder.name}/{name}" for name, value in values.items() if value is None),
    )


@dataclass(frozen=True, slots=True)
class VerbsDevice:
    """A device such as /dev/infiniband/uverbs0.

    device: the RDMA device that it opens, such as mlx5_0. problem: why it cannot be opened for
    reading and writing, "" if it can. A container's /sys may show RDMA devices that the container
    may not use: without permission of its device control group they cannot be opened.
    """

    name: str
    device: str
    problem: str = ""


def read_verbs(root: Path = Path("/")) -> tuple[VerbsDevice, ...] | None:
    """Devices below `root`/dev/infiniband, each opened once; None if /sys cannot be read.

    Source: Linux, Documentation/infiniband/user_verbs.rst; Documentation/ABI/stable/
    sysfs-class-infiniband, ibdev.
    """
    if not (root / "sys/class").is_dir():
        return None
    return tuple(
        VerbsDevice(path.name, device, _problem(root / "dev/infiniband" / path.name))
        for path in sysfs.entries(root / "sys/class/infiniband_verbs")
        if (device := sysfs.text(path / "ibdev"))
    )


def _problem(path: Path) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""

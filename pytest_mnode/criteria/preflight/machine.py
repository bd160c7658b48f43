"""What a node is made of: interfaces, RDMA ports, accelerators; read by probes, told as facts."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import psutil

from pytest_mnode.criteria.preflight.facts import (
    Accelerator,
    Interface,
    PciLink,
    ProcessLimits,
    RdmaPort,
    RdmaRise,
    Software,
)
from pytest_mnode.machine import counters, netdev, nvml, pci, rdma, shaping
from pytest_mnode.machine.software import code_digests, kernel_settings, read_software

PACKAGE = Path(__file__).parents[2]
_CONF = "net.ipv4.conf."
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_WATCHED = (counters.Means.ERROR, counters.Means.LOSS)


def software(code: Sequence[str], patterns: Sequence[str]) -> Software:
    """What this interpreter would use; `code`: further directories whose programs are compared."""
    digests = code_digests(PACKAGE, PACKAGE.name)
    for directory in code:
        digests |= code_digests(Path(directory), Path(directory).name)
    read = read_software()
    settings = {
        name: value
        for name, value in kernel_settings().items()
        if not name.startswith(_CONF)
        or _matches(("all", *patterns), name.removeprefix(_CONF).rpartition(".")[0])
    }
    return Software(
        python=read.python or "",
        kernel=read.kernel or "",
        torch=read.torch,
        nccl=read.nccl,
        driver=read.driver,
        driver_is_open=read.driver_is_open,
        peermem=read.peermem,
        firmware={d.name: d.firmware for d in rdma.read_rdma() or () if d.firmware},
        packages=dict(read.packages),
        code=digests,
        sysctl=settings,
    )


def limits() -> ProcessLimits:
    """Soft limits of this process."""

    def soft(kind: int) -> int | None:
        limit = resource.getrlimit(kind)[0]
        return None if limit == resource.RLIM_INFINITY else limit

    return ProcessLimits(soft(resource.RLIMIT_MEMLOCK), soft(resource.RLIMIT_NOFILE))


def interfaces() -> tuple[Interface, ...]:
    """Network interfaces of this node. Raises OSError where /sys does not list them."""
    found = netdev.read_interfaces()
    if found is None:
        raise OSError("/sys/class/net cannot be listed")
    addresses = psutil.net_if_addrs()
    shaped: dict[str, float] = {}
    with contextlib.suppress(OSError):
        shaped = shaping.shaped_mbits_s()
    known = {one.name: one for one in found}
    devices = {name: d.name for d in rdma.read_rdma() or () for name in d.netdevs}
    return tuple(
        Interface(
            name=one.name,
            admin_up=one.admin_up,
            carrier=one.carrier if one.up is not False else False,
            mtu_bytes=one.mtu_bytes,
            speed_mbits_s=one.speed_mbits_s,
            shaped_mbits_s=shaped.get(one.name),
            virtual=not netdev.rests_on_hardware(one, known),
            addresses=tuple(
                a.address for a in addresses.get(one.name, ()) if a.family in _FAMILIES
            ),
            rdma_device=devices.get(one.name),
            mac=next(
                (a.address for a in addresses.get(one.name, ()) if a.family == psutil.AF_LINK), None
            ),
        )
        for one in found
    )


def belonging(found: Sequence[Interface], patterns: Sequence[str]) -> list[Interface]:
    """Those that a network's patterns name, themselves or by their RDMA device."""
    return [
        one
        for one in found
        if any(
            fnmatchcase(name, pattern)
            for name in filter(None, (one.name, one.rdma_device))
            for pattern in patterns
        )
    ]


def rdma_devices() -> tuple[rdma.RdmaDevice, ...]:
    """RDMA devices of this node. Raises OSError where /sys does not list them."""
    devices = rdma.read_rdma()
    if devices is None:
        raise OSError("/sys/class/infiniband cannot be listed")
    return devices


def rdma_ports(devices: Sequence[rdma.RdmaDevice]) -> tuple[RdmaPort, ...]:
    """Ports of all RDMA devices."""
    return tuple(
        RdmaPort(
            device=port.device,
            port=port.number,
            state=port.state,
            physical_state=port.phys_state,
            protocol=port.protocol,
            rate_gbits_s=port.rate_gbits_s,
            gid_types=port.gid_types,
        )
        for device in devices
        for port in device.ports
    )


def rdma_rises(
    before: Sequence[rdma.RdmaDevice], after: Sequence[rdma.RdmaDevice]
) -> tuple[RdmaRise, ...]:
    """What error counters did between two readings; all are unknown of a port that went away."""
    ports = {port.name: port for device in before for port in device.ports}
    found = []
    for name, moved in counters.moved_between(before, after).items():
        port = ports.get(name)
        if port is None:
            continue  # it came meanwhile
        names = {**(port.counters or {}), **(port.hw_counters or {})}
        watched = {n for n in names if counters.meaning(n) in _WATCHED}
        refused = {n.rpartition("/")[2] for n in port.unreadable if "counters/" in n} - names.keys()
        mute = {n for n in refused if counters.meaning(n) in _WATCHED}
        unknown = mute | (watched if moved is None else watched & set(moved.unknown))
        found.append(
            RdmaRise(
                device=port.device,
                port=port.number,
                risen={**moved.errors, **moved.losses} if moved else {},
                counted=len(watched),
                unknown=tuple(sorted(unknown)),
            )
        )
    return tuple(found)


def accelerators() -> tuple[Accelerator, ...]:
    """Accelerators as NVML shows them. Raises OSError where it cannot be asked."""
    told = nvml.read_nvml()
    if told.found is None:
        raise OSError(told.why)
    return tuple(
        Accelerator(
            index=one.index,
            model=one.name,
            memory_bytes=one.memory_bytes,
            ecc=one.ecc_enabled,
            ecc_errors=one.ecc_uncorrected,
            persistence=one.persistence,
            throttling=one.throttled,
            mig=one.mig_enabled,
            remapped_rows=_remapped(one),
        )
        for one in told.found
    )


def _remapped(one: nvml.Accelerator) -> tuple[str, ...] | None:
    told = {"failed": one.remapped_rows_failed, "pending": one.remapped_rows_pending}
    return None if None in told.values() else tuple(name for name, is_so in told.items() if is_so)


def pci_links(fabric: Sequence[str], root: Path = Path("/")) -> tuple[PciLink, ...]:
    """PCIe links of accelerators, and of the NICs that a pattern names.

    Source: Linux, Documentation/ABI/testing/sysfs-bus-pci.
    """
    tree = pci.read_pci(root)
    nics = {d.pci_address: d.name for d in rdma.read_rdma(root) or () if not d.virtual}
    known = netdev.read_interfaces(root) or ()
    names = {i.pci_address: i.name for i in known if _matches(fabric, i.name)}
    names |= {a: n for a, n in nics.items() if _matches(fabric, n) or a in names}
    found = [(f, f"accelerator {f.address}", True) for f in tree.accelerators]
    found += [(f, names[f.address], False) for f in tree.networks if f.address in names]
    # A virtual function has no link of its own.
    return tuple(_pci_link(tree, *one) for one in found if one[0].physical_function is None)


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _pci_link(tree: pci.PciTree, card: pci.PciFunction, name: str, accelerator: bool) -> PciLink:
    slot = tree.function(card.bridges[-1]) if card.bridges else None
    widths = [card.max_link_width, slot.max_link_width if slot else None]
    rates = [card.max_link_gtransfers_s, slot.max_link_gtransfers_s if slot else None]
    return PciLink(
        name,
        accelerator,
        card.link_width,
        min((w for w in widths if w), default=None),
        card.link_gtransfers_s,
        min((r for r in rates if r), default=None),
    )

"""The program that says what a node has: `python -m pytest_mnode.discover.look`.

One JSON line to standard output, then it ends. Reads /sys and /proc, asks NVML, changes nothing,
leaves nothing, imports neither torch nor pytest.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import TypeVar

from pytest_mnode.criteria.preflight import machine
from pytest_mnode.criteria.preflight.facts import encode
from pytest_mnode.discover import verbs
from pytest_mnode.discover.facts import Accelerators, Nic, NodeLook, RdmaPort
from pytest_mnode.discover.mounts import mount_table, shared_mounts
from pytest_mnode.logs import kernel_log
from pytest_mnode.machine import cpus, netdev, numa, nvml, pci, rdma, shaping, sysfs
from pytest_mnode.machine.software import peermem_version

PART_LIMIT_S = 15.0
"""Of one part: a driver in trouble lets its askers hang."""
SCHEDULER_LIMIT_S = 5.0
UNSCHEDULED = "--unscheduled"
T = TypeVar("T")


def look(root: Path = Path("/"), *, running: bool = True, scheduled: bool = True) -> NodeLook:
    """What the machine below `root` shows.

    running: it is the one that this process runs on, so that its drivers and limits can be asked.
    scheduled: a scheduler may have it; without, none is looked for.
    """
    unread: dict[str, str] = {}

    def part(name: str, read: Callable[[], T]) -> T | None:
        try:
            return _in_time(read)
        except Exception as error:
            unread[name] = f"{type(error).__name__}: {error}"
            return None

    limits = machine.limits() if running else None
    tree = part("pci", lambda: pci.read_pci(root))
    mtus = (part("ibv_devinfo", verbs.active_mtus) if running else None) or {}
    return NodeLook(
        nics=part("interfaces", lambda: nics(root, *(_asked() if running else ({}, {})))),
        rdma=part("rdma", lambda: rdma_ports(root, tree, mtus)),
        accelerators=part("accelerators", lambda: accelerators(root, tree, running=running)),
        numa_nodes=len(numa.read_numa(root).with_cpus) or None,
        cpus=len(cpus.read_cpus(root).online or ()) or None,
        shm_bytes=part("shm", _shm_bytes) if running else None,
        memlock_bytes=limits.memlock_bytes if limits else None,
        memlock_unlimited=limits is not None and limits.memlock_bytes is None,
        open_files=limits.open_files if limits else None,
        mounts=part("mounts", lambda: shared_mounts(mount_table(root))),
        scheduler=part("scheduler", scheduler) if running and scheduled else None,
        unread=unread,
        pcie_links_told=part("PCIe links", lambda: pcie_links_told(root)) or False,
        kernel_log_told=running and kernel_log_told(),
    )


def pcie_links_told(root: Path) -> bool:
    """Whether there are links of accelerators and RDMA devices, and each tells all of itself."""
    links = machine.pci_links([device.name for device in rdma.read_rdma(root) or ()], root)
    return bool(links) and all(None not in astuple(link) for link in links)


def kernel_log_told() -> bool:
    """Whether this user may read the kernel log."""
    try:
        _in_time(kernel_log.read)
    except OSError:  # TimeoutError is one
        return False
    return True


def _in_time(read: Callable[[], T]) -> T:
    """What `read` returns; raises TimeoutError after its limit, and leaves it behind then."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(read())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PART_LIMIT_S)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {PART_LIMIT_S:g} s")
    return results[0]


def _asked() -> tuple[dict[str, tuple[str, ...]], Mapping[str, float]]:
    """Addresses and shaped rates by interface, which only the running kernel tells."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    addresses = {
        name: tuple(one.address for one in found if one.family in families)
        for name, found in psutil.net_if_addrs().items()
    }
    shaped: Mapping[str, float] = {}
    with contextlib.suppress(OSError):
        shaped = shaping.shaped_mbits_s()
    return addresses, shaped


def nics(
    root: Path, addresses: Mapping[str, tuple[str, ...]], shaped: Mapping[str, float]
) -> tuple[Nic, ...]:
    """Interfaces but loopback. Raises OSError where /sys does not list them."""
    found = netdev.read_interfaces(root)
    if found is None:
        raise OSError("/sys/class/net cannot be listed")
    known = {one.name: one for one in found}
    devices: dict[str, list[str]] = {}
    for device in rdma.read_rdma(root) or ():
        for name in device.netdevs:
            devices.setdefault(name, []).append(device.name)
    told = []
    for one in found:
        if one.kind is netdev.Kind.LOOPBACK:
            continue
        hardware = netdev.rests_on_hardware(one, known)
        told.append(
            Nic(
                name=one.name,
                kind=str(one.kind),
                up=one.up,
                rate_mbits_s=shaped.get(one.name) or (one.speed_mbits_s if hardware else None),
                shaped=one.name in shaped,
                hardware=hardware,
                mtu_bytes=one.mtu_bytes,
                driver=one.driver,
                part_of=one.master,
                addresses=tuple(addresses.get(one.name, ())),
                rdma_devices=tuple(devices.get(one.name, ())),
                numa_node=one.numa_node,
                wires=netdev.physical_below(one, known),
            )
        )
    return tuple(told)


def rdma_ports(
    root: Path, tree: pci.PciTree | None, mtus: Mapping[tuple[str, int], int]
) -> tuple[RdmaPort, ...]:
    """Ports of all RDMA devices. Raises OSError where /sys does not list them.

    mtus: active MTU in bytes by device and port, where known.
    """
    devices = rdma.read_rdma(root)
    if devices is None:
        raise OSError("/sys/class/infiniband cannot be listed")
    return tuple(
        RdmaPort(
            device=device.name,
            port=port.number,
            active=port.active,
            state=port.state,
            protocol=port.protocol,
            rate_gbits_s=port.rate_gbits_s,
            virtual=device.virtual,
            netdevs=device.netdevs,
            gid_types=port.gid_types,
            nearest=_nearest(device.pci_address, tree),
            numa_node=device.numa_node,
            mtu_bytes=mtus.get((device.name, port.number)),
        )
        for device in devices
        for port in device.ports
    )


def _nearest(address: str | None, tree: pci.PciTree | None) -> str | None:
    """How near the nearest accelerator is to a PCI function."""
    if tree is None or address is None:
        return None
    distances = [tree.distance(address, one.address) for one in tree.accelerators]
    known = [one for one in distances if one is not None]
    return str(min(known, key=lambda one: one.rank)) if known else None


def accelerators(root: Path, tree: pci.PciTree | None, *, running: bool) -> Accelerators:
    """Accelerators by PCI, and as NVML tells of them where this machine runs."""
    on_pci = tree.accelerators if tree else ()
    told = nvml.read_nvml() if running else nvml.NvmlAnswer(why="not asked")
    driver = sysfs.text(root / "proc/driver/nvidia/version") or ""
    each = told.found
    return Accelerators(
        on_pci=len(on_pci),
        nvidia_on_pci=sum(one.is_nvidia and one.physical_function is None for one in on_pci),
        makers=tuple(dict.fromkeys(one.maker or f"vendor {one.vendor}" for one in on_pci)),
        why=told.why,
        models=None if each is None else tuple(one.name for one in each),
        memory_bytes=None if each is None else tuple(one.memory_bytes for one in each),
        ecc=None if each is None else tuple(one.ecc_enabled for one in each),
        persistence=None if each is None else tuple(one.persistence for one in each),
        numa_nodes=tuple(one.numa_node for one in on_pci),
        mig=None if each is None else tuple(one.mig_enabled for one in each),
        remapped_rows_told=bool(each)
        and all(
            None not in (one.remapped_rows_failed, one.remapped_rows_pending) for one in each or ()
        ),
        driver_is_open="open kernel module" in driver.lower(),
        peermem=peermem_version(root),
    )


def scheduler() -> str | None:
    """ "slurm" where its controller answers; None without one. Commands alone say nothing."""
    program = shutil.which("sinfo")
    if program is None:
        return None
    done = subprocess.run(
        [program, "--noheader", "--format=%P"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SCHEDULER_LIMIT_S,
        check=False,
    )
    return "slurm" if done.returncode == 0 and done.stdout.strip() else None


def _shm_bytes() -> int:
    told = os.statvfs("/dev/shm")
    return told.f_frsize * told.f_blocks


def main() -> None:
    """Leaves without waiting for a driver that hangs."""
    status = 0
    try:
        sys.stdout.write(encode(look(scheduled=UNSCHEDULED not in sys.argv)) + "\n")
        sys.stdout.flush()
    except Exception as error:
        sys.stderr.write(f"look: {type(error).__name__}: {error}\n")
        status = 1
    os._exit(status)


if __name__ == "__main__":
    main()

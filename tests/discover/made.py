"""Composed clusters as their nodes show them, and functions that change parts of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_mnode.discover.nodes import FoundCluster, FoundNode
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.machine.numa import Numa, NumaNode
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.pci import PciFunction, PciTree
from pytest_mnode.machine.process import Limits
from pytest_mnode.machine.rdma import RdmaDevice
from pytest_mnode.machine.software import Software
from tests.criteria.preflight.made import interface, rdma_device, rdma_port

H100 = "NVIDIA H100 NVL"
"""A model that no profile has: with another, a page extends the profile."""
_SWITCH = {"host": "pci0000:10", "bridges": ("0000:10:01.0", "0000:11:00.0")}
_FAR = {"host": "pci0000:90", "bridges": ("0000:90:01.0",)}


def nic(name: str, address: str = "", **changes: Any) -> Interface:
    """A NIC that is up, of 25 Gbit/s."""
    usual = {"speed_mbits_s": 25_000, "mtu_bytes": 1500, "numa_node": 0}
    return interface(name, address, **usual | changes)


DOWN: dict[str, Any] = {"admin_up": True, "carrier": False, "operstate": "down"}


def device(
    name: str,
    protocol: str = "InfiniBand",
    *,
    netdevs: tuple[str, ...] = (),
    far: bool = False,
    virtual: bool = False,
    **changes: Any,
) -> RdmaDevice:
    """An RDMA device with a port of 400 Gbit/s, below the accelerators' switch or far from it."""
    kind = "RoCE v2" if protocol == "RoCE" else "IB/RoCE v1"
    port = rdma_port(protocol, (kind,), device=name, **changes)
    address = "0000:91:00.0" if far else "0000:20:00.0"
    return replace(rdma_device(port, netdevs=netdevs), pci_address=address, virtual=virtual)


def _pci(count: int, vendor: str, number: str = "") -> PciTree:
    """Accelerators and a NIC below one switch, and a NIC that is far from both."""
    functions = [
        PciFunction(address="0000:20:00.0", kind="0200", numa_node=0, **_SWITCH),  # type: ignore[arg-type]
        PciFunction(address="0000:91:00.0", kind="0200", numa_node=7, **_FAR),  # type: ignore[arg-type]
    ]
    functions += [
        PciFunction(
            address=f"0000:3{i}:00.0",
            kind="0302",
            vendor=vendor,
            device=number or None,
            numa_node=i * 2 // max(1, count),
            **_SWITCH,  # type: ignore[arg-type]
        )
        for i in range(count)
    ]
    return PciTree(functions=tuple(functions))


def gpus(
    count: int = 8,
    model: str = H100,
    *,
    shown: int | None = None,
    vendor: str = "10de",
    driver_is_open: bool = True,
) -> dict[str, Any]:
    """Parts of a machine with accelerators; NVML shows all or some of them."""
    one = Accelerator(
        index=0, name=model, memory_bytes=80 << 30, ecc_enabled=True, persistence=True
    )
    return {
        "pci": _pci(count, vendor),
        "accelerators": tuple(
            replace(one, index=i) for i in range(count if shown is None else shown)
        ),
        "software": Software(
            kernel="6.1.0", driver="550.54", driver_is_open=driver_is_open, peermem=None
        ),
    }


NO_NVML = "NVML cannot be used"


def on_pci(vendor: str, number: str) -> dict[str, Any]:
    """Parts of a machine with accelerators on PCI alone, by the device's number."""
    return {
        "pci": _pci(8, vendor, number),
        "accelerators": None,
        "software": Software(kernel="6.8.0", driver=None, driver_is_open=False, peermem=None),
        "unread": {"accelerators": "amdsmi cannot be used"},
    }


def without_nvml(count: int = 0) -> dict[str, Any]:
    """Parts of a machine with accelerators on PCI, without NVML; their NUMA nodes are unknown."""
    functions = tuple(replace(f, numa_node=None) for f in _pci(count, "10de").functions)
    return {
        "pci": PciTree(functions=functions),
        "accelerators": None,
        "software": Software(kernel="6.1.0", driver=None, driver_is_open=False, peermem=None),
        "unread": {"accelerators": NO_NVML},
    }


def numa(count: int) -> Numa:
    """NUMA nodes with one CPU each."""
    return Numa(nodes=tuple(NumaNode(number=i, cpus=frozenset({i})) for i in range(count)))


MACHINE = Machine(
    interfaces=(),
    rdma=(),
    active_mtus={},
    numa=numa(2),
    shm_bytes=(250 << 30) + 12345,
    limits=Limits(memlock_bytes=None, open_files=65536),
    mounts=(),
    **without_nvml(),
)


def tcp_node(index: int) -> Machine:
    """A node without accelerators: a fast NIC, and a slower one for control."""
    return replace(
        MACHINE,
        interfaces=(
            nic("eth0", f"10.1.0.{index + 1}", speed_mbits_s=1_000),
            nic("eth1", f"10.2.0.{index + 1}", speed_mbits_s=100_000, mtu_bytes=9000),
            nic("docker0", "172.17.0.1", kind=Kind.BRIDGE),
        ),
    )


def _mtus(devices: tuple[RdmaDevice, ...]) -> dict[str, int]:
    return {port.name: 4096 for one in devices for port in one.ports}


def ib_node(index: int) -> Machine:
    """Eight H100 with a NIC each, and two equally fast NICs for storage."""
    compute = tuple(device(f"mlx5_{i}") for i in range(8))
    storage = tuple(device(f"mlx5_{i}", far=True) for i in (8, 9))
    return replace(
        MACHINE,
        interfaces=(nic("eno1", f"10.1.0.{index + 1}"),),
        rdma=compute + storage,
        active_mtus=_mtus(compute + storage),
        **gpus(),
    )


def roce_node(index: int) -> Machine:
    """Eight H100 with a NIC each that has an interface and an address."""
    nics = tuple(
        nic(f"rdma{i}", f"10.2.{i}.{index + 1}", speed_mbits_s=400_000, mtu_bytes=9000)
        for i in range(8)
    )
    devices = tuple(device(f"mlx5_{i}", "RoCE", netdevs=(f"rdma{i}",)) for i in range(8))
    control = nic("eth0", f"10.1.0.{index + 1}")
    return replace(MACHINE, interfaces=(control, *nics), rdma=devices, **gpus())


def efa_node(index: int) -> Machine:
    """Eight H100, and NICs with the driver efa."""
    devices = tuple(device(f"rdmap{i}s0", "EFA", rate_gbits_s=100.0) for i in range(32))
    control = nic("ens32", f"10.1.0.{index + 1}", speed_mbits_s=None, mtu_bytes=9001)
    mtus = _mtus(devices)
    return replace(MACHINE, interfaces=(control,), rdma=devices, active_mtus=mtus, **gpus())


def cluster_of(
    make: Callable[[int], Machine] = tcp_node, count: int = 4, **changes: Any
) -> FoundCluster:
    nodes = tuple(FoundNode(f"node{i}", f"10.1.0.{i + 1}", make(i)) for i in range(count))
    return replace(FoundCluster(nodes, "ssh", "a hostfile", "2026-11-21 16:00 UTC"), **changes)


def changed(found: FoundCluster, index: int, **changes: Any) -> FoundCluster:
    """The cluster with other parts of one node's machine."""
    nodes = list(found.nodes)
    machine = nodes[index].machine
    assert machine is not None
    nodes[index] = replace(nodes[index], machine=replace(machine, **changes))
    return replace(found, nodes=tuple(nodes))


def silent(found: FoundCluster, index: int, problem: str = "no answer within 90 s") -> FoundCluster:
    """The cluster with a node that could not be read."""
    nodes = list(found.nodes)
    nodes[index] = replace(nodes[index], machine=None, problem=problem)
    return replace(found, nodes=tuple(nodes))

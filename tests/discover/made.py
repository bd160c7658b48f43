"""Clusters as their nodes would show them: values, and what to change of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_mnode.discover.facts import Accelerators, Nic, NodeLook, RdmaPort, Seen, Sight

H100 = "NVIDIA H100 80GB HBM3"


def nic(name: str, address: str = "", **changes: Any) -> Nic:
    """A NIC that is up, of 25 Gbit/s."""
    one = Nic(
        name=name,
        kind="physical",
        up=True,
        rate_mbits_s=25_000.0,
        shaped=False,
        hardware=True,
        mtu_bytes=1500,
        driver="mlx5_core",
        part_of=None,
        addresses=(address,) if address else (),
        rdma_devices=(),
        numa_node=0,
        wires=(name,),
    )
    return replace(one, **changes)


def port(device: str, **changes: Any) -> RdmaPort:
    """An InfiniBand port of 400 Gbit/s below the same switch as an accelerator."""
    one = RdmaPort(
        device=device,
        port=1,
        active=True,
        state="ACTIVE",
        protocol="InfiniBand",
        rate_gbits_s=400.0,
        virtual=False,
        netdevs=(),
        gid_types=("IB",),
        nearest="PIX",
        numa_node=0,
        mtu_bytes=4096,
    )
    return replace(one, **changes)


def gpus(count: int = 8, model: str = H100) -> Accelerators:
    """Accelerators that NVML tells of, by the open driver."""
    return Accelerators(
        on_pci=count,
        nvidia_on_pci=count,
        makers=("NVIDIA",) if count else (),
        why="",
        models=(model,) * count,
        memory_bytes=(80 << 30,) * count,
        ecc=(True,) * count,
        persistence=(True,) * count,
        numa_nodes=tuple(i * 2 // max(1, count) for i in range(count)),
        driver_is_open=True,
        peermem=None,
    )


def no_gpus() -> Accelerators:
    """No accelerator, and nobody to ask."""
    return Accelerators(0, 0, (), "NVML cannot be asked", None, None, None, None, (), False, None)


def hidden(shown: int, count: int = 8) -> Accelerators:
    """Of which NVML shows fewer than there are, as in a job that was given no more."""
    each = {name: getattr(gpus(shown), name) for name in ("models", "memory_bytes", "ecc")}
    return replace(gpus(count), **each, persistence=(True,) * shown)


LOOK = NodeLook(
    nics=(),
    rdma=(),
    accelerators=no_gpus(),
    numa_nodes=2,
    cpus=64,
    shm_bytes=(250 << 30) + 12345,
    memlock_bytes=None,
    memlock_unlimited=True,
    open_files=65536,
    mounts=(),
    scheduler=None,
    unread={},
)


def tcp_node(index: int) -> NodeLook:
    """A node without accelerators: a fast NIC, and a slower one for control."""
    return replace(
        LOOK,
        nics=(
            nic("eth0", f"10.1.0.{index + 1}", rate_mbits_s=1_000.0),
            nic("eth1", f"10.2.0.{index + 1}", rate_mbits_s=100_000.0, mtu_bytes=9000),
            nic("docker0", "172.17.0.1", kind="bridge", hardware=False, rate_mbits_s=None),
        ),
    )


def ib_node(index: int) -> NodeLook:
    """Eight H100 with a NIC each, and two NICs for storage that are as fast."""
    compute = tuple(port(f"mlx5_{i}") for i in range(8))
    storage = tuple(port(f"mlx5_{i}", nearest="SYS", numa_node=1) for i in (8, 9))
    return replace(
        LOOK,
        nics=(nic("eno1", f"10.1.0.{index + 1}"),),
        rdma=compute + storage,
        accelerators=gpus(),
    )


def roce_node(index: int) -> NodeLook:
    """Eight H100 with a NIC each that has an interface and an address."""
    nics = tuple(
        nic(
            f"rdma{i}",
            f"10.2.{i}.{index + 1}",
            rate_mbits_s=400_000.0,
            mtu_bytes=9000,
            rdma_devices=(f"mlx5_{i}",),
        )
        for i in range(8)
    )
    ports = tuple(
        port(f"mlx5_{i}", protocol="RoCE", netdevs=(f"rdma{i}",), gid_types=("RoCE v2",))
        for i in range(8)
    )
    control = nic("eth0", f"10.1.0.{index + 1}")
    return replace(LOOK, nics=(control, *nics), rdma=ports, accelerators=gpus())


def efa_node(index: int) -> NodeLook:
    """Eight H100, and NICs whose driver is efa."""
    ports = tuple(port(f"rdmap{i}s0", protocol="EFA", rate_gbits_s=100.0) for i in range(32))
    control = nic("ens32", f"10.1.0.{index + 1}", rate_mbits_s=None, driver="ena", mtu_bytes=9001)
    return replace(LOOK, nics=(control,), rdma=ports, accelerators=gpus())


def sight(make: Callable[[int], NodeLook] = tcp_node, count: int = 4, **changes: Any) -> Sight:
    """`count` nodes that are all made alike."""
    nodes = tuple(Seen(f"node{i}", f"10.1.0.{i + 1}", make(i)) for i in range(count))
    return replace(Sight(nodes, "ssh", "a hostfile", "2026-11-21 16:00 UTC"), **changes)


def changed(seen: Sight, index: int, **changes: Any) -> Sight:
    """With another look of one node."""
    nodes = list(seen.nodes)
    look = nodes[index].look
    assert look is not None
    nodes[index] = replace(nodes[index], look=replace(look, **changes))
    return replace(seen, nodes=tuple(nodes))


def silent(seen: Sight, index: int, problem: str = "no answer within 90 s") -> Sight:
    """With a node that showed nothing."""
    nodes = list(seen.nodes)
    nodes[index] = replace(nodes[index], look=None, problem=problem)
    return replace(seen, nodes=tuple(nodes))

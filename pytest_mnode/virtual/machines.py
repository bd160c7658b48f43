"""Healthy nodes of a spec's platform, as a survey reads them: alike, but for their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytest_mnode.checks.node.accelerators import AcceleratorHealth
from pytest_mnode.criteria.preflight.answers import (
    Connection,
    DirectoryFacts,
    Heard,
    LastFacts,
    LookUp,
    NodeFacts,
    NodeSurvey,
    Path,
    PathFacts,
    Rail,
)
from pytest_mnode.criteria.preflight.node_links import networks_of, promised_count
from pytest_mnode.logs.kernel_log import Log
from pytest_mnode.machine.cpus import Cpu, Cpus
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Interface, Kind
from pytest_mnode.machine.numa import Numa, NumaNode
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.pci import NVIDIA, PciFunction, PciTree
from pytest_mnode.machine.process import Limits
from pytest_mnode.machine.rdma import Gid, Port, RdmaDevice, VerbsDevice
from pytest_mnode.machine.software import Software
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Network

DRIVER, OTHER_DRIVER = "580.95.05", "580.65.06"
FIRMWARE, OTHER_FIRMWARE = "28.43.2026", "28.39.1002"
CLOCKS_DIFFER_S, CLOCK_ERROR_S = 5e-4, 1e-4
"""Of clocks that NTP keeps on a LAN, and of an exchange of time stamps. [choice]"""
_ROOM = 1 << 40
CORES = 48
"""Of each of two sockets, that of NUMA node 0 and that of 1. [choice]"""
_LOOKED_UP = 64
_LAYERS = {
    "infiniband": ("InfiniBand", "CA", "IB/RoCE v1"),
    "roce": ("Ethernet", "CA", "RoCE v2"),
    "efa": ("Unknown", "unspecified", "IB/RoCE v1"),
}
_COUNTERS = ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors")


def cores_of(socket: int) -> frozenset[int]:
    return frozenset(range(socket * CORES, (socket + 1) * CORES))


_CPUS = Cpus(
    online=frozenset(range(2 * CORES)),
    cpus=tuple(
        Cpu(number=i, package=i // CORES, siblings=frozenset({i})) for i in range(2 * CORES)
    ),
)
_NUMA = Numa(
    nodes=tuple(
        NumaNode(number=i, cpus=cores_of(i), distances={i: 10, 1 - i: 21}, memory_bytes=_ROOM)
        for i in (0, 1)
    )
)


def links_of(network: Network) -> tuple[str, ...]:
    """Names of a network's links on each node; a pattern gives as many as are missing."""
    count = promised_count(network)
    plain = [name for name in network.interfaces if not set(name) & set("*?[")]
    pattern = next((name for name in network.interfaces if name not in plain), "nic*")
    more = [pattern.replace("*", str(i), 1).replace("?", str(i), 1) for i in range(count)]
    return (*plain, *more)[:count]


def surveys(spec: Spec, nodes: Sequence[str], rng: np.random.Generator) -> list[NodeSurvey]:
    """The survey of every node."""
    clocks_s = CLOCKS_DIFFER_S * rng.standard_normal(len(nodes))
    looked_up = _look_ups(nodes)
    return [_survey(spec, nodes, index, clocks_s, looked_up) for index in range(len(nodes))]


def address(network: str, link: int, node: int) -> str:
    """Of a node's link: every network and every link has a subnet of its own."""
    first = 64 * (network == "management") + link
    return f"10.{first}.{node // 250}.{node % 250 + 1}"


def _survey(
    spec: Spec,
    nodes: Sequence[str],
    index: int,
    clocks_s: np.ndarray,
    looked_up: tuple[LookUp, ...],
) -> NodeSurvey:
    others = [i for i in range(len(nodes)) if i != index]
    promise = spec.criteria.preflight
    named = {key: links_of(network) for key, network in networks_of(spec).items()}
    on_sockets = {
        key: links
        for key, links in named.items()
        if key == "management" or spec.fabric.protocol in (None, "RoCE")
    }
    offsets_s = (clocks_s - clocks_s[index]).tolist()
    by_clock: dict[str, Any] = {"answered": True, "error_s": CLOCK_ERROR_S}
    paths = [Path(to, "control", "", offset_s=offsets_s[to], **by_clock) for to in others]
    connections: list[Connection] = []
    tried = {
        key: _mtu(spec, key)
        for one in (
            promise and promise.reachable,
            promise and promise.mtu,
            promise and promise.payload,
        )
        if one
        for key in one.networks
        if key in on_sockets
    }
    for key, mtu in tried.items():
        for link in on_sockets[key]:
            paths += [Path(to, key, link, answered=True, largest_bytes=mtu) for to in others]
            connections += [Connection(to, key, link, 1e-3, "", mtu, link) for to in others]
    rails = {
        key: tuple(Rail(link, address(key, i, index), 1, 2) for i, link in enumerate(links))
        for key, links in on_sockets.items()
    }
    heard = tuple(Heard(key, link, tuple(others)) for key in tried for link in on_sockets[key])
    machine = _machine(spec, nodes[index], index, named, on_sockets)
    facts = NodeFacts(
        machine=machine,
        tcp_port=1,
        udp_port=2,
        master_problem="",
        rails=rails,
        code={"train.py": "0a1b2c3d4e5f"},
        directories=tuple(
            DirectoryFacts(key=key, path=key, size_bytes=_ROOM, free_bytes=_ROOM)
            for key in ("/dev/shm", "shared memory", "temporary files")
        ),
    )
    master = Connection(0, "control", "", 1e-3, "")
    found = PathFacts(tuple(connections), master, tuple(paths), looked_up, ())
    control = address("management", 0, index)
    return NodeSurvey(
        index, nodes[index], control, "", facts, found, LastFacts(heard, machine.rdma)
    )


def _mtu(spec: Spec, network: str) -> int:
    found = spec.fabric if network == "fabric" else spec.management
    return (found and found.mtu_bytes) or 1500


def _look_ups(nodes: Sequence[str]) -> tuple[LookUp, ...]:
    """Every node finds the same, of the first nodes: all that is found out shows with these."""
    return tuple(
        LookUp(index, what, (found,), 1e-3, "")
        for index, name in enumerate(nodes[:_LOOKED_UP])
        for control in [address("management", 0, index)]
        for what, found in ((name, control), (control, name))
    )


def _machine(
    spec: Spec,
    name: str,
    index: int,
    named: Mapping[str, tuple[str, ...]],
    on_sockets: Mapping[str, tuple[str, ...]],
) -> Machine:
    rdma = () if spec.fabric.protocol is None else _rdma(spec, named["fabric"], index)
    rates = {"fabric": spec.fabric, "management": spec.management or spec.fabric}
    interfaces = [
        _interface(
            f"net_{link}" if key == "fabric" and rdma else link,
            _mtu(spec, key),
            address(key, i, index),
            speed_mbits_s=round(rates[key].line_rate_mbits_s),
            pci_address=_nic(i) if key == "fabric" else None,
            numa_node=i * 2 // len(links),
        )
        for key, links in on_sockets.items()
        for i, link in enumerate(links)
    ]
    if "management" not in named:
        interfaces.append(_interface("eth0", 1500, address("management", 0, index)))
    accelerators = tuple(_accelerator(spec, i) for i in range(spec.accelerators.per_node))
    sockets = len(accelerators) or 1
    cards = [_card(_gpu(i), "0302", NVIDIA, 2 * i // sockets) for i in range(len(accelerators))]
    nics = len(named["fabric"])
    cards += [_card(_nic(i), "0207", "15b3", 2 * i // nics) for i in range(nics)]
    return Machine(
        hostname=name,
        boot_id=f"boot-{index}",
        interfaces=tuple(interfaces),
        rdma=rdma,
        active_mtus={f"{one.name}:1": 4096 for one in rdma},
        pci=PciTree(functions=tuple(cards)),
        accelerators=accelerators,
        shm_bytes=_ROOM,
        mounts=(),
        limits=Limits(None, 1 << 20),
        verbs=tuple(VerbsDevice(f"uverbs{i}", one.name) for i, one in enumerate(rdma)),
        settings={"net.core.rmem_max": "212992"},
        software=Software(
            kernel="6.8.0",
            driver=DRIVER if accelerators else None,
            driver_is_open=bool(accelerators),
            peermem=None,
            cpu="2 × virtual CPU",
            microcode="0x1",
            python="CPython 3.12.3",
            torch="2.9.0",
            nccl="2.28.9" if accelerators else None,
            packages={"numpy": "2.3.0"},
        ),
        kernel_log=Log(()),
        cpus=_CPUS,
        numa=_NUMA,
    )


def _interface(name: str, mtu_bytes: int, address: str, **more: Any) -> Interface:
    """A NIC that is up."""
    there: dict[str, Any] = {
        "kind": Kind.PHYSICAL,
        "operstate": "up",
        "admin_up": True,
        "carrier": True,
    }
    return Interface(name=name, mtu_bytes=mtu_bytes, addresses=(address,), **there, **more)


def _card(address: str, kind: str, vendor: str, socket: int) -> PciFunction:
    """A card in a slot of 16 lanes of PCIe 5."""
    return PciFunction(
        address=address,
        host="pci0000:00",
        kind=kind,
        vendor=vendor,
        numa_node=socket,
        link_gtransfers_s=32.0,
        max_link_gtransfers_s=32.0,
        link_width=16,
        max_link_width=16,
    )


def _gpu(number: int) -> str:
    return f"0000:{0x10 + number:02x}:00.0"


def _nic(number: int) -> str:
    return f"0000:{0x60 + number:02x}:00.0"


def _accelerator(spec: Spec, number: int) -> Accelerator:
    there, health = spec.accelerators, AcceleratorHealth()
    if spec.criteria.preflight and spec.criteria.preflight.accelerators:
        health = spec.criteria.preflight.accelerators
    return Accelerator(
        index=number,
        uuid=f"GPU-{number}",
        pci_address=_gpu(number),
        name=there.model or "virtual accelerator",
        memory_bytes=there.memory_bytes or 80 * 10**9,
        ecc_enabled=health.ecc != "off",
        ecc_uncorrected=0,
        ecc_corrected=0,
        ecc_uncorrected_ever=0,
        sram_exceeded=False,
        remapped_rows_pending=False,
        remapped_rows_failed=False,
        banks_without_spare=0,
        recovery="none",
        inforom_valid=True,
        throttled=(),
        persistence=health.persistence != "off",
        mig_enabled=health.mig == "on",
    )


def _rdma(spec: Spec, names: Sequence[str], index: int) -> tuple[RdmaDevice, ...]:
    layer, kind, gid_type = _LAYERS[spec.fabric.kind]
    found = []
    for i, name in enumerate(names):
        netdev = f"net_{name}" if spec.fabric.kind == "roce" else None
        gid = (
            f"::ffff:{address('fabric', i, index)}" if netdev else f"fe80::{index + 1:x}:{i + 1:x}"
        )
        port = Port(
            device=name,
            number=1,
            state="ACTIVE",
            phys_state="LinkUp",
            rate_gbits_s=spec.fabric.line_rate_gbits_s,
            link_layer=layer,
            node_type=kind,
            gids=(Gid(index=3, gid=gid, type=gid_type, netdev=netdev),),
            counters=dict.fromkeys(_COUNTERS, 0) | {"port_xmit_data": 1, "port_rcv_data": 1},
            hw_counters={"local_ack_timeout_err": 0},
        )
        device = RdmaDevice(
            name=name,
            ports=(port,),
            node_type=kind,
            firmware=FIRMWARE,
            netdevs=(netdev,) if netdev else (),
            pci_address=_nic(i),
            numa_node=2 * i // len(names),
        )
        found.append(device)
    return tuple(found)

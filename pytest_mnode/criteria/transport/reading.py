"""Facts of this node and this rank, from what the kernel and NCCL tell; below any root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_mnode.criteria.transport.facts import Nic, NodeFacts, Port, RankFacts, Socket
from pytest_mnode.criteria.transport.settings import of_networks
from pytest_mnode.criteria.transport.why import Silence
from pytest_mnode.logs import nccl_files
from pytest_mnode.logs.nccl_log import read_nccl_log
from pytest_mnode.machine import netdev, rdma
from pytest_mnode.machine.counters import grown, port_bytes
from pytest_mnode.machine.threads import established
from pytest_mnode.rank.world import World


@dataclass(frozen=True, slots=True)
class Counters:
    """Interfaces and RDMA devices of this node at one moment; None where not listed."""

    interfaces: tuple[netdev.Interface, ...] | None
    devices: tuple[rdma.RdmaDevice, ...] | None

    @classmethod
    def read(cls, root: Path = Path("/")) -> Counters:
        """As they are now, below `root`."""
        return cls(netdev.read_interfaces(root), rdma.read_rdma(root))


def node_between(
    name: str, before: Counters, after: Counters, addresses: Mapping[str, str]
) -> NodeFacts:
    """What a node's NICs carried between two readings; what is there only in one is not known."""
    nics = ports = None
    if before.interfaces is not None and after.interfaces is not None:
        earlier = {nic.name: nic for nic in before.interfaces}
        nics = tuple(_nic(nic, earlier.get(nic.name)) for nic in after.interfaces)
    if before.devices is not None and after.devices is not None:
        known = {port.name: port for device in before.devices for port in device.ports}
        ports = tuple(
            _port(device, port, known.get(port.name))
            for device in after.devices
            for port in device.ports
        )
    return NodeFacts(name=name, nics=nics, ports=ports, addresses=dict(addresses))


def _nic(after: netdev.Interface, before: netdev.Interface | None) -> Nic:
    rides_on = [*after.slaves, after.master, after.parent]
    return Nic(
        name=after.name,
        sent_bytes=grown(before.sent_bytes if before else None, after.sent_bytes),
        received_bytes=grown(before.received_bytes if before else None, after.received_bytes),
        up=after.up,
        infiniband=after.kind is netdev.Kind.IPOIB,
        rides_on=tuple(name for name in rides_on if name),
    )


def _port(device: rdma.RdmaDevice, after: rdma.Port, before: rdma.Port | None) -> Port:
    sent = [None if port is None else port_bytes(port, sent=True) for port in (before, after)]
    received = [None if port is None else port_bytes(port, sent=False) for port in (before, after)]
    types = {g.index: _gid_type(g.type) for g in after.gids or () if g.type}
    state = (
        after.state if after.active is not False or after.state != "ACTIVE" else after.phys_state
    )
    return Port(
        device=device.name,
        port=after.number,
        sent_bytes=grown(*sent),
        received_bytes=grown(*received),
        state=state,
        protocol=after.protocol,
        gid_types=None if after.gids is None else types,
        netdevs=after.netdevs or device.netdevs,
        pci_address=device.pci_address,
    )


def _gid_type(told: str | None) -> str:
    """v1 or v2 of "IB/RoCE v1" and "RoCE v2"; as told for anything else."""
    text = (told or "").strip()
    return text[-2:].lower() if text[-2:].lower() in ("v1", "v2") else text


def rank_now(world: World, backend: str, environment: Mapping[str, str], root: Path) -> RankFacts:
    """What this rank's environment, its NCCL log or its connections say."""
    files = nccl_files.settings_of_files(environment, root)
    seen = of_networks({**environment, **{name: value for name, (value, _) in files.items()}})
    log = no_log = None
    ucx_file = seen.get("UCX_LOG_FILE")
    ucx = read_nccl_log((ucx_file and nccl_files.log_of_process(ucx_file)) or b"")
    if backend == "nccl":
        pattern = seen.get("NCCL_DEBUG_FILE")
        data = nccl_files.log_of_process(pattern) if pattern else None
        log = None if data is None else read_nccl_log(data)
        log = log and replace(log, ucx=log.ucx or ucx.ucx)
        if data is None:
            lost = f"{pattern} cannot be read" if pattern else "NCCL_DEBUG_FILE is not set"
            no_log = Silence(seen).text or lost
    elif ucx.ucx:
        log = ucx
    found = established() if backend == "gloo" else None
    return RankFacts(
        rank=world.rank,
        node=world.node,
        environment=seen,
        settings_of_files={name: file for name, (_, file) in files.items()},
        log=log,
        no_log=no_log or "",
        sockets=None if found is None else tuple(Socket(local=a, remote=b) for a, b in found),
    )

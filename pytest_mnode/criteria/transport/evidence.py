"""What is known of nodes and ranks around the traffic, and how it is read. None: not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_mnode.criteria.transport.settings import of_networks, why_silent
from pytest_mnode.logs import nccl_files
from pytest_mnode.logs.nccl_log import NcclLog, RankLog, read_nccl_log
from pytest_mnode.machine.counters import grown_by, port_bytes, port_packets
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Kind, plain
from pytest_mnode.machine.rdma import Port
from pytest_mnode.machine.threads import established
from pytest_mnode.rank.world import World
from pytest_mnode.spec.models import Spec

PARTS = ("interfaces", "rdma")
"""The parts of a machine that transport is judged on."""
_PACKET_BYTES = 4096
"""The largest MTU of RDMA, which is without headers."""
Connection = tuple[tuple[str, int], tuple[str, int]]
"""An established TCP connection: (address, port) of its own end and of the peer's."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """A NIC by what is counted on it: an RDMA port, or an interface for sockets.

    state: as the kernel reports it, where the NIC is down; else empty. sent_packets: where it
    counts them and no bytes.
    """

    name: str
    sent_bytes: int | None
    received_bytes: int | None
    state: str = ""
    sent_packets: int | None = None

    @property
    def shown(self) -> str:
        """The name, with the state of a NIC that is down."""
        return f"{self.name} ({self.state})" if self.state else self.name

    @property
    def sent_at_most_bytes(self) -> int | None:
        """The bytes that it sent, or that its packets can hold."""
        if self.sent_bytes is not None or self.sent_packets is None:
            return self.sent_bytes
        return self.sent_packets * _PACKET_BYTES

    @property
    def carried_bytes(self) -> int:
        """The larger of both directions; 0 where neither is known."""
        return max(self.sent_bytes or 0, self.received_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTraffic:
    """A node: its machine after the traffic, and what each NIC carried meanwhile.

    sent_bytes, received_bytes: by interface (eth0) and RDMA port (mlx5_0:1); without those whose
    counters could not be read twice, or went back. sent_packets: by RDMA port that counts them.
    """

    name: str
    machine: Machine
    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    received_bytes: Mapping[str, int] = field(default_factory=dict)
    sent_packets: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def between(cls, name: str, before: Machine, after: Machine) -> NodeTraffic:
        """What NICs carried between two readings; parts that one of them lacks are not known."""
        machine = replace(
            after,
            interfaces=None if before.interfaces is None else after.interfaces,
            rdma=None if before.rdma is None else after.rdma,
        )
        return cls(
            name=name,
            machine=machine,
            sent_bytes=grown_by(_counts(before, sent=True), _counts(machine, sent=True)),
            received_bytes=grown_by(_counts(before, sent=False), _counts(machine, sent=False)),
            sent_packets=grown_by(_packets(before), _packets(machine)),
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of RDMA devices."""
        return tuple(device.name for device in self.machine.rdma or ())

    @property
    def ipoib(self) -> frozenset[str]:
        """Interfaces of IP over InfiniBand."""
        interfaces = self.machine.interfaces or ()
        return frozenset(nic.name for nic in interfaces if nic.kind is Kind.IPOIB)

    def interface_of(self, address: str) -> str | None:
        """The interface that has an IP address."""
        interfaces = self.machine.interfaces or ()
        owners = (nic.name for nic in interfaces if address in map(plain, nic.addresses))
        return next(owners, None)

    def fabric_ports(self, spec: Spec) -> list[Port]:
        """RDMA ports of the fabric."""
        return [port for port in self.machine.ports if spec.fabric.has_interface(port.device)]

    def netdevs_of(self, port: Port) -> tuple[str, ...]:
        """Interfaces of a port; those of its device where its GIDs name none."""
        device = self.machine.device(port.device)
        return port.netdevs or (device.netdevs if device else ())

    def carriers(self, spec: Spec, *, rdma: bool, of_fabric: bool) -> list[Carrier] | None:
        """RDMA ports, or interfaces, that belong to the fabric, or those that do not."""
        if rdma:
            if self.machine.rdma is None:
                return None
            several = {p.device for p in self.machine.ports if p.number > 1}
            return [
                self._carrier(p.name, p.name if p.device in several else p.device, state_of(p))
                for p in self.machine.ports
                if spec.fabric.has_interface(p.device) is of_fabric
            ]
        if self.machine.interfaces is None:
            return None
        return [
            self._carrier(nic.name, nic.name, "down" if nic.up is False else "")
            for nic in self.machine.interfaces
            if spec.fabric.has_interface(nic.name) is of_fabric
        ]

    def _carrier(self, key: str, name: str, state: str) -> Carrier:
        sent, received = self.sent_bytes.get(key), self.received_bytes.get(key)
        return Carrier(name, sent, received, state, self.sent_packets.get(key))

    def same_wire(self, names: Iterable[str]) -> set[str]:
        """`names` and all interfaces that carry the same bytes: bonds, their links, VLANs."""
        pairs = {
            (nic.name, other)
            for nic in self.machine.interfaces or ()
            for other in (*nic.slaves, nic.master, nic.parent)
            if other
        }
        found, linked = set[str](), set(names)
        while linked - found:
            found |= linked
            linked = {b for a, b in pairs if a in found} | {a for a, b in pairs if b in found}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTransport:
    """A rank: its environment and what it runs on by its own log or connections.

    environment: variables that networks read, with those of nccl.conf that the environment does
    not override. settings_of_files: which of them come from which file.
    log: what NCCL printed; None where there is no log, with the reason in no_log.
    connections: None where they could not be read.
    """

    rank: int
    node: str
    environment: Mapping[str, str]
    settings_of_files: Mapping[str, str] = field(default_factory=dict)
    log: NcclLog | None = None
    no_log: str = ""
    connections: tuple[Connection, ...] | None = None

    @property
    def own_log(self) -> RankLog | None:
        """Its part of a log that ranks may share; a log that names no rank counts as its own."""
        ranks = self.log.ranks if self.log else ()
        same = [one for one in ranks if one.rank == self.rank]
        if same:
            # Where runs share a file, the last one counts; of the largest communicator.
            largest = max(one.size or 0 for one in same)
            return [one for one in same if (one.size or 0) == largest][-1]
        unnamed = len(ranks) == 1 and ranks[0].rank is None
        return ranks[0] if unnamed else None

    @property
    def logged_settings(self) -> dict[str, str]:
        """Settings that NCCL of this rank logged."""
        own = self.own_log
        if self.log is None or own is None:
            return {}
        return {s.name: s.value for s in self.log.settings if s.process == own.process}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is judged: nodes in the world's order, ranks by number.

    backend: of torch.distributed. size_bytes, calls: of the all-reduce that was sent meanwhile.
    """

    backend: str
    size_bytes: int
    calls: int
    nodes: tuple[NodeTraffic, ...]
    ranks: tuple[RankTransport, ...]

    @property
    def ranks_per_node(self) -> int:
        """The same on all nodes."""
        return len(self.ranks) // max(1, len(self.nodes))

    @property
    def nccl_version(self) -> str | None:
        """The version in the logs, which only the first rank prints; None for several."""
        versions = {v for rank in self.ranks if rank.log for v in rank.log.versions}
        return versions.pop() if len(versions) == 1 else None

    def node(self, name: str) -> NodeTraffic:
        """The node of this name."""
        return next(node for node in self.nodes if node.name == name)

    def rails_expected(self, spec: Spec) -> int:
        """How many NICs of a node must carry traffic: all, with one rank per accelerator.

        With fewer ranks, their share of the NICs, and one at least.
        """
        nics, accelerators = spec.fabric.nics_per_node, spec.accelerators.per_node
        if not accelerators or self.ranks_per_node >= accelerators:
            return nics
        return max(1, nics * self.ranks_per_node // accelerators)


def is_rdma(spec: Spec) -> bool:
    """Whether the spec promises RDMA."""
    return spec.fabric.kind != "ethernet"


def state_of(port: Port) -> str:
    """The state of a port that carries nothing; empty for any other."""
    if port.active is not False:
        return ""
    return str(port.phys_state if port.state == "ACTIVE" else port.state)


def gid_types(port: Port) -> dict[int, str] | None:
    """Types of a port's GIDs by index: v1 or v2 for RoCE, else as the kernel names them."""
    if port.gids is None:
        return None
    return {gid.index: _short(gid.type.strip()) for gid in port.gids if gid.type}


def _short(gid_type: str) -> str:
    version = gid_type[-2:].lower()
    return version if version in ("v1", "v2") else gid_type


def _counts(machine: Machine, *, sent: bool) -> dict[str, int]:
    counts = {
        nic.name: nic.sent_bytes if sent else nic.received_bytes for nic in machine.interfaces or ()
    }
    counts |= {port.name: port_bytes(port, sent=sent) for port in machine.ports}
    return {name: count for name, count in counts.items() if count is not None}


def _packets(machine: Machine) -> dict[str, int]:
    counts = {port.name: port_packets(port) for port in machine.ports}
    return {name: count for name, count in counts.items() if count is not None}


def rank_now(
    world: World, backend: str, environment: Mapping[str, str], root: Path
) -> RankTransport:
    """This rank's environment, and its NCCL log or its connections."""
    files = nccl_files.settings_of_files(environment, root)
    settings = of_networks({**environment, **{name: value for name, (value, _) in files.items()}})
    log, no_log = None, ""
    ucx_file = settings.get("UCX_LOG_FILE")
    ucx = read_nccl_log((ucx_file and nccl_files.log_of_process(ucx_file)) or b"")
    if backend == "nccl":
        pattern = settings.get("NCCL_DEBUG_FILE")
        data = nccl_files.log_of_process(pattern) if pattern else None
        if data is None:
            lost = f"{pattern} cannot be read" if pattern else "NCCL_DEBUG_FILE is not set"
            no_log = why_silent(settings) or lost
        else:
            log = read_nccl_log(data)
            log = replace(log, ucx=log.ucx or ucx.ucx)
    elif ucx.ucx:
        log = ucx
    return RankTransport(
        rank=world.rank,
        node=world.node,
        environment=settings,
        settings_of_files={name: file for name, (_, file) in files.items()},
        log=log,
        no_log=no_log,
        connections=established() if backend == "gloo" else None,
    )

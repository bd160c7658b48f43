"""Facts about nodes and ranks during the traffic, and how a rank is read. None: not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from pytest_mnode.criteria.transport.settings import Selection, of_networks, why_silent
from pytest_mnode.logs import nccl_files
from pytest_mnode.logs.nccl_log.model import NcclLog, RankLog
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from pytest_mnode.machine.counters import estimated_port_bytes, increases, port_bytes, port_packets
from pytest_mnode.machine.fabric_nics import fabric_ports, named_ports
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Kind, plain
from pytest_mnode.machine.rdma import Port
from pytest_mnode.machine.tcp import established
from pytest_mnode.measuring.traffic import all_lower_devices, lower_devices_of
from pytest_mnode.rank.world import World
from pytest_mnode.spec.models import Spec

PARTS = ("interfaces", "rdma")
"""The parts of a machine that transport is judged on."""
_PACKET_BYTES = 4096
"""The largest RDMA MTU, which does not include headers."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """Traffic of a NIC: an RDMA port, or an interface for sockets.

    state: as the kernel reports it, if the NIC is down; else empty. sent_packets: if the NIC
    counts packets and no bytes.
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
        """The bytes that it sent, or the most that its packets can hold."""
        if self.sent_bytes is not None or self.sent_packets is None:
            return self.sent_bytes
        return self.sent_packets * _PACKET_BYTES

    @property
    def carried_bytes(self) -> int:
        """The larger of both directions; 0 where neither is known."""
        return max(self.sent_bytes or 0, self.received_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTraffic:
    """A node: its machine after the traffic, and the traffic of each NIC.

    sent_bytes, received_bytes: by interface (eth0) and RDMA port (mlx5_0:1); without those whose
    counters could not be read twice, or decreased. sent_packets: by RDMA port that counts them.
    """

    name: str
    machine: Machine
    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    received_bytes: Mapping[str, int] = field(default_factory=dict)
    sent_packets: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def between(cls, name: str, before: Machine, after: Machine) -> NodeTraffic:
        """The traffic between two readings; parts that one of them lacks are not known."""
        machine = replace(
            after,
            interfaces=None if before.interfaces is None else after.interfaces,
            rdma=None if before.rdma is None else after.rdma,
        )
        return cls(
            name=name,
            machine=machine,
            sent_bytes=_grown_bytes(before, machine, sent=True),
            received_bytes=_grown_bytes(before, machine, sent=False),
            sent_packets=increases(_port_packets(before), _port_packets(machine)),
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
        fabric, devices = spec.fabric, self.machine.rdma or ()
        return fabric_ports(fabric.interfaces, fabric.nics_per_node, fabric.protocol, devices)

    def is_named(self, name: str, spec: Spec) -> bool:
        """Whether the spec names a NIC (mlx5_0, mlx5_0:1, eth0), or the interface of a device."""
        nic = name.partition(":")[0]
        ports = named_ports(spec.fabric.interfaces, self.machine.rdma or ())
        return spec.fabric.has_interface(nic) or any(port.device == nic for port in ports)

    def why_not_taken(self, chosen: Selection) -> str:
        """Why a list of RDMA devices takes no port that is up, in words; "" if it takes one."""
        taken = [port for port in self.machine.ports if chosen.takes(port.device, port.number)]
        if any(port.active is not False for port in taken):
            return ""
        down = ", ".join(f"{port.name} ({state_of(port)})" for port in taken)
        return f"takes only {down}" if down else f"takes no RDMA device of this node{chosen.doubt}"

    def netdevs_of(self, port: Port) -> tuple[str, ...]:
        """Interfaces of a port; those of its device if its GIDs name none."""
        device = self.machine.device(port.device)
        return port.netdevs or (device.netdevs if device else ())

    def carriers(self, spec: Spec, *, rdma: bool, of_fabric: bool) -> list[Carrier] | None:
        """RDMA ports if `rdma`, else interfaces, of the fabric or not; None if not known."""
        if rdma:
            if self.machine.rdma is None:
                return None
            several = {p.device for p in self.machine.ports if p.number > 1}
            ours = {port.name for port in self.fabric_ports(spec)}
            return [
                self._carrier(p.name, p.name if p.device in several else p.device, state_of(p))
                for p in self.machine.ports
                if (p.name in ours) is of_fabric
            ]
        if self.machine.interfaces is None:
            return None
        has, below = spec.fabric.has_interface, lower_devices_of(self.machine.interfaces, ())

        def counted_below(name: str) -> bool:
            """Whether a lower device is of the fabric too: `bond*` names a VLAN and its bond."""
            return any(map(has, all_lower_devices(name, below)))

        return [
            self._carrier(nic.name, nic.name, "down" if nic.up is False else "")
            for nic in self.machine.interfaces
            if has(nic.name) is of_fabric and not (of_fabric and counted_below(nic.name))
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


def state_of(port: Port) -> str:
    """The state of a port that is not active; empty for any other."""
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


def _grown_bytes(before: Machine, after: Machine, *, sent: bool) -> dict[str, int]:
    """Bytes by interface and port. For ports that count packets, see `estimated_port_bytes`."""
    # An interface that was made since then, such as a container's, has counted from 0.
    new = (nic.name for nic in after.interfaces or () if nic.kind is Kind.VIRTUAL)
    first = {name: 0 for name in new if name not in before.by_name}
    grown = increases(first | _bytes(before, sent=sent), _bytes(after, sent=sent))
    packets = increases(_port_packets(before, sent=sent), _port_packets(after, sent=sent))
    below = increases(_packets(before, sent=sent), _packets(after, sent=sent))
    for port in after.ports:
        device = after.device(port.device)
        [netdev, *others] = (device and device.netdevs) or [""]
        if port.name in packets and port.name not in grown and not others and netdev in below:
            count = estimated_port_bytes(packets[port.name], below[netdev], grown.get(netdev, 0))
            grown |= {} if count is None else {port.name: count}
    return grown


def _bytes(machine: Machine, *, sent: bool) -> dict[str, int]:
    nics = [(n.name, n.sent_bytes if sent else n.received_bytes) for n in machine.interfaces or ()]
    return _known([*nics, *((port.name, port_bytes(port, sent=sent)) for port in machine.ports)])


def _packets(machine: Machine, *, sent: bool) -> dict[str, int]:
    nics = machine.interfaces or ()
    return _known((nic.name, nic.sent_packets if sent else nic.received_packets) for nic in nics)


def _port_packets(machine: Machine, *, sent: bool = True) -> dict[str, int]:
    return _known((port.name, port_packets(port, sent=sent)) for port in machine.ports)


def _known(counts: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    return {name: count for name, count in counts if count is not None}


Connection = tuple[tuple[str, int], tuple[str, int]]
"""An established TCP connection: (address, port) of its own end and of the peer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTransport:
    """A rank's environment, and the log or the connections that show its network.

    environment: variables that networks read, with those of nccl.conf that the environment does
    not override. settings_of_files: the file of each variable that comes from a file.
    log: what NCCL printed; None if there is no log, with the reason in no_log.
    connections: None if they could not be read.
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
            # If runs share a file, the last run counts, with its largest communicator.
            largest = max(one.size or 0 for one in same)
            return [one for one in same if (one.size or 0) == largest][-1]
        match ranks:
            case [one] if one.rank is None:
                return one
        return None

    @property
    def logged_settings(self) -> dict[str, str]:
        """Settings that this rank's NCCL logged."""
        own = self.own_log
        if self.log is None or own is None:
            return {}
        return {s.name: s.value for s in self.log.settings if s.process == own.process}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All facts that are judged: nodes in the world's order, ranks by number.

    backend: of torch.distributed. size_bytes, calls: of the all-reduces between the readings.
    """

    backend: str
    size_bytes: int
    calls: int
    nodes: tuple[NodeTraffic, ...]
    ranks: tuple[RankTransport, ...]

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks of each node, the same on all nodes."""
        return len(self.ranks) // max(1, len(self.nodes))

    @cached_property
    def nccl_version(self) -> str | None:
        """The version in the logs, which only the first rank prints; None if there are several."""
        versions = {v for rank in self.ranks if rank.log for v in rank.log.versions}
        return versions.pop() if len(versions) == 1 else None

    @cached_property
    def node_of(self) -> Mapping[int, str]:
        """The node of each rank."""
        return {rank.rank: rank.node for rank in self.ranks}

    @cached_property
    def _by_name(self) -> Mapping[str, NodeTraffic]:
        return {node.name: node for node in reversed(self.nodes)}

    def node(self, name: str) -> NodeTraffic:
        """The node of this name."""
        return self._by_name[name]

    def rails_expected(self, spec: Spec) -> int:
        """Number of NICs of a node that must carry traffic."""
        return spec.nics_of_ranks(self.ranks_per_node)


def past_nics(rank: RankTransport, facts: Evidence) -> dict[str, set[str]]:
    """Nodes of peers that a rank's channels reach past all networks, by NCCL's name of the path,
    such as P2P/MNNVL."""
    own = rank.own_log
    if own is None:
        return {}
    nodes = facts.node_of
    # A channel names ranks of its own communicator: only those of the world are known here.
    world = {comm.address for comm in own.comms if comm.size == len(facts.ranks)}
    paths: dict[str, set[str]] = {}
    for channel in own.channels:
        ends = {nodes.get(end) for end in (channel.sender, channel.receiver) if end is not None}
        if channel.crosses_network or channel.comm not in world or None in ends:
            continue
        if others := {end for end in ends if end is not None and end != rank.node}:
            paths.setdefault(channel.detail, set()).update(others)
    return paths


def is_nvlink(path: str) -> bool:
    """Whether a path is NVLink between nodes (multi-node NVLink)."""
    return "MNNVL" in path


def nvlink_groups(facts: Evidence, spec: Spec) -> tuple[frozenset[str], ...]:
    """The nodes, those together that NVLink joins as their logs show, if the spec promises domains
    of several nodes; else each alone. In the order of the nodes."""
    groups = {node.name: frozenset({node.name}) for node in facts.nodes}
    for rank in facts.ranks if spec.accelerators.nodes_of_a_domain > 1 else ():
        for path, others in past_nics(rank, facts).items():
            if is_nvlink(path):
                joined = frozenset().union(*(groups[name] for name in {rank.node, *others}))
                groups |= dict.fromkeys(joined, joined)
    return tuple(dict.fromkeys(groups.values()))


def is_rdma(spec: Spec) -> bool:
    """Whether the spec promises RDMA by ports that the kernel knows."""
    return spec.fabric.protocol is not None


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

"""What was read of ranks and nodes, as values; None is what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_mnode.logs.nccl_log import NcclLog, RankLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network interface of a node, with what it carried meanwhile as the kernel counts it.

    infiniband: IP over InfiniBand; None where its type could not be read.
    rides_on: other interfaces that carry the same bytes: slaves of a bond, the NIC below a VLAN.
    """

    name: str
    sent_bytes: int | None
    received_bytes: int | None = None
    up: bool | None = None
    infiniband: bool | None = None
    rides_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of an RDMA device of a node, with what it carried meanwhile.

    state: as the kernel says it, such as "ACTIVE". protocol: such as "RoCE". gid_types: by index,
    "v1" and "v2" for RoCE, "IB" for InfiniBand; None where they could not be read. netdevs:
    interfaces of the same port.
    pci_address: what libfabric calls it, such as 0000:53:00.0.
    """

    device: str
    port: int
    sent_bytes: int | None
    received_bytes: int | None = None
    state: str | None = None
    protocol: str | None = None
    gid_types: Mapping[int, str] | None = None
    netdevs: tuple[str, ...] = ()
    pci_address: str | None = None

    @property
    def active(self) -> bool | None:
        """Whether the port can carry anything; None where its state could not be read."""
        return None if self.state is None else self.state.upper() == "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node: its interfaces and RDMA ports; None where they could not be listed.

    addresses: IP address to interface, for what ranks' sockets are bound to.
    """

    name: str
    nics: tuple[Nic, ...] | None
    ports: tuple[Port, ...] | None
    addresses: Mapping[str, str] = field(default_factory=dict)

    def nic(self, name: str) -> Nic | None:
        """The interface of this name."""
        return next((nic for nic in self.nics or () if nic.name == name), None)

    @property
    def devices(self) -> tuple[str, ...] | None:
        """Names of RDMA devices, each once; None where they could not be listed."""
        if self.ports is None:
            return None
        return tuple(dict.fromkeys(port.device for port in self.ports))


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """An established TCP connection of a rank: (address, port) of both ends."""

    local: tuple[str, int]
    remote: tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """A rank: its environment and what it says that it runs on.

    environment: variables that networks obey, those of nccl.conf included where the environment
    does not override them. settings_of_files: which of them come from which file.
    log: what NCCL printed; None where there is no log, and no_log says why.
    sockets: None where they could not be read.
    """

    rank: int
    node: str
    environment: Mapping[str, str]
    settings_of_files: Mapping[str, str] = field(default_factory=dict)
    log: NcclLog | None = None
    no_log: str = ""
    sockets: tuple[Socket, ...] | None = None

    @property
    def own_log(self) -> RankLog | None:
        """Its part of the log, which ranks may share; one that says no rank is taken as its own."""
        ranks = self.log.ranks if self.log else ()
        same = [one for one in ranks if one.rank == self.rank]
        if same:
            # Where runs share a file, the last of them is meant; of the largest communicator.
            largest = max(one.size or 0 for one in same)
            return [one for one in same if (one.size or 0) == largest][-1]
        unnamed = len(ranks) == 1 and ranks[0].rank is None
        return ranks[0] if unnamed else None

    @property
    def logged_settings(self) -> dict[str, str]:
        """What NCCL of this rank says that it found set."""
        own = self.own_log
        if self.log is None or own is None:
            return {}
        return {s.name: s.value for s in self.log.settings if s.process == own.process}

    @property
    def place(self) -> str:
        """How a reader finds it."""
        return f"rank {self.rank} on {self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is judged: nodes in the world's order, ranks by number.

    backend: of torch.distributed. size_bytes, calls: of the all-reduce that was sent meanwhile.
    """

    backend: str
    size_bytes: int
    calls: int
    nodes: tuple[NodeFacts, ...]
    ranks: tuple[RankFacts, ...]

    @property
    def ranks_per_node(self) -> int:
        """The same on all nodes."""
        return len(self.ranks) // max(1, len(self.nodes))

    @property
    def nccl_version(self) -> str | None:
        """The one version that logs tell, which only the first rank prints; None of several."""
        versions = {v for rank in self.ranks if rank.log for v in rank.log.versions}
        return versions.pop() if len(versions) == 1 else None

    def node(self, name: str) -> NodeFacts:
        """The node of this name."""
        return next(node for node in self.nodes if node.name == name)

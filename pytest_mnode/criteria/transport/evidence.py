"""Facts about nodes and ranks during the traffic, and how a rank is read. None: not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_mnode.criteria.transport.node_traffic import NodeTraffic
from pytest_mnode.criteria.transport.settings import of_networks, why_silent
from pytest_mnode.logs import nccl_files
from pytest_mnode.logs.nccl_log.model import NcclLog, RankLog
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from pytest_mnode.machine.tcp import established
from pytest_mnode.rank.world import World
from pytest_mnode.spec.models import Spec

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


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def nccl_version(self) -> str | None:
        """The version in the logs, which only the first rank prints; None if there are several."""
        versions = {v for rank in self.ranks if rank.log for v in rank.log.versions}
        return versions.pop() if len(versions) == 1 else None

    def node(self, name: str) -> NodeTraffic:
        """The node of this name."""
        return next(node for node in self.nodes if node.name == name)

    def rails_expected(self, spec: Spec) -> int:
        """Number of NICs of a node that must carry traffic."""
        return spec.nics_of_ranks(self.ranks_per_node)


def past_nics(rank: RankTransport, facts: Evidence) -> dict[str, set[str]]:
    """Nodes of peers that a rank's channels reach past all networks, by NCCL's name of the path,
    such as P2P/MNNVL."""
    own = rank.own_log
    if own is None:
        return {}
    nodes = {other.rank: other.node for other in facts.ranks}
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

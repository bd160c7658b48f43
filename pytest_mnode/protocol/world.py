"""Worlds, leases, and the names that all processes of a run share."""

from __future__ import annotations

from dataclasses import dataclass

HUB = "hub"
BEAT = b"mnode-is-there"
"""Heartbeat of agents to the hub, and of the hub to agents on other machines, in raw bytes."""
RUN = "MNODE_RUN"
"""Environment variable of processes started on nodes; its value is the directory of their run."""


@dataclass(frozen=True)
class Shape:
    """The size of a world: `nodes` × `procs_per_node` ranks."""

    nodes: int
    procs_per_node: int

    @property
    def size(self) -> int:
        return self.nodes * self.procs_per_node

    def __str__(self) -> str:
        return f"{self.nodes}×{self.procs_per_node}"


@dataclass(frozen=True)
class WorldInfo:
    """The controller's description of a world.

    nodes: name of the node of each group rank.
    new_group: the world's next test shares no process group with an earlier test.
    own_imports: each rank imported for itself the test modules that cannot be shared.
    only_in_ranks: node ids of tests that some of its ranks have and the controller does not have.
    """

    id: str
    shape: Shape
    nodes: tuple[str, ...]
    new_group: bool = True
    log_dir: str = ""
    own_imports: bool = False
    only_in_ranks: tuple[str, ...] = ()

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // self.shape.procs_per_node]

    def place(self, rank: int) -> str:
        return f"rank {rank} on {self.node_of(rank)}"


@dataclass(frozen=True)
class Lease:
    """Nodes that a client has exclusively until it gives them back."""

    id: int
    nodes: tuple[str, ...]

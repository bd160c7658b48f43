"""Worlds, leases, and the names that all processes of a run know."""

from __future__ import annotations

from dataclasses import dataclass

HUB = "hub"
BEAT = b"mnode-hub-is-there"
"""From the hub to agents of other machines, as it is: an agent that misses it for long ends."""
RUN = "MNODE_RUN"
"""Variable of what is started on nodes; its value is the directory of the run it goes with."""


@dataclass(frozen=True)
class Shape:
    """How large a world is: `nodes` × `procs_per_node` ranks."""

    nodes: int
    procs_per_node: int

    @property
    def size(self) -> int:
        return self.nodes * self.procs_per_node

    def __str__(self) -> str:
        return f"{self.nodes}×{self.procs_per_node}"


@dataclass(frozen=True)
class WorldInfo:
    """A world as the controller knows it. `nodes` holds one name a group rank.

    new_group: the next test in it shares no process group with one before.
    own_imports: its ranks imported test modules for themselves, those that cannot be shared.
    """

    id: str
    shape: Shape
    nodes: tuple[str, ...]
    new_group: bool = True
    log_dir: str = ""
    own_imports: bool = False

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // self.shape.procs_per_node]

    def place(self, rank: int) -> str:
        return f"rank {rank} on {self.node_of(rank)}"


@dataclass(frozen=True)
class Lease:
    """Nodes that are a client's own until it gives them back."""

    id: int
    nodes: tuple[str, ...]

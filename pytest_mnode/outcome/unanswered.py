"""Nodes that do not answer each other, from the TCP connections of ranks that are stuck. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mnode.machine import tcp
from pytest_mnode.measurement import listed
from pytest_mnode.outcome.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A connection of a rank whose other end, at an address of these nodes, does not answer."""

    rank: int
    node: str
    peer: tcp.Endpoint
    peer_nodes: tuple[str, ...]

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset((self.node, *self.peer_nodes))

    def __str__(self) -> str:
        peer = f"{tcp.text(self.peer)} on {listed(self.peer_nodes, 3, ',')}"
        return f"rank {self.rank} on {self.node} gets no TCP acknowledgement from {peer}"


def unanswered(outcome: Outcome) -> list[Unanswered]:
    """By rank. Connections to other machines than the nodes are left out."""
    owners: dict[str, dict[str, None]] = {}
    for state in outcome.states.values():
        for address in state.tcp.addresses:
            owners.setdefault(address, {})[state.node] = None
    return [
        Unanswered(rank, state.node, peer, tuple(owners[peer[0]]))
        for rank, state in sorted(outcome.states.items())
        for peer in state.tcp.silent
        if peer[0] in owners
    ]


def suspects(found: list[Unanswered]) -> frozenset[str]:
    """The nodes that every one of several pairs has in common, or else all of their nodes."""
    pairs = {one.nodes for one in found} or {frozenset()}
    common = frozenset.intersection(*pairs)
    return common if len(common) == 1 else frozenset.union(*pairs)

"""Leases of nodes to clients, granted whole and first come, first served.

A client requests one lease at a time and holds none while it waits, so there is no deadlock. The
queue is strict, so small requests do not starve a large one. A request, also one for a world, is a
coroutine that waits until it can be answered. Pure: no sockets, no clocks.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from pytest_mnode.errors import ClusterError, MnodeError, NodeLostError
from pytest_mnode.launchers.node import Node, count
from pytest_mnode.protocol.messages import Lease


@dataclass(frozen=True, slots=True)
class Asked:
    """A client, and the number of its call that waits for an answer."""

    client: str
    seq: int

    def is_of(self, client: str, seq: int | None) -> bool:
        """Whether it is of this client, and if given the call `seq`."""
        return self.client == client and seq in (None, self.seq)


class Withdrawn(Exception):
    """Raised in a request that its client no longer waits for; it may go on all the same."""


@types.coroutine
def change() -> Generator[None]:
    """Wait until something may have changed in the hub."""
    yield


@dataclass(frozen=True, slots=True)
class NodesRequest:
    """A request for the lease of nodes.

    nodes: number of nodes; None: all. exclusive: wait until no other lease is out, and be alone.
    label: what needs the nodes, for errors. on: names of the only nodes that will do; empty if any
    will do. ranks: the client will open a world on them at once; if false, nodes of other machines
    are granted before torch is imported there.
    """

    asked: Asked
    nodes: int | None
    exclusive: bool
    label: str
    on: tuple[str, ...] = ()
    ranks: bool = True


@dataclass(slots=True)
class NodeState:
    """The hub's state of a node.

    up: its agent answers. booted: ranks can be started. lost: why it is lost; "" if it is not.
    boots_again: it was lost, and is being booted.
    """

    node: Node
    agent: int
    booted: bool = False
    store_port: int | None = None
    lease: int | None = None
    lost: str = ""
    up: bool = False
    boots_again: bool = False

    def mark_lost(self, reason: str) -> None:
        self.lost, self.up, self.booted, self.store_port = reason, False, False, None
        self.boots_again = False

    def mark_booting(self) -> None:
        self.mark_lost("")
        self.boots_again = True

    def mark_booted(self, store_port: int) -> None:
        self.booted, self.store_port, self.boots_again = True, store_port, False


@dataclass(frozen=True, slots=True)
class LeaseState:
    id: int
    asked: Asked
    nodes: tuple[str, ...]
    exclusive: bool


class Leases:
    """The queue of requests, and the leases that are granted (`out`).

    failure: the error after which nothing can be granted.
    """

    def __init__(self, nodes: dict[str, NodeState]) -> None:
        self.nodes = nodes
        self.out: dict[int, LeaseState] = {}
        self.queue: list[NodesRequest] = []
        self.failure: MnodeError | None = None
        self._ids = itertools.count(1)

    def lease_no_node(self, asked: Asked) -> Lease:
        lease = LeaseState(next(self._ids), asked, (), exclusive=False)
        self.out[lease.id] = lease
        return Lease(lease.id, ())

    def give_back(self, lease_id: int) -> None:
        """Free the nodes of a lease; does nothing if the lease is not out."""
        self.out.pop(lease_id, None)
        for state in self.nodes.values():
            if state.lease == lease_id:
                state.lease = None

    def of(self, client: str, seq: int | None = None) -> list[int]:
        """The leases that a client holds. seq: only that of this request."""
        return [lease.id for lease in self.out.values() if lease.asked.is_of(client, seq)]

    async def lease(self, request: NodesRequest) -> Lease:
        """The nodes of a request, once it is its turn and they are free.

        A request that waits for a node to boot again does not hold up those behind it. Raises
        ClusterError if there will never be such nodes, and `failure`.
        """
        self.queue.append(request)
        try:
            while (lease := self._lease(request)) is None:
                await change()
        finally:
            self.queue.remove(request)
        return lease

    def _needs_boot(self, request: NodesRequest) -> bool:
        """Whether a request can only be granted once a node has booted again."""
        away = [s for s in self.nodes.values() if s.boots_again]
        there = len([s for s in self.nodes.values() if not (s.lost or s.boots_again)])
        wanted = len(self.nodes) if request.nodes is None else request.nodes
        return bool(away) and (there < wanted or any(s.node.name in request.on for s in away))

    def speak(self, nodes: Sequence[Node]) -> None:
        """Note that the agent of `nodes` answers."""
        for state in (self.nodes[node.name] for node in nodes):
            state.up = not state.lost

    def _lease(self, request: NodesRequest) -> Lease | None:
        if self.failure is not None:
            raise self.failure
        before = itertools.takewhile(lambda one: one is not request, self.queue)
        if not all(self._needs_boot(one) for one in before):
            return None
        states = list(self.nodes.values())
        lost = [s for s in states if s.lost]
        ready = [s for s in states if s.booted or (s.up and not request.ranks)]
        away = [s for s in states if s.boots_again and s not in ready]
        if not states or len(ready) + len(lost) + len(away) < len(states):
            return None
        wanted = len(states) if request.nodes is None else request.nodes
        if wanted > len(states) - len(lost):
            text = f"{request.label} needs {count(wanted)}, but the run has {len(states)}"
            if lost:
                raise _lost(text, lost)
            raise ClusterError(f"{text}; give --mnode-nodes={wanted}")
        if gone := [s for s in lost if s.node.name in request.on]:
            raise _lost(f"{request.label} needs {', '.join(request.on)}", gone)
        free = [s for s in ready if s.lease is None]
        if request.on:
            free = [s for s in free if s.node.name in request.on]
        occupied = any(lease.exclusive for lease in self.out.values())
        if len(free) < wanted or occupied or (request.exclusive and self.out):
            return None
        names = tuple(s.node.name for s in free[:wanted])
        lease = LeaseState(next(self._ids), request.asked, names, request.exclusive)
        self.out[lease.id] = lease
        for state in free[:wanted]:
            state.lease = lease.id
        return Lease(lease.id, names)


def _lost(text: str, lost: Sequence[NodeState]) -> NodeLostError:
    gone = "; ".join(f"{s.node.name} is lost: {s.lost}" for s in lost)
    return NodeLostError(lost[0].node.name, f"{text}, of which {gone}")

"""Leases of nodes to clients, granted whole and first come, first served.

A client requests one lease at a time and holds none while it waits, so there is no deadlock. The
queue is strict, so small requests do not starve a large one. Pure: no sockets, no clocks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mnode.launchers.node import Node, count
from pytest_mnode.protocol.hub_messages import Answer, LeaseNodes, Refused
from pytest_mnode.protocol.world import Lease


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
        self.lost, self.booted, self.store_port = "", True, store_port
        self.boots_again = False


@dataclass(frozen=True, slots=True)
class LeaseState:
    id: int
    client: str
    seq: int
    nodes: tuple[str, ...]
    exclusive: bool


class Leases:
    """The queue of requests, and the leases that are granted (`out`)."""

    def __init__(self, nodes: dict[str, NodeState]) -> None:
        self.nodes = nodes
        self.out: dict[int, LeaseState] = {}
        self.queue: deque[tuple[str, LeaseNodes]] = deque()
        self._ids = itertools.count(1)

    def ask(self, client: str, request: LeaseNodes) -> None:
        self.queue.append((client, request))

    def lease_no_node(self, client: str, seq: int) -> Lease:
        lease = LeaseState(next(self._ids), client, seq, (), exclusive=False)
        self.out[lease.id] = lease
        return Lease(lease.id, ())

    def give_back(self, lease_id: int) -> None:
        """Free the nodes of a lease; does nothing if the lease is not out."""
        self.out.pop(lease_id, None)
        for state in self.nodes.values():
            if state.lease == lease_id:
                state.lease = None

    def forget(self, client: str, seq: int | None = None) -> list[int]:
        """Drop a client's queued requests; returns the leases it holds. seq: only this request."""

        def meant(who: str, request: int) -> bool:
            return who == client and seq in (None, request)

        self.queue = deque((c, m) for c, m in self.queue if not meant(c, m.seq))
        return [lease.id for lease in self.out.values() if meant(lease.client, lease.seq)]

    def answers(self) -> list[tuple[str, Answer | Refused]]:
        """The answers that can be given now, each with its client.

        A request that waits for a node to boot again does not hold up those behind it.
        """
        answers: list[tuple[str, Answer | Refused]] = []
        for client, request in list(self.queue):
            answer = self._answer(client, request)
            if answer is not None:
                self.queue.remove((client, request))
                answers.append((client, answer))
            elif not self._needs_boot(request):
                break
        return answers

    def _needs_boot(self, request: LeaseNodes) -> bool:
        """Whether a request can only be granted once a node has booted again."""
        away = [s for s in self.nodes.values() if s.boots_again]
        there = len([s for s in self.nodes.values() if not (s.lost or s.boots_again)])
        wanted = len(self.nodes) if request.nodes is None else request.nodes
        return bool(away) and (there < wanted or any(s.node.name in request.on for s in away))

    def speak(self, nodes: Sequence[Node]) -> bool:
        """Note that the agent of `nodes` answers; returns whether that is new."""
        new = [s for node in nodes if not (s := self.nodes[node.name]).up and not s.lost]
        for state in new:
            state.up = True
        return bool(new)

    def _answer(self, client: str, request: LeaseNodes) -> Answer | Refused | None:
        states = list(self.nodes.values())
        lost = [s for s in states if s.lost]
        ready = [s for s in states if s.booted or (s.up and not request.ranks)]
        away = [s for s in states if s.boots_again and s not in ready]
        if not states or len(ready) + len(lost) + len(away) < len(states):
            return None
        wanted = len(states) if request.nodes is None else request.nodes
        if wanted > len(states) - len(lost):
            return _too_few(request, wanted, len(states), lost)
        if gone := [s for s in lost if s.node.name in request.on]:
            return _lost(request, f"{request.label} needs {', '.join(request.on)}", gone)
        free = [s for s in ready if s.lease is None]
        if request.on:
            free = [s for s in free if s.node.name in request.on]
        occupied = any(lease.exclusive for lease in self.out.values())
        if len(free) < wanted or occupied or (request.exclusive and self.out):
            return None
        names = tuple(s.node.name for s in free[:wanted])
        lease = LeaseState(next(self._ids), client, request.seq, names, request.exclusive)
        self.out[lease.id] = lease
        for state in free[:wanted]:
            state.lease = lease.id
        return Answer(request.seq, Lease(lease.id, names))


def _too_few(request: LeaseNodes, wanted: int, total: int, lost: Sequence[NodeState]) -> Refused:
    text = f"{request.label} needs {count(wanted)}, but the run has {total}"
    if lost:
        return _lost(request, text, lost)
    text += f"; give --mnode-nodes={wanted}"
    return Refused(request.seq, "ClusterError", text)


def _lost(request: LeaseNodes, text: str, lost: Sequence[NodeState]) -> Refused:
    gone = "; ".join(f"{s.node.name} is lost: {s.lost}" for s in lost)
    return Refused(request.seq, "NodeLostError", f"{text}, of which {gone}", lost[0].node.name)

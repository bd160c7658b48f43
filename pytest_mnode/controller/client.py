"""A pytest process's connection to the hub: leases, worlds, messages to and from ranks."""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from pytest_mnode import errors
from pytest_mnode.launchers.node import count
from pytest_mnode.limits import Limits
from pytest_mnode.protocol.channel import Line
from pytest_mnode.protocol.launcher_requests import LauncherRequest
from pytest_mnode.protocol.messages import (
    HUB,
    Answer,
    Call,
    Death,
    Lease,
    PartLost,
    TakeStacks,
    WorldInfo,
)

LEASE_LIMIT_S = 3600.0
"""Longest wait for nodes that other tests use; with pytest-xdist all of them may be long."""
_ORDINALS_OF_A_CLIENT = 1 << 40


@dataclass(slots=True)
class _Opened:
    """A world with its lease, and the requests that were granted: `nodes`, `exclusive`, `on` of
    `lease`; `procs_per_node`, `nodes`, `file` of `open_world`.

    held, released: what of it was given back, of which the hub has not been told.
    """

    lease: Lease
    lease_asked: tuple[int | None, bool, tuple[str, ...]]
    world: WorldInfo
    world_asked: tuple[int, tuple[str, ...] | None, str]
    held: bool = False
    released: bool = False

    def has_nodes(self, nodes: int | None, exclusive: bool, on: tuple[str, ...]) -> bool:
        """Whether such a lease would get these nodes."""
        asked = self.lease_asked
        same_nodes = set(on) == set(self.lease.nodes) if on else not asked[2]
        return self.released and asked[:2] == (nodes, exclusive) and same_nodes

    def is_world(self, held: str, *asked: Any) -> bool:
        """Whether such a request, of its lease, would get this world."""
        return asked == self.world_asked and (held == self.world.id or not (held or self.held))


class Client:
    """A client of the hub; one per pytest process, used by its main thread only."""

    def __init__(
        self, name: str, line: Line, limits: Limits, *, alone: bool = False, number: int = 0
    ) -> None:
        """alone: no other client can want its nodes. Then nodes and a world that are given back are
        kept until its next request, and beyond it if that would get the same again.

        number: unique among the clients of a hub. So are then their ordinals, by which a client
        knows whether a rank died in a test of its own.
        """
        self.name = name
        self._limits = limits
        self._alone = alone
        self._lease_asked: tuple[int | None, bool, tuple[str, ...]] = (None, False, ())
        self._open: dict[str, _Opened] = {}
        self._kept: _Opened | None = None
        self.line = line
        self.ordinals = itertools.count(number * _ORDINALS_OF_A_CLIENT + 1)
        self._seq = itertools.count(1)
        self._inbox: deque[Any] = deque()
        self._deferred: list[Death | PartLost] = []

    def tell(self, method: str, *args: Any, seq: int = 0) -> None:
        """Call a method of the hub; see Call."""
        self.give_back()
        self.line.send(HUB, Call(seq, method, args))

    def give_back(self) -> None:
        """Tell the hub of what is kept."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        self.tell("close_world", kept.world.id, True, kept.world.new_group, kept.held)
        if kept.released:
            self.tell("release", kept.lease.id)

    def take_kept(self) -> tuple[Lease, tuple[WorldInfo, ...]] | None:
        """The kept world, which was not given back, and its lease; None if there is none."""
        kept, self._kept = self._kept, None
        return None if kept is None else (kept.lease, (kept.world,))

    def lease_idle_worlds(self) -> tuple[Lease, tuple[WorldInfo, ...]]:
        """All worlds that are idle at the hub, which reports deaths there to this client then."""
        why = "the hub did not name the idle worlds"
        lease, worlds = self._ask("lease_idle_worlds", limit_s=self._limits.world_s, why=why)
        return lease, worlds

    def tell_ranks(self, world: WorldInfo, message: Call) -> None:
        self.line.send(f"world/{world.id}/{world.shape.size}", message)

    def tell_rank(self, world: WorldInfo, rank: int, message: Call) -> None:
        self.line.send(f"rank/{world.id}/{rank}", message)

    def next_message(self, timeout_s: float) -> Any | None:
        """The next message that does not answer a request to the hub; None after `timeout_s`."""
        if self._inbox:
            return self._inbox.popleft()
        return self.line.receive(timeout_s)

    def defer(self, message: Death | PartLost) -> None:
        """Keep a message of a world that the caller does not wait for now."""
        self._deferred.append(message)

    def take_deferred(self, world: str) -> list[Death | PartLost]:
        """The messages of this world that were deferred, oldest first."""
        kept = [m for m in self._deferred if m.world == world]
        self._deferred = [m for m in self._deferred if m.world != world]
        return kept

    def lease(
        self,
        nodes: int | None,
        exclusive: bool,
        label: str,
        on: tuple[str, ...] = (),
        *,
        ranks: bool = True,
    ) -> Lease:
        """Wait until this client has its nodes. on, ranks: see NodesRequest.

        Raises the hub's error if the nodes cannot be leased.
        """
        kept, asked = self._kept, (nodes, exclusive, on)
        if kept is not None and kept.has_nodes(*asked) and self._is_intact(kept.world):
            kept.released = False
            return kept.lease
        wanted = "all nodes" if nodes is None else count(nodes)
        request = nodes, exclusive, label, on, ranks
        why = f"{label} was not given {wanted}"
        lease = self._ask("lease", *request, limit_s=LEASE_LIMIT_S, why=why)
        self._lease_asked = asked
        assert isinstance(lease, Lease)
        return lease

    def release(self, lease: Lease) -> None:
        if self._kept is not None and self._kept.lease == lease:
            self._kept.released = True
        else:
            self.tell("release", lease.id)

    def _is_intact(self, world: WorldInfo) -> bool:
        """Whether no message has arrived that a rank or a node of this world was lost."""
        while (message := self.line.receive(0.0)) is not None:
            self._inbox.append(message)
        lost = (m for m in (*self._inbox, *self._deferred) if isinstance(m, Death | PartLost))
        return all(m.world != world.id for m in lost)

    def open_world(
        self,
        lease: Lease,
        procs_per_node: int,
        fresh: bool,
        nodes: tuple[str, ...] | None = None,
        *,
        held: str = "",
        file: str = "",
    ) -> WorldInfo:
        """A world with running ranks on nodes of the lease; the world `held` if it still exists.

        file: of the test that needs it. Raises WorldError that names the missing ranks.
        """
        asked, kept = (procs_per_node, nodes, file), self._kept
        same = kept is not None and kept.lease == lease and kept.is_world(held, *asked)
        if kept is not None and same and not fresh and self._is_intact(kept.world):
            self._kept, self._open[kept.world.id] = None, kept
            return kept.world
        request = lease.id, procs_per_node, fresh, nodes, held, file
        why = "no world was started"
        world = self._ask("open_world", *request, limit_s=self._limits.world_s, why=why)
        assert isinstance(world, WorldInfo)
        if self._alone:
            self._open[world.id] = _Opened(lease, self._lease_asked, world, asked)
        return world

    def close_world(
        self, world: WorldInfo, reusable: bool, new_group: bool, held: bool = False
    ) -> None:
        """Give a world back. new_group: see WorldInfo; held: its ranks stay reserved for this
        client, but not its nodes."""
        opened = self._open.pop(world.id, None)
        if reusable and opened is not None and self._kept is None:
            if opened.world.new_group != new_group:
                opened.world = replace(opened.world, new_group=new_group)
            opened.held, self._kept = held, opened
        else:
            self.tell("close_world", world.id, reusable, new_group, held)

    def take_stacks(self, world: WorldInfo, poll_id: int | None = None) -> None:
        """Request stacks and calls of all ranks (see TakeStacks): one StackTexts per node."""
        for node in world.nodes:
            self.tell("order", TakeStacks(node, world.id, poll_id))

    def take_native_stacks(self, world: WorldInfo, node: str, ranks: tuple[int, ...]) -> None:
        """Request the C stacks of ranks of a node: one StackTexts with nothing else."""
        self.tell("order", TakeStacks(node, world.id, native=ranks))

    def ask_launcher(self, request: LauncherRequest) -> Any:
        """The launcher's answer. Raises ClusterError if it does not support the request."""
        why = f"the launcher did not {request.does}"
        return self._ask("ask_launcher", request, limit_s=request.limit_s, why=why)

    def close(self) -> None:
        self.line.close()

    def _ask(self, method: str, *args: Any, limit_s: float, why: str) -> Any:
        """The hub's answer to a call. why: what did not happen, for a timeout.

        Raises the hub's error, or TimeLimitError; the call is withdrawn then.
        """
        seq, end = next(self._seq), time.monotonic() + limit_s
        try:
            self.tell(method, *args, seq=seq)
            while (message := self.line.receive(max(0.0, end - time.monotonic()))) is not None:
                if not isinstance(message, Answer):
                    self._inbox.append(message)
                elif message.seq == seq:  # otherwise the answer to a call that was withdrawn
                    if isinstance(message.value, errors.MnodeError):
                        raise message.value
                    return message.value
            raise errors.TimeLimitError(f"{why} within {limit_s:.0f} s")
        except BaseException:
            self.tell("forget", self.name, seq)
            raise

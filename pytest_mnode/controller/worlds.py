"""The worlds of a run: finds an idle world, or launches, watches and stops worlds."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_mnode.controller.leases import Asked, Leases, change
from pytest_mnode.errors import NodeLostError, WorldError
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.measurement import listed
from pytest_mnode.outcome.describe import death_line
from pytest_mnode.protocol.messages import (
    BindingOrder,
    Call,
    Death,
    Launch,
    PartLost,
    Shape,
    WorldInfo,
)

_MOST_FILES = 8
_NO_LEASE = "the test has ended and its nodes are released, so no world can be opened on them"


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The settings and facts of the spec with which ranks are started.

    accelerators: number per node that the spec promises. idle_worlds: most idle worlds per node;
    each uses host memory, and much device memory. fabric: names and patterns of fabric interfaces.
    """

    backend: str
    accelerators: int
    idle_worlds: int
    numa_bind: str = "auto"
    fabric: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Opening:
    """A request for a world on `nodes` of a lease (None: all of its nodes, in order).

    held: id of a held world that is preferred if it still exists. file: of the requesting test.
    """

    asked: Asked
    lease: int
    procs_per_node: int
    fresh: bool
    nodes: tuple[str, ...] | None = None
    held: str = ""
    file: str = ""


@dataclass(slots=True)
class WorldState:
    """A world and its user; `lease` is None while it is idle.

    held_by: the only client that may get it, because fixtures of its tests live there; or "".
    notice: of a rank's death, for the user, unless a test has reported it. not_started: why it did
    not start; "" if it has, or still may.
    """

    info: WorldInfo
    lease: int | None
    asked: Asked
    deadline: float
    hello: set[int] = field(default_factory=set)
    broken: bool = False
    held_by: str = ""
    notice: str = ""
    not_started: str = ""

    @property
    def ready(self) -> bool:
        """Whether all of its ranks have started."""
        return len(self.hello) == self.info.shape.size

    @property
    def idle(self) -> bool:
        return self.ready and self.lease is None and not self.broken


class Worlds:
    """All worlds. `send(peer, message)` reaches clients, `to_agent(node, message)` agents.

    now: the clock for limits, in seconds.
    """

    def __init__(
        self,
        facts: PoolFacts,
        launcher: Launcher,
        leases: Leases,
        send: Callable[[str, Any], None],
        to_agent: Callable[[str, Any], None],
        *,
        now: Callable[[], float],
    ) -> None:
        self.facts = facts
        self.leases = leases
        self.worlds: dict[str, WorldState] = {}
        self.notices: list[str] = []
        self._own_imports: dict[str, str] = {}
        self._send = send
        self._to_agent = to_agent
        self._now = now
        self._launcher = launcher
        self._ids = itertools.count(1)

    def import_in_ranks(self, files: dict[str, str], rootdir: str) -> None:
        """Make ranks import these files for themselves; `files` gives the reason for each."""
        new = {file: why for file, why in files.items() if file not in self._own_imports}
        self._own_imports |= new
        for why in dict.fromkeys(new.values()):
            names = [os.path.relpath(f, rootdir) for f in sorted(new) if new[f] == why]
            self.notices.append(f"{listed(names, most=_MOST_FILES)}: {why}")

    async def open(self, request: Opening) -> WorldInfo:
        """A world, once its ranks are up. Raises WorldError, and the failure of the leases."""
        while True:
            if self.leases.failure is not None:
                raise self.leases.failure
            if (lease := self.leases.out.get(request.lease)) is None:
                raise WorldError(_NO_LEASE)
            names = request.nodes or lease.nodes
            shape = Shape(len(names), request.procs_per_node)
            alike = shape, tuple(names), request.file in self._own_imports
            idle_worlds = [] if request.fresh else [w for w in self.worlds.values() if w.idle]
            fit = [
                w for w in idle_worlds if (w.info.shape, w.info.nodes, w.info.own_imports) == alike
            ]
            held = [w for w in fit if w.info.id == request.held]
            idle = next(iter(held or [w for w in fit if not w.held_by]), None)
            if idle is not None:
                idle.lease, idle.asked = lease.id, request.asked
                return idle.info
            states = [self.leases.nodes[name] for name in names]
            for name, state in zip(names, states, strict=True):
                if state.lost:
                    raise NodeLostError(name, f"node {name} is lost: {state.lost}")
            if all(s.booted for s in states) and states[0].store_port is not None:
                return await self._started(self._launch(request, names, shape))
            await change()

    async def _started(self, world: WorldState) -> WorldInfo:
        while not world.ready:
            if not world.not_started and self._now() > world.deadline:
                missing = sorted(set(range(world.info.shape.size)) - world.hello)
                places = ", ".join(world.info.place(rank) for rank in missing)
                limit = f"{self._limit_s(world.info):.0f} s"
                slow = "raise --mnode-start-limit if slow"
                self._launch_failed(world, f"{places} did not start within {limit}; {slow}")
            if world.not_started:
                raise WorldError(world.not_started)
            await change()
        return world.info

    def lease_idle(self, lease: int) -> tuple[WorldInfo, ...]:
        """Give all idle worlds to the client of this lease."""
        idle = [world for world in self.worlds.values() if world.idle]
        for world in idle:
            world.lease = lease
        return tuple(world.info for world in idle)

    def _launch(self, request: Opening, names: Sequence[str], shape: Shape) -> WorldState:
        self._make_room(names)
        name = f"w{next(self._ids)}"
        own = request.file in self._own_imports
        info = WorldInfo(name, shape, tuple(names), own_imports=own)
        deadline = self._now() + self._limit_s(info)
        world = self.worlds[name] = WorldState(info, request.lease, request.asked, deadline)
        leader = self.leases.nodes[names[0]]
        port = leader.store_port
        assert port is not None
        leader.store_port = None  # used up; the agent reports the next one
        for node_rank, node in enumerate(names):
            addr = leader.node.address
            self._to_agent(node, self._order(info, node, node_rank, addr, port))
        return world

    def _order(self, info: WorldInfo, name: str, node_rank: int, addr: str, port: int) -> Launch:
        node = self.leases.nodes[name].node
        facts = self.facts
        nics = () if facts.accelerators else facts.fabric
        binding = BindingOrder(facts.numa_bind, node.shown, self._launcher.rank_start(node), nics)
        own_imports = tuple(sorted(self._own_imports)) if info.own_imports else ()
        place = name, info, node_rank, addr, port
        return Launch(
            *place, facts.backend, facts.accelerators, node.collective_env, binding, own_imports
        )

    def _make_room(self, names: Sequence[str]) -> None:
        """Stop the oldest idle worlds of nodes that have reached their limit of idle worlds."""
        for name in names:
            idle = [
                w for w in self.worlds.values() if w.idle and not w.held_by and name in w.info.nodes
            ]
            for world in idle[: max(0, len(idle) - self.facts.idle_worlds + 1)]:
                self.stop(world.info.id)

    def hello(self, name: str, rank: int, only_here: tuple[str, ...] = ()) -> None:
        """Note that a rank has started; after the last one, the world is ready."""
        world = self.worlds.get(name)
        if world is None:
            return
        world.hello.add(rank)
        if only_here:
            tests = dict.fromkeys((*world.info.only_in_ranks, *only_here))
            world.info = replace(world.info, only_in_ranks=tuple(tests))

    def close(self, name: str, reusable: bool, new_group: bool = False, held: bool = False) -> None:
        """Take a world back from its client: keep it idle if it is reusable, else stop it.

        new_group: see WorldInfo. held: only this client gets it, until it is closed without.
        """
        world = self.worlds.get(name)
        if world is None:
            return
        if reusable and not world.broken:
            world.held_by = world.asked.client if held else ""
            world.lease = None
            world.info = replace(world.info, new_group=new_group)
        else:
            if reusable and world.notice:  # it died after its test, which does not know it
                self.notices.append(world.notice)
            self.stop(name)

    def stop(self, name: str) -> None:
        world = self.worlds.pop(name, None)
        for node in world.info.nodes if world else ():
            self._to_agent(node, Call(0, "stop_world", (node, name)))

    def stop_leased(self, lease: int) -> None:
        for world in [w for w in self.worlds.values() if w.lease == lease]:
            self.stop(world.info.id)

    def forget(self, client: str, seq: int | None) -> None:
        """Stop worlds that a client requested (if given, by request `seq`) and will not use."""
        for world in list(self.worlds.values()):
            asked = world.lease is not None and world.asked.is_of(client, seq)
            if asked or (seq is None and world.held_by == client):
                self.stop(world.info.id)

    def broke(self, message: Death | PartLost) -> None:
        """Handle a rank's death, or a node that could not start its part of a world."""
        world = self.worlds.get(message.world)
        if world is None:
            return
        world.broken = True
        if not world.ready:
            self._launch_failed(world, _why(message))
            return
        world.notice = f"{_why(message)} while no test was running; its world was ended"
        if world.lease is None:
            self.notices.append(world.notice)
            self.stop(world.info.id)
        else:
            self.to_owner(world.info.id, message)

    def node_lost(self, name: str, text: str) -> None:
        for world in [w for w in self.worlds.values() if name in w.info.nodes]:
            world.broken = True
            if not world.ready:
                self._launch_failed(world, text)
            elif world.lease is None:
                self.stop(world.info.id)
            else:
                self.to_owner(world.info.id, PartLost(name, world.info.id, text))

    def _limit_s(self, world: WorldInfo) -> float:
        return self._launcher.limits.ranks_s(imports=world.own_imports)

    def fail_all(self, text: str) -> None:
        """Report to all clients with a world, or waiting for one, that the pool has failed."""
        for world in list(self.worlds.values()):
            if world.ready:
                self.to_owner(world.info.id, PartLost("", world.info.id, text))
            else:
                self._launch_failed(world, text)

    def _launch_failed(self, world: WorldState, why: str) -> None:
        self.stop(world.info.id)
        nodes = ", ".join(world.info.nodes)
        world.not_started = f"a world of {world.info.shape} ranks on {nodes} did not start: {why}"

    def to_owner(self, name: str, message: Any) -> None:
        """Send a message to the client that has this world, if any."""
        world = self.worlds.get(name)
        lease = self.leases.out.get(world.lease) if world and world.lease is not None else None
        if lease is not None:
            self._send(lease.asked.client, message)


def _why(message: Death | PartLost) -> str:
    if isinstance(message, PartLost):
        return f"{message.node}: {message.text}"
    tail = message.error or message.log
    return death_line(message) + (f"\n{tail}" if tail else "")

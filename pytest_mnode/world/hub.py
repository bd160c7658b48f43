"""The hub: a thread of the controller that owns nodes and worlds, and is the switchboard.

Clients (this pytest process, or each pytest-xdist worker) lease nodes, open worlds on them and talk
to the ranks by name through here. A lease is granted whole or not at all, first come first served,
and a client asks for one at a time: nobody ever holds nodes while waiting for more, so nothing can
deadlock, and a large request cannot be starved by small ones.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from pytest_mnode.cluster.node import Launcher, Node
from pytest_mnode.errors import MnodeError
from pytest_mnode.world.channel import Keys, Switchboard
from pytest_mnode.world.gates import Gates
from pytest_mnode.world.messages import (
    HUB,
    AgentLost,
    AgentUp,
    Answer,
    AskLauncher,
    BootAgent,
    ClientGone,
    CloseWorld,
    Collect,
    Death,
    GateAlive,
    GateFailed,
    Granted,
    Hello,
    Launch,
    LaunchFailed,
    LeaseNodes,
    Opened,
    OpenWorld,
    RanksStarted,
    Refused,
    ReleaseNodes,
    Shape,
    StackTexts,
    StartPool,
    StopHub,
    StopWorld,
    StorePort,
    TakeStacks,
    WorldInfo,
)

_LAUNCH_LIMIT_S = 60.0
_BOOT_LIMIT_S = 300.0
_SILENCE_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """How ranks are started: what the settings and the spec say of them."""

    backend: str
    env: dict[str, str]
    log_dir: str
    idle_worlds: int
    """How many idle worlds a node may hold: each holds memory, and devices hold much of it."""


@dataclass(slots=True)
class _NodeState:
    node: Node
    gate: int
    booted: bool = False
    store_port: int | None = None
    lease: int | None = None
    lost: str = ""


@dataclass(slots=True)
class _Lease:
    id: int
    client: str
    nodes: tuple[str, ...]
    exclusive: bool


@dataclass(slots=True)
class _World:
    info: WorldInfo
    lease: int | None
    asked: tuple[str, OpenWorld]
    deadline: float
    hello: set[int] = field(default_factory=set)
    dead: list[Death] = field(default_factory=list)
    ready: bool = False


class Hub(threading.Thread):
    """Start with `start()`, speak to it by a `Client`, end it with `StopHub` and `join`."""

    def __init__(
        self,
        launcher: Launcher,
        switchboard: Switchboard,
        keys: Keys,
        facts: PoolFacts,
        run_dir: str,
    ) -> None:
        super().__init__(name="mnode-hub", daemon=True)
        self.launcher = launcher
        self.switchboard = switchboard
        self.facts = facts
        self.gates = Gates(launcher, switchboard.endpoint, keys, run_dir, facts.log_dir)
        self.nodes: dict[str, _NodeState] = {}
        self.leases: dict[int, _Lease] = {}
        self.worlds: dict[str, _World] = {}
        self.queue: collections.deque[tuple[str, LeaseNodes]] = collections.deque()
        self.opening: list[tuple[str, OpenWorld]] = []
        self.collect: Collect | None = None
        self.failure: tuple[str, str] | None = None
        self.notices: list[str] = []
        self.started = False
        self._numbers = itertools.count(1)
        self._boot_deadline = 0.0
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._wake_r, self._wake_w = os.pipe()
        self._running = True

    # The loop.

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.switchboard.socket, zmq.POLLIN)
        poller.register(self._wake_r, zmq.POLLIN)
        while self._running:
            ready = dict(poller.poll(500))
            try:
                self._turn(self._wake_r in ready, self.switchboard.socket in ready)
            except Exception as error:
                # A hub that ends would leave everybody waiting: say so, and go on to the end.
                traceback.print_exc()
                self._fail("WorldError", f"the hub failed: {type(error).__name__}: {error}")
        self._close()

    def _turn(self, woken: bool, messages: bool) -> None:
        if woken:
            os.read(self._wake_r, 4096)
            while self._calls:
                self._calls.popleft()()
        if messages:
            # All that is there, so that one wake-up serves a burst of reports.
            while self._running and self.switchboard.waiting:
                received = self.switchboard.receive()
                if received is not None:
                    self._route(*received)
        self._check_limits()

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self.gates.close()
        with contextlib.suppress(Exception):
            self.launcher.close()
        self.switchboard.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def soon(self, call: Callable[[], None]) -> None:
        """Have the hub's thread call this; from any thread."""
        self._calls.append(call)
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"x")

    def _route(self, source: str, destination: str, payload: bytes) -> None:
        if destination == HUB:
            message = pickle.loads(payload)
            try:
                self._handle(source, message)
            except MnodeError as error:
                self._refuse(source, getattr(message, "seq", 0), error)
        elif destination.startswith("world/"):
            world = self.worlds.get(destination.removeprefix("world/"))
            for rank in range(world.info.shape.size) if world else ():
                self._forward(f"rank/{destination.removeprefix('world/')}/{rank}", source, payload)
        else:
            self._forward(destination, source, payload)

    def _forward(self, destination: str, source: str, payload: bytes) -> None:
        self.switchboard.send(destination, source, payload)

    def _send(self, destination: str, message: Any) -> None:
        self._forward(destination, HUB, pickle.dumps(message))

    def _refuse(self, client: str, seq: int, error: MnodeError) -> None:
        node = getattr(error, "node", "")
        self._send(client, Refused(seq, type(error).__name__, str(error), node))

    def _handle(self, source: str, message: Any) -> None:
        match message:
            case StartPool():
                self._start()
            case Collect():
                self._set_collect(message)
            case LeaseNodes():
                self._start()
                self.queue.append((source, message))
                self._grant()
            case ReleaseNodes(lease):
                self._release(lease)
            case OpenWorld():
                self.opening.append((source, message))
                self._open_worlds()
            case CloseWorld():
                self._close_world(message)
            case AskLauncher():
                self._ask_launcher(source, message)
            case ClientGone(client):
                self._client_gone(client)
            case StopHub():
                self._running = False
            case TakeStacks() | StopWorld():
                self._to_agent(message.node, message)
            case GateAlive(gate):
                # Nothing can be sent to a gate before it was heard of.
                if self.gates.heard(gate) and self.collect is not None:
                    self._send(source, self.collect)
            case _:
                self._from_below(message)

    def _from_below(self, message: Any) -> None:
        match message:
            case GateFailed(gate, text):
                self._fail("WorldError", f"{self.gates.place(gate)}: {text}")
            case AgentUp(node=name, store_port=port) | StorePort(node=name, port=port):
                self.nodes[name].store_port = port
                self.nodes[name].booted = True
                self.nodes[name].lost = ""
                self._grant()
                self._open_worlds()
            case AgentLost(node=name):
                self._node_lost(name, "its agent ended")
            case Hello(world=name, rank=rank):
                self._hello(name, rank)
            case Death() | LaunchFailed():
                self._broken(message)
            case StackTexts() | RanksStarted():
                self._to_owner(message.world, message)

    # Coming up, and limits.

    def _start(self) -> None:
        if self.started or self.failure:
            return
        self.started = True
        try:
            self.launcher.watch(
                lambda name, reason: self.soon(lambda: self._node_lost(name, reason))
            )
            for gate, nodes in enumerate(self.gates.open()):
                for node in nodes:
                    self.nodes[node.name] = _NodeState(node, gate)
        except MnodeError as error:
            self._fail(type(error).__name__, str(error))
            return
        self._boot_deadline = time.monotonic() + _BOOT_LIMIT_S

    def _set_collect(self, collect: Collect) -> None:
        if self.collect is None:
            self.collect = collect
            self._boot_deadline = time.monotonic() + _BOOT_LIMIT_S
            for gate in self.gates.known:
                self._send(f"gate/{gate}", collect)

    def _check_limits(self) -> None:
        now = time.monotonic()
        if self.started and not self.failure:
            waiting = [s.node.name for s in self.nodes.values() if not s.booted and not s.lost]
            if waiting and self.collect is not None and now > self._boot_deadline:
                self._fail(
                    "TimeLimitError",
                    f"no agent came up on {', '.join(waiting)} within {_BOOT_LIMIT_S:.0f} s; "
                    f"see the logs in {self.facts.log_dir}",
                )
            for gate, how in self.gates.ended().items():
                text = f"the process that guards the ranks there {how}"
                self._fail("WorldError", f"{self.gates.place(gate)}: {text}")
            for gate in self.gates.silent(_SILENCE_LIMIT_S):
                for state in self.nodes.values():
                    if state.gate == gate and not state.lost:
                        self._node_lost(
                            state.node.name, f"nothing heard of it for {_SILENCE_LIMIT_S:.0f} s"
                        )
        for world in list(self.worlds.values()):
            if not world.ready and now > world.deadline:
                missing = sorted(set(range(world.info.shape.size)) - world.hello)
                places = ", ".join(world.info.place(rank) for rank in missing)
                self._launch_failed(
                    world, f"{places} did not come up within {_LAUNCH_LIMIT_S:.0f} s"
                )

    def _fail(self, kind: str, text: str) -> None:
        """The pool cannot work: everybody who waits, and who asks later, is told why."""
        if self.failure is None:
            self.failure = (kind, text)
        waiting: list[tuple[str, LeaseNodes | OpenWorld]] = [*self.queue, *self.opening]
        for client, message in waiting:
            self._send(client, Refused(message.seq, *self.failure))
        self.queue.clear()
        self.opening.clear()
        for world in list(self.worlds.values()):
            if not world.ready:
                self._launch_failed(world, text)
            else:
                self._to_owner(world.info.id, LaunchFailed("", world.info.id, text))

    # Leases.

    def _grant(self) -> None:
        while self.queue:
            client, request = self.queue[0]
            if self.failure:
                self._send(client, Refused(request.seq, *self.failure))
                self.queue.popleft()
                continue
            if not self.started or any(not s.booted and not s.lost for s in self.nodes.values()):
                return
            lost = [s for s in self.nodes.values() if s.lost]
            wanted = len(self.nodes) if request.nodes is None else request.nodes
            if wanted > len(self.nodes) - len(lost):
                text = self._too_few(request, wanted, lost)
                kind = "NodeLostError" if lost else "ClusterError"
                node = lost[0].node.name if lost else ""
                self._send(client, Refused(request.seq, kind, text, node))
                self.queue.popleft()
                continue
            free = [s for s in self.nodes.values() if s.lease is None and not s.lost]
            alone = not self.leases
            occupied = any(lease.exclusive for lease in self.leases.values())
            if len(free) < wanted or occupied or (request.exclusive and not alone):
                return
            lease = _Lease(
                next(self._numbers),
                client,
                tuple(s.node.name for s in free[:wanted]),
                request.exclusive,
            )
            self.leases[lease.id] = lease
            for state in free[:wanted]:
                state.lease = lease.id
            self.queue.popleft()
            self._send(client, Granted(request.seq, lease.id, lease.nodes))

    def _too_few(self, request: LeaseNodes, wanted: int, lost: Sequence[_NodeState]) -> str:
        text = f"{request.label} needs {wanted} nodes and there are {len(self.nodes)}"
        if lost:
            gone = "; ".join(f"{s.node.name} is lost: {s.lost}" for s in lost)
            return f"{text}, of which {gone}"
        return text + f"; ask for more with --mnode-nodes={wanted}"

    def _release(self, lease_id: int) -> None:
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return
        for state in self.nodes.values():
            if state.lease == lease_id:
                state.lease = None
        for world in list(self.worlds.values()):
            if world.lease == lease_id:
                self._stop_world(world.info.id)
        self._grant()

    def _client_gone(self, client: str) -> None:
        self.queue = collections.deque((c, m) for c, m in self.queue if c != client)
        self.opening = [(c, m) for c, m in self.opening if c != client]
        for lease in [x for x in self.leases.values() if x.client == client]:
            self._release(lease.id)

    # Worlds.

    def _open_worlds(self) -> None:
        waiting, self.opening = self.opening, []
        for client, request in waiting:
            lease = self.leases.get(request.lease)
            if lease is None:
                self._send(client, Refused(request.seq, "WorldError", "its nodes were given back"))
                continue
            names = request.nodes or lease.nodes
            shape = Shape(len(names), request.procs_per_node)
            idle = self._idle(shape, names)
            if idle is not None and not request.fresh:
                idle.lease = lease.id
                self._send(client, Opened(request.seq, idle.info))
            elif self._can_launch(names):
                self._launch(client, request, lease, names, shape)
            else:
                self.opening.append((client, request))

    def _can_launch(self, names: Sequence[str]) -> bool:
        states = [self.nodes[name] for name in names]
        return all(s.booted for s in states) and states[0].store_port is not None

    def _idle(self, shape: Shape, names: Sequence[str]) -> _World | None:
        for world in self.worlds.values():
            idle = world.ready and world.lease is None and not world.dead
            if idle and (world.info.shape, world.info.nodes) == (shape, tuple(names)):
                return world
        return None

    def _launch(
        self, client: str, request: OpenWorld, lease: _Lease, names: Sequence[str], shape: Shape
    ) -> None:
        self._make_room(names)
        info = WorldInfo(f"w{next(self._numbers)}", shape, tuple(names), log_dir=self.facts.log_dir)
        self.worlds[info.id] = _World(
            info, lease.id, (client, request), time.monotonic() + _LAUNCH_LIMIT_S
        )
        leader = self.nodes[names[0]]
        port = leader.store_port
        assert port is not None
        leader.store_port = None  # used up; its agent tells the next one
        for node_rank, name in enumerate(names):
            self._to_agent(name, self._order(info, name, node_rank, leader.node.address, port))

    def _order(self, info: WorldInfo, node: str, node_rank: int, addr: str, port: int) -> Launch:
        env = dict(self.facts.env)
        interface = self.nodes[node].node.fabric_interface
        if interface:
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                env.setdefault(name, os.environ.get(name, interface))  # the user's own wins
        return Launch(node, info, node_rank, addr, port, self.facts.backend, env)

    def _make_room(self, names: Sequence[str]) -> None:
        """Stop the oldest idle worlds of nodes that hold as many as they may."""
        for name in names:
            idle = [w for w in self.worlds.values() if w.lease is None and name in w.info.nodes]
            for world in idle[: max(0, len(idle) - self.facts.idle_worlds + 1)]:
                self._stop_world(world.info.id)

    def _hello(self, name: str, rank: int) -> None:
        world = self.worlds.get(name)
        if world is None:
            return
        world.hello.add(rank)
        if len(world.hello) == world.info.shape.size and not world.dead:
            world.ready = True
            client, request = world.asked
            self._send(client, Opened(request.seq, world.info))

    def _close_world(self, message: CloseWorld) -> None:
        world = self.worlds.get(message.world)
        if world is None:
            return
        if message.reusable and not world.dead:
            world.lease = None
            world.info = _reused(world.info)
        else:
            self._stop_world(message.world)

    def _stop_world(self, name: str) -> None:
        world = self.worlds.pop(name, None)
        for node in world.info.nodes if world else ():
            self._to_agent(node, StopWorld(node, name))

    def _broken(self, message: Death | LaunchFailed) -> None:
        world = self.worlds.get(message.world)
        if world is None:
            return
        if isinstance(message, Death):
            world.dead.append(message)
        if not world.ready:
            self._launch_failed(world, _why(message))
        elif world.lease is None:
            self.notices.append(f"{_why(message)} while no test was running; its world was ended")
            self._stop_world(world.info.id)
        else:
            self._to_owner(world.info.id, message)

    def _launch_failed(self, world: _World, why: str) -> None:
        client, request = world.asked
        self._stop_world(world.info.id)
        nodes = ", ".join(world.info.nodes)
        text = f"a world of {world.info.shape} ranks on {nodes} did not start: {why}"
        self._send(client, Refused(request.seq, "WorldError", text))

    def _to_owner(self, world_id: str, message: Any) -> None:
        world = self.worlds.get(world_id)
        lease = self.leases.get(world.lease) if world and world.lease is not None else None
        if lease is not None:
            self._send(lease.client, message)

    # Nodes.

    def _to_agent(self, node: str, message: Any) -> None:
        state = self.nodes.get(node)
        if state is not None:
            self._send(f"gate/{state.gate}", message)

    def _node_lost(self, name: str, reason: str) -> None:
        state = self.nodes.get(name)
        if state is None or state.lost:
            return
        state.lost, state.booted, state.store_port = reason, False, None
        text = f"node {name} is lost: {reason}"
        for world in [w for w in self.worlds.values() if name in w.info.nodes]:
            if world.ready and world.lease is not None:
                self._to_owner(world.info.id, AgentLost(name))
                self.worlds[world.info.id].dead.append(Death(name, world.info.id, -1, 0, None, 9))
            elif world.ready:
                self._stop_world(world.info.id)
            else:
                self._launch_failed(world, text)
        self._grant()

    def _ask_launcher(self, client: str, message: AskLauncher) -> None:
        by_name = {s.node.name: s.node for s in self.nodes.values()}
        if message.method == "address_of":
            self._send(client, Answer(message.seq, by_name[message.args[0]].address))
            return
        method = getattr(self.launcher, message.method, None)
        if method is None:
            raise MnodeError(
                f"the {self.launcher.name} launcher cannot {message.method.replace('_', ' ')}"
            )
        args = [_nodes_for_names(by_name, a) for a in message.args]
        value = method(*args)
        if message.method == "power_on":
            self._boot_agent(message.args[0])
        elif message.method == "power_off":
            self._node_lost(message.args[0], "powered off")
        self._send(client, Answer(message.seq, value))

    def _boot_agent(self, name: str) -> None:
        state = self.nodes[name]
        state.lost, state.booted, state.store_port = "", False, None
        self._boot_deadline = time.monotonic() + _BOOT_LIMIT_S
        self._send(f"gate/{state.gate}", BootAgent(self.gates.entry(state.node)))

    @property
    def lost_nodes(self) -> dict[str, str]:
        """Names of the nodes that are gone, and why."""
        return {s.node.name: s.lost for s in self.nodes.values() if s.lost}


def _nodes_for_names(by_name: dict[str, Node], argument: Any) -> Any:
    if isinstance(argument, str):
        return by_name.get(argument, argument)
    if isinstance(argument, tuple) and all(a in by_name for a in argument):
        return [by_name[a] for a in argument]
    return argument


def _reused(info: WorldInfo) -> WorldInfo:
    return WorldInfo(info.id, info.shape, info.nodes, False, info.log_dir)


def _why(message: Death | LaunchFailed) -> str:
    from pytest_mnode.world.describe import death_line

    if isinstance(message, LaunchFailed):
        return f"{message.node}: {message.text}"
    tail = message.error or message.log
    return death_line(message) + (f"\n{tail}" if tail else "")

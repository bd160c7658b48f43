"""The hub: the part of the controller that owns nodes and worlds, in a thread of its own.

Clients (this pytest process, or each pytest-xdist worker) lease nodes, open worlds on them and talk
to the ranks by name through the hub.
"""

from __future__ import annotations

import contextlib
import pickle
from functools import partial
from typing import Any

from pytest_mnode.controller.agents import Agents, RunDirectories
from pytest_mnode.controller.exchange import CHECK_S, Exchange
from pytest_mnode.controller.launcher_calls import BOOT_LIMIT_S, LauncherCalls
from pytest_mnode.controller.leases import Leases, NodeState
from pytest_mnode.controller.worlds import PoolFacts, Worlds
from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.protocol.agent_messages import (
    AgentAlive,
    AgentFailed,
    Death,
    NodeBooted,
    NodeGone,
    NodeReady,
    PartLost,
    StackTexts,
    StartForkServer,
    StopWorld,
    TakeStacks,
)
from pytest_mnode.protocol.channel import Keys, Switchboard
from pytest_mnode.protocol.hub_messages import (
    Answer,
    AskLauncher,
    ClientGone,
    CloseWorld,
    Collect,
    LeaseNodes,
    OpenWorld,
    Refused,
    ReleaseNodes,
    StartPool,
    StopHub,
    Withdraw,
)
from pytest_mnode.protocol.launcher_requests import (
    DescribeRun,
    PowerOff,
    PowerOn,
)
from pytest_mnode.protocol.rank_messages import Hello
from pytest_mnode.protocol.world import BEAT, HUB

_SILENCE_LIMIT_S = 15.0
_SUSPICION_S = 0.3
_BEAT_S = 1.0


class Hub(Exchange):
    """Start with `start()`, speak to it by a `Client`, end it with `StopHub` and `join`."""

    def __init__(
        self,
        launcher: Launcher,
        switchboard: Switchboard,
        keys: Keys,
        facts: PoolFacts,
        place: RunDirectories,
    ) -> None:
        super().__init__(switchboard)
        self.launcher = launcher
        self.log_dir = facts.log_dir
        self.agents = Agents(launcher, keys, place, self.send)
        # Limits are judged by the time in which the hub could listen.
        self._now = self.agents.clock.now
        self.nodes: dict[str, NodeState] = {}
        self.leases = Leases(self.nodes)
        self.worlds = Worlds(
            facts, self.leases, self.send, self._to_agent, launcher.rank_cpus, now=self._now
        )
        self.collect: Collect | None = None
        self._ranks_wanted = False
        self.failure: tuple[str, str] | None = None
        self._begun = False
        self._boot_deadline = 0.0
        self._next_check = 0.0
        self._next_beat = 0.0
        self._suspects: dict[str, float] = {}
        self._launcher_calls = LauncherCalls(launcher, self.nodes, self.soon)

    def world_size(self, world: str) -> int:
        info = self.worlds.get(world)
        return info.shape.size if info else 0

    def failed(self, error: Exception) -> None:
        # A hub that ends would leave everybody waiting: it says so, and goes on to the end.
        self._fail("WorldError", f"the hub failed: {type(error).__name__}: {error}")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.agents.close()
        self.launcher.close()

    def handle(self, source: str, payload: bytes) -> None:
        message = pickle.loads(payload)
        try:
            self._handle(source, message)
        except MnodeError as error:
            self._refuse(source, getattr(message, "seq", 0), error)

    def _to_agent(self, node: str, message: Any) -> None:
        state = self.nodes.get(node)
        if state is not None:
            self.send(self.agents.peer(state.agent), message)

    def _handle(self, source: str, message: Any) -> None:  # noqa: PLR0912  one case a message
        match message:
            case StartPool():
                self._start()
                self._want_ranks()
            case Collect():
                self._set_collect(message)
            case LeaseNodes():
                self._start()
                self._want_ranks()
                self.leases.ask(source, message)
                self._grant()
            case ReleaseNodes(lease):
                self._release(lease)
            case OpenWorld():
                self.worlds.opening.append((source, message))
                self.worlds.open()
            case CloseWorld():
                self.worlds.close(message)
            case AskLauncher():
                self._ask_launcher(source, message)
            case ClientGone(client):
                self._forget(client)
            case Withdraw(seq):
                self._forget(source, seq)
            case StopHub():
                self.running = False
            case TakeStacks() | StopWorld():
                self._to_agent(message.node, message)
            case AgentAlive(agent, incarnation) if self.agents.is_current(agent, incarnation):
                self.agents.heard(agent)
            case _:
                self._from_below(message)

    def _from_below(self, message: Any) -> None:
        match message:
            case AgentFailed(agent, text, number) if self.agents.is_current(agent, number):
                self._agent_lost(agent, text)
            case NodeReady(name, port):
                self.nodes[name].came(port)
                self._suspects.pop(name, None)
                self._grant()
                self.worlds.open()
            case NodeGone(node=name):
                # Where the whole node went, its launcher is about to say so in better words.
                self._suspects[name] = self._now() + _SUSPICION_S
                self.nodes[name].booted = False
            case Hello(world=name, rank=rank):
                self.worlds.hello(name, rank)
            case Death() | PartLost():
                self.worlds.broke(message)
            case StackTexts():
                self.worlds.to_owner(message.world, message)

    def _start(self) -> None:
        if self._begun or self.failure:
            return
        self._begun = True
        try:
            self.launcher.watch(
                lambda name, reason: self.soon(lambda: self._node_lost(name, reason))
            )
            for agent, nodes in enumerate(self.agents.open()):
                for node in nodes:
                    self.nodes[node.name] = NodeState(node, agent)
        except (MnodeError, OSError) as error:
            self._fail("ClusterError", f"could not start on the nodes: {error}")
            return
        self._boot_deadline = self._now() + BOOT_LIMIT_S

    def _want_ranks(self) -> None:
        if not self._ranks_wanted:
            self._ranks_wanted = True
            self.agents.tell_all(StartForkServer())

    def _set_collect(self, collect: Collect) -> None:
        if self.collect is None:
            self.collect = collect
            self._boot_deadline = self._now() + BOOT_LIMIT_S
            self.agents.tell_all(collect)

    def check_limits(self) -> None:
        now = self._now()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S
        self.worlds.check_limits()
        if not self._begun or self.failure:
            return
        waiting = [s.node.name for s in self.nodes.values() if not s.booted and not s.lost]
        if waiting and self.collect is not None and now > self._boot_deadline:
            text = f"no agent came up on {', '.join(waiting)} within {BOOT_LIMIT_S:.0f} s"
            self._fail("TimeLimitError", f"{text}; see the logs in {self.log_dir}")
        for name in [n for n, due in self._suspects.items() if now > due]:
            del self._suspects[name]
            self._node_lost(name, "its namespaces ended")
        for agent, how in self.agents.ended().items():
            self._agent_lost(agent, how)
        for agent, how in self.agents.silent(_SILENCE_LIMIT_S).items():
            for node in self.agents.nodes[agent]:
                self._node_lost(node.name, how)
        if not self.launcher.shared_kernel and now >= self._next_beat:
            self._next_beat = now + _BEAT_S
            for peer in self.agents.known:
                self.deliver(peer, HUB, BEAT)

    def _agent_lost(self, agent: int, why: str) -> None:
        """An agent ended, or cannot do its work: the run ends where it served all nodes, and its
        own node is lost where there are several."""
        if self.launcher.shared_kernel:
            self._fail("WorldError", f"{self.agents.place(agent)}: {why}")
            return
        for node in self.agents.nodes[agent]:
            self._node_lost(node.name, why)

    def _fail(self, kind: str, text: str) -> None:
        """The pool cannot work: every request, waiting or later, is refused with the reason."""
        if self.failure is None:
            self.failure = (kind, text)
        self._refuse_all()
        self.worlds.fail_all(text)

    def _refuse_all(self) -> None:
        assert self.failure is not None
        waiting: list[tuple[str, LeaseNodes | OpenWorld]] = [
            *self.leases.queue,
            *self.worlds.opening,
        ]
        self.leases.queue.clear()
        self.worlds.opening.clear()
        for client, message in waiting:
            self.send(client, Refused(message.seq, *self.failure))

    def _grant(self) -> None:
        if self.failure:
            self._refuse_all()
            return
        for client, answer in self.leases.answers():
            self.send(client, answer)

    def _release(self, lease: int) -> None:
        self.worlds.stop_leased(lease)
        self.leases.give_back(lease)
        self._grant()

    def _forget(self, client: str, seq: int | None = None) -> None:
        """A client is gone, or waits for the answer to request `seq` no more."""
        self.worlds.forget(client, seq)
        for lease in self.leases.forget(client, seq):
            self._release(lease)
        self._grant()  # the next in the queue may have waited behind it

    def _node_lost(self, name: str, reason: str) -> None:
        state = self.nodes.get(name)
        if state is None or state.lost:
            return
        state.went(reason)
        if not self.launcher.shared_kernel:
            self.agents.drop(state.agent)
        self.worlds.node_lost(name, f"node {name} is lost: {reason}")
        self._grant()

    def _ask_launcher(self, source: str, message: AskLauncher) -> None:
        self._start()
        if isinstance(message.request, DescribeRun):
            if not self.nodes:
                raise MnodeError(self.failure[1] if self.failure else "there are no nodes")
            description = self._launcher_calls.description(self.agents.run_dir)
            self.send(source, Answer(message.seq, description))
        else:
            finish = partial(self._launcher_answered, source, message)
            self._launcher_calls.start(message.request, finish)

    def _launcher_answered(
        self, source: str, message: AskLauncher, value: Any, error: Exception | None
    ) -> None:
        try:
            if error is not None:
                raise error
            match message.request:
                case PowerOn(node):
                    self._boot_agent(node)
                case PowerOff(node):
                    self._node_lost(node, "powered off")
            self.send(source, Answer(message.seq, value))
        except Exception as refused:
            self._refuse(source, message.seq, refused)

    def _refuse(self, client: str, seq: int, error: Exception) -> None:
        kind, text = type(error).__name__, str(error)
        if not isinstance(error, MnodeError):
            kind, text = "ClusterError", f"{kind}: {text}"
        self.send(client, Refused(seq, kind, text, getattr(error, "node", "")))

    def _boot_agent(self, name: str) -> None:
        state = self.nodes[name]
        if not state.lost and name not in self._suspects:
            return  # it was on, or boots already
        state.boots()
        self._suspects.pop(name, None)
        self._boot_deadline = self._now() + BOOT_LIMIT_S
        if self.launcher.shared_kernel:
            self.send(self.agents.peer(state.agent), NodeBooted(self.agents.entry(state.node)))
            return
        try:
            self.agents.open_again(state.agent)
        except (MnodeError, OSError) as error:
            self._node_lost(name, str(error))

"""The hub: the part of the controller that owns nodes and worlds, in its own thread.

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
from pytest_mnode.controller.worlds import PoolFacts, RequestQueue, Worlds
from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.protocol.agent_messages import (
    AgentAlive,
    AgentFailed,
    Death,
    NodeBooted,
    NodeGone,
    NodeReady,
    OwnImports,
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
    LeaseIdleWorlds,
    LeaseNodes,
    OpenWorld,
    ReleaseNodes,
    StartPool,
    StopHub,
    Withdraw,
)
from pytest_mnode.protocol.launcher_requests import DescribeRun, PowerOff, PowerOn
from pytest_mnode.protocol.rank_messages import Hello
from pytest_mnode.protocol.terminal_messages import FromTerminal, LiveOutput, ToTerminal
from pytest_mnode.protocol.world import BEAT, HUB

_SUSPICION_S = 0.3
_BEAT_S = 1.0


class Hub(Exchange):
    """The hub's thread: start it by `start()`, use it by a Client, end it by StopHub and `join`."""

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
        self.agents = Agents(launcher, keys, place, self.send)
        # Only the time in which the hub could listen counts for limits.
        self._now = self.agents.clock.now
        self.nodes: dict[str, NodeState] = {}
        self.leases = Leases(self.nodes)
        self.worlds = Worlds(
            facts, self.leases, self.send, self._to_agent, launcher.rank_start, now=self._now
        )
        self.collect: Collect | None = None
        self._ranks_wanted = False
        self.requests = RequestQueue(self.leases, self.worlds, self.send)
        self._begun = False
        self._boot_deadline = 0.0
        self._next_check = 0.0
        self._next_beat = 0.0
        self._suspects: dict[str, float] = {}
        self._launcher_calls = LauncherCalls(launcher, self.nodes, self.soon)
        # Other machines may take a minute to import torch, so they do that only if ranks need it.
        self._ranks_are_cheap = launcher.shared_kernel

    def world_size(self, world: str) -> int:
        info = self.worlds.get(world)
        return info.shape.size if info else 0

    def failed(self, error: Exception) -> None:
        # Clients of a hub that ended would wait for ever, so it reports the error and continues.
        self.requests.fail("WorldError", f"the hub failed: {type(error).__name__}: {error}")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.agents.close()
        self.launcher.close()

    def handle(self, source: str, payload: bytes) -> None:
        message = pickle.loads(payload)
        try:
            self._handle(source, message)
        except Exception as error:
            # Whatever the error, the client waits for an answer to this request.
            self.requests.refuse(source, getattr(message, "seq", 0), error)
            if not isinstance(error, MnodeError):
                raise

    def _to_agent(self, node: str, message: Any) -> None:
        state = self.nodes.get(node)
        if state is not None:
            self.send(self.agents.peer(state.agent), message)

    def _handle(self, source: str, message: Any) -> None:  # noqa: PLR0912  one case a message
        match message:
            case StartPool():
                self._start(ranks=self._ranks_are_cheap)
            case Collect():
                self._set_collect(message)
            case LeaseNodes():
                self._start(ranks=message.ranks or self._ranks_are_cheap)
                self.requests.lease(source, message)
            case LeaseIdleWorlds(seq):
                self.requests.lease_idle_worlds(source, seq)
            case ReleaseNodes(lease):
                self.requests.release(lease)
            case OpenWorld():
                self._want_ranks()
                self.requests.open_world(source, message)
            case CloseWorld():
                self.worlds.close(message)
            case AskLauncher():
                self._ask_launcher(source, message)
            case ClientGone(client):
                self.requests.forget(client)
            case Withdraw(seq):
                self.requests.forget(source, seq)
            case StopHub():
                self.running = False
            case TakeStacks() | StopWorld() | ToTerminal():
                self._to_agent(message.node, message)
            case AgentAlive(agent, incarnation) if self.agents.is_current(agent, incarnation):
                self.agents.heard(agent)
                if not self._ranks_are_cheap and self.leases.speak(self.agents.nodes[agent]):
                    self.requests.grant()
            case _:
                self._from_below(message)

    def _from_below(self, message: Any) -> None:
        match message:
            case AgentFailed(agent, text, number) if self.agents.is_current(agent, number):
                self._agent_lost(agent, text)
            case OwnImports(files):
                root = self.collect.rootdir if self.collect else "/"
                self.worlds.import_in_ranks(files, root)
            case NodeReady(name, port):
                self.nodes[name].mark_booted(port)
                self._suspects.pop(name, None)
                self.requests.grant()
                self.worlds.open()
            case NodeGone(node=name):
                # If the whole node is lost, its launcher will soon report a better reason.
                self._suspects[name] = self._now() + _SUSPICION_S
                self.nodes[name].booted = False
            case Hello(world=name, rank=rank, only_here=tests):
                self.worlds.hello(name, rank, tests)
            case Death() | PartLost():
                self.worlds.broke(message)
            case StackTexts() | FromTerminal() | LiveOutput():
                self.worlds.to_owner(message.world, message)

    def _start(self, *, ranks: bool = False) -> None:
        if ranks:
            self._want_ranks()
        if self._begun or self.requests.failure:
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
            self.requests.fail("ClusterError", f"could not start on the nodes: {error}")

    def _want_ranks(self) -> None:
        if not self._ranks_wanted:
            self._ranks_wanted = True
            self._boot_deadline = self._now() + BOOT_LIMIT_S
            self.agents.tell_all(StartForkServer())

    def _set_collect(self, collect: Collect) -> None:
        if self.collect is None:
            self.collect = collect
            self._boot_deadline = self._now() + BOOT_LIMIT_S
            self.agents.tell_all(collect)
            if collect.ranks:
                self._want_ranks()

    def check_limits(self) -> None:
        now = self._now()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S
        self.worlds.check_limits()
        if not self._begun or self.requests.failure:
            return
        waiting = [s.node.name for s in self.nodes.values() if not s.booted and not s.lost]
        due = self._ranks_wanted and self.collect is not None and now > self._boot_deadline
        if waiting and due:
            place = self.agents.place_of_run
            kept = f"see the logs in {place.log_dir}"
            logs = "--mnode-log-dir=DIR keeps their logs" if place.logs_are_temporary else kept
            text = f"torch and the tests were not imported on {', '.join(waiting)}"
            self.requests.fail("TimeLimitError", f"{text} within {BOOT_LIMIT_S:.0f} s; {logs}")
        for name in [n for n, due in self._suspects.items() if now > due]:
            del self._suspects[name]
            self._node_lost(name, "its namespaces ended")
        for agent, how in self.agents.ended().items():
            self._agent_lost(agent, how)
        for agent, how in self.agents.silent().items():
            for node in self.agents.nodes[agent]:
                self._node_lost(node.name, how)
        if not self.launcher.shared_kernel and now >= self._next_beat:
            self._next_beat = now + _BEAT_S
            for peer in self.agents.known:
                self.deliver(peer, HUB, BEAT)

    def _agent_lost(self, agent: int, why: str) -> None:
        """Handle an agent that ended or failed: the run ends if the agent served all nodes;
        otherwise only the agent's node is lost."""
        if self.launcher.shared_kernel:
            self.requests.fail("WorldError", f"{self.agents.place(agent)}: {why}")
            return
        for node in self.agents.nodes[agent]:
            self._node_lost(node.name, why)

    def _node_lost(self, name: str, reason: str) -> None:
        state = self.nodes.get(name)
        if state is None or state.lost:
            return
        state.mark_lost(reason)
        if not self.launcher.shared_kernel:
            self.agents.drop(state.agent)
        self.worlds.node_lost(name, f"node {name} is lost: {reason}")
        self.requests.grant()

    def _ask_launcher(self, source: str, message: AskLauncher) -> None:
        self._start()
        if isinstance(message.request, DescribeRun):
            if not self.nodes:
                raise MnodeError(
                    self.requests.failure[1] if self.requests.failure else "there are no nodes"
                )
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
            self.requests.refuse(source, message.seq, refused)

    def _boot_agent(self, name: str) -> None:
        state = self.nodes[name]
        if not state.lost and name not in self._suspects:
            return  # it was on, or is already booting
        state.mark_booting()
        self._suspects.pop(name, None)
        self._boot_deadline = self._now() + BOOT_LIMIT_S
        if self.launcher.shared_kernel:
            self.send(self.agents.peer(state.agent), NodeBooted(self.agents.entry(state.node)))
            return
        try:
            state.node = self.agents.open_again(state.agent)
        except (MnodeError, OSError) as error:
            self._node_lost(name, str(error))

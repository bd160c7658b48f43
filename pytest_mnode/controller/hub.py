"""The hub: a thread of the controller that owns nodes and worlds, and is the switchboard.

Clients (this pytest process, or each pytest-xdist worker) lease nodes, open worlds on them and talk
to the ranks by name through here.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from pytest_mnode.controller.agents import Agents, RunDirectories
from pytest_mnode.controller.leases import Leases, NodeState
from pytest_mnode.controller.worlds import PoolFacts, Worlds
from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.nodes import RunDescription
from pytest_mnode.launchers.power import recover
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
from pytest_mnode.protocol.channel import Keys, LocalLine, Switchboard
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
    LauncherRequest,
    NodeCommands,
    PowerOff,
    PowerOn,
    SwitchPower,
)
from pytest_mnode.protocol.rank_messages import Hello
from pytest_mnode.protocol.world import BEAT, HUB

_BOOT_LIMIT_S = 300.0
_SILENCE_LIMIT_S = 15.0
_CHECK_S = 0.25
_SUSPICION_S = 0.3
_BEAT_S = 1.0


class Hub(threading.Thread):
    """Start with `start()`, speak to it by a `Client`, end it with `StopHub` and `join`."""

    def __init__(
        self,
        launcher: Launcher,
        switchboard: Switchboard,
        keys: Keys,
        facts: PoolFacts,
        place: RunDirectories,
    ) -> None:
        super().__init__(name="mnode-hub", daemon=True)
        self.launcher = launcher
        self.switchboard = switchboard
        self.log_dir = facts.log_dir
        self.agents = Agents(launcher, keys, place)
        # Limits are judged by the time in which the hub could listen.
        self._now = self.agents.clock.now
        self.nodes: dict[str, NodeState] = {}
        self.leases = Leases(self.nodes)
        self.worlds = Worlds(
            facts, self.leases, self._send, self._to_agent, launcher.rank_cpus, now=self._now
        )
        self.collect: Collect | None = None
        self._ranks_wanted = False
        self.failure: tuple[str, str] | None = None
        self._begun = False
        self._boot_deadline = 0.0
        self._calls: deque[Callable[[], None]] = deque()
        self._local: dict[str, LocalLine] = {}
        self._next_check = 0.0
        self._next_beat = 0.0
        self._suspects: dict[str, float] = {}
        self._switching: dict[str, threading.Thread] = {}
        """Who last switched the power of a node: the next one waits for it."""
        self._woken, self._waker = socket.socketpair()
        self._running = True

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.switchboard.socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        while self._running:
            ready = dict(poller.poll(int(_CHECK_S * 1000)))
            try:
                if self._woken.fileno() in ready:
                    self._woken.recv(4096)
                self.turn()
            except Exception as error:
                # A hub that ends would leave everybody waiting: say so, and go on to the end.
                traceback.print_exc()
                self._fail("WorldError", f"the hub failed: {type(error).__name__}: {error}")
        self._close()

    def turn(self) -> None:
        """Do what is to be done now; limits last, after all that is there was read."""
        while self._calls:
            self._calls.popleft()()
        while self._running and (received := self.switchboard.receive()) is not None:
            self._route(*received)
        self._check_limits()

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self.agents.close()
        with contextlib.suppress(Exception):
            self.launcher.close()
        self.switchboard.close()
        self._woken.close()
        self._waker.close()

    def local_line(self, name: str) -> LocalLine:
        """A line for a client in this process."""

        def to_hub(destination: str, payload: bytes) -> None:
            self.soon(lambda: self._route(name, destination, payload))

        line = self._local[name] = LocalLine(to_hub)
        return line

    def soon(self, call: Callable[[], None]) -> None:
        """Have the hub's thread call this; from any thread."""
        self._calls.append(call)
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def _route(self, source: str, destination: str, payload: bytes) -> None:
        if destination == HUB:
            message = pickle.loads(payload)
            try:
                self._handle(source, message)
            except MnodeError as error:
                self._refuse(source, getattr(message, "seq", 0), error)
        elif destination.startswith("world/"):
            name = destination.removeprefix("world/")
            info = self.worlds.get(name)
            for rank in range(info.shape.size) if info else ():
                self.switchboard.send(f"rank/{name}/{rank}", source, payload)
        else:
            self._deliver(destination, source, payload)

    def _deliver(self, destination: str, source: str, payload: bytes) -> None:
        local = self._local.get(destination)
        if local is not None:
            local.inbox.put(payload)
        else:
            self.switchboard.send(destination, source, payload)

    def _send(self, destination: str, message: Any) -> None:
        self._deliver(destination, HUB, pickle.dumps(message))

    def _to_agent(self, node: str, message: Any) -> None:
        state = self.nodes.get(node)
        if state is not None:
            self._send(self.agents.peer(state.agent), message)

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
                self._running = False
            case TakeStacks() | StopWorld():
                self._to_agent(message.node, message)
            case AgentAlive(agent, life) if self.agents.is_current(agent, life):
                # Nothing can be sent to an agent before it was heard of.
                if self.agents.heard(agent):
                    if self._ranks_wanted:
                        self._send(source, StartForkServer())
                    if self.collect is not None:
                        self._send(source, self.collect)
            case _:
                self._from_below(message)

    def _from_below(self, message: Any) -> None:
        match message:
            case AgentFailed(agent, text, life) if self.agents.is_current(agent, life):
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
        self._boot_deadline = self._now() + _BOOT_LIMIT_S

    def _want_ranks(self) -> None:
        if not self._ranks_wanted:
            self._ranks_wanted = True
            self._to_agents(StartForkServer())

    def _set_collect(self, collect: Collect) -> None:
        if self.collect is None:
            self.collect = collect
            self._boot_deadline = self._now() + _BOOT_LIMIT_S
            self._to_agents(collect)

    def _to_agents(self, message: Any) -> None:
        """To those that were heard of; the others get it then."""
        for peer in self.agents.known:
            self._send(peer, message)

    def _check_limits(self) -> None:
        now = self._now()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_S
        self.worlds.check_limits()
        if not self._begun or self.failure:
            return
        waiting = [s.node.name for s in self.nodes.values() if not s.booted and not s.lost]
        if waiting and self.collect is not None and now > self._boot_deadline:
            text = f"no agent came up on {', '.join(waiting)} within {_BOOT_LIMIT_S:.0f} s"
            self._fail("TimeLimitError", f"{text}; see the logs in {self.log_dir}")
        for name in [n for n, due in self._suspects.items() if now > due]:
            del self._suspects[name]
            self._node_lost(name, "its namespaces ended")
        for agent, how in self.agents.ended().items():
            self._agent_lost(agent, how)
        for agent, how in self.agents.silent(_SILENCE_LIMIT_S).items():
            for state in self._served_by(agent):
                self._node_lost(state.node.name, how)
        if not self.launcher.shared_kernel and now >= self._next_beat:
            self._next_beat = now + _BEAT_S
            for peer in self.agents.known:
                self._deliver(peer, HUB, BEAT)

    def _served_by(self, agent: int) -> list[NodeState]:
        return [state for state in self.nodes.values() if state.agent == agent]

    def _agent_lost(self, agent: int, why: str) -> None:
        """An agent ended, or cannot do its work: the run ends where it served all nodes, and its
        own node is lost where there are several."""
        if self.launcher.shared_kernel:
            self._fail("WorldError", f"{self.agents.place(agent)}: {why}")
            return
        for state in self._served_by(agent):
            self._node_lost(state.node.name, why)

    def _fail(self, kind: str, text: str) -> None:
        """The pool cannot work: everybody who waits, and who asks later, is told why."""
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
            self._send(client, Refused(message.seq, *self.failure))

    def _grant(self) -> None:
        if self.failure:
            self._refuse_all()
            return
        for client, answer in self.leases.answers():
            self._send(client, answer)

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
            self._send(source, Answer(message.seq, self._description()))
        else:
            self._call_launcher(source, message.seq, message.request)

    def _call_launcher(self, source: str, seq: int, request: LauncherRequest) -> None:
        """Answer with what the launcher returns. It may take long, and runs in a thread: everybody
        else is served meanwhile, and nodes are heard."""

        def finish(value: Any, error: Exception | None) -> None:
            try:
                if error is not None:
                    raise error
                if isinstance(request, PowerOn):
                    self._boot_agent(request.node)
                elif isinstance(request, PowerOff):
                    self._node_lost(request.node, "powered off")
                self._send(source, Answer(seq, value))
            except Exception as refused:
                self._refuse(source, seq, refused)

        def work() -> None:
            value, error = None, None
            if before is not None:
                before.join(_BOOT_LIMIT_S)
            try:
                value = self._asked(request)
            except Exception as caught:
                error = caught
            self.soon(partial(finish, value, error))

        name = f"mnode-{type(request).__name__}"
        thread, before = threading.Thread(target=work, name=name, daemon=True), None
        if isinstance(request, SwitchPower):
            before = self._switching.get(request.node)
            self._switching[request.node] = thread
        thread.start()

    def _asked(self, request: LauncherRequest) -> Any:
        """The launcher's answer."""
        match request:
            case NodeCommands():
                nodes = [self.nodes[name].node for name in request.nodes]
                return self.launcher.commands(nodes, request.argv)
            case PowerOn() if not self.launcher.shared_kernel:
                return recover(self.launcher, self.nodes[request.node].node)
            case _:
                return self.launcher.ask(request)

    def _refuse(self, client: str, seq: int, error: Exception) -> None:
        kind, text = type(error).__name__, str(error)
        if not isinstance(error, MnodeError):
            kind, text = "ClusterError", f"{kind}: {text}"
        self._send(client, Refused(seq, kind, text, getattr(error, "node", "")))

    def _description(self) -> RunDescription:
        if not self.nodes:
            raise MnodeError(self.failure[1] if self.failure else "there are no nodes")
        launcher = self.launcher
        return RunDescription(
            nodes=tuple(state.node for state in self.nodes.values()),
            shares_kernel=launcher.shared_kernel,
            shares_files=launcher.shared_kernel or launcher.shared_dir is not None,
            scratch=str(launcher.shared_dir or self.agents.run_dir),
            run_id=self.agents.run_dir,
            python=launcher.python,
            allocation=launcher.job_id,
        )

    def _boot_agent(self, name: str) -> None:
        state = self.nodes[name]
        if not state.lost and name not in self._suspects:
            return  # it was on, or boots already
        state.boots()
        self._suspects.pop(name, None)
        self._boot_deadline = self._now() + _BOOT_LIMIT_S
        if self.launcher.shared_kernel:
            self._send(self.agents.peer(state.agent), NodeBooted(self.agents.entry(state.node)))
            return
        try:
            self.agents.open_again(state.agent)
        except (MnodeError, OSError) as error:
            self._node_lost(name, str(error))

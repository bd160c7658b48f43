"""The hub: the part of the controller that owns nodes and worlds, in its own thread.

Clients (this pytest process, or each pytest-xdist worker) lease nodes, open worlds on them and talk
to the ranks by name through the hub. The hub's thread carries their messages, or a client of this
process while it waits for one: during a test the client waits for its ranks nearly all the time,
and a hop through another thread would cost more than the message.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from pytest_mnode.controller.agents import Agents, RunDirectories
from pytest_mnode.controller.leases import (
    Asked,
    Leases,
    NodesRequest,
    NodeState,
    Withdrawn,
    change,
)
from pytest_mnode.controller.worlds import Opening, PoolFacts, Worlds
from pytest_mnode.errors import ClusterError, MnodeError, TimeLimitError, WorldError
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.nodes import RunDescription
from pytest_mnode.launchers.power import recover
from pytest_mnode.protocol.channel import (
    LocalLine,
    Switchboard,
    forget_wakes,
    wake,
    waking_pair,
)
from pytest_mnode.protocol.launcher_requests import (
    DescribeRun,
    LauncherRequest,
    NodeCommands,
    PowerOn,
    SwitchPower,
)
from pytest_mnode.protocol.messages import (
    BEAT,
    BEAT_S,
    HUB,
    Answer,
    Call,
    Collect,
    Collected,
    Death,
    DebuggerAnswer,
    Lease,
    LiveOutput,
    PartLost,
    StackTexts,
    TerminalData,
    WorldInfo,
)

CHECK_S = 0.25


class Exchange:
    """Routes messages by name, and passes those for the hub to its subclass, in the hub's thread.

    Has a thread rather than being one: threads have private attributes, more with each Python, and
    a subclass with an attribute of the same name breaks them or itself.
    """

    def __init__(self, switchboard: Switchboard) -> None:
        self.thread = threading.Thread(target=self._run, name="mnode-hub", daemon=True)
        self.switchboard = switchboard
        self.running = True
        self._calls: deque[Callable[[], None]] = deque()
        self._local: dict[str, LocalLine] = {}
        self._woken, self._waker = waking_pair()
        self._client_carries = False
        self._sleeps = False

    def handle(self, source: str, payload: bytes) -> None:
        """Handle a message for the hub."""
        raise NotImplementedError

    def check_limits(self) -> None:
        """Called several times a second, after all arrived messages were read."""

    def failed(self, error: Exception) -> None:
        """Called with an error that was raised in the hub's thread; the thread continues."""

    def close(self) -> None:
        """Called once, at the end of the thread."""

    def _run(self) -> None:
        own, all_sources = select.poll(), select.poll()
        own.register(self._woken, select.POLLIN)
        all_sources.register(self._woken, select.POLLIN)
        all_sources.register(self.switchboard.descriptor, select.POLLIN)
        while self.running:
            try:
                self._sleeps = True  # set before the check: a call that the check misses wakes it
                if not self._calls:
                    (own if self._client_carries else all_sources).poll(CHECK_S * 1000)
                self._sleeps = False
                forget_wakes(self._woken)
                self.turn()
            except Exception as error:
                traceback.print_exc()
                self.failed(error)
        with contextlib.suppress(Exception):
            self.close()
        self.switchboard.close()
        self._woken.close()
        self._waker.close()

    def turn(self) -> None:
        """Handle all messages and calls; check limits last, after all messages were read."""
        self._read()
        while self._calls:
            self._calls.popleft()()
            self._read()
        self.check_limits()

    def _read(self) -> None:
        """Route the messages that have arrived; those for the hub are handled by `soon`."""
        with self.switchboard.lock:
            for source, destination, payload in self.switchboard.arrived() if self.running else ():
                if destination == HUB:
                    self.soon(partial(self.handle, source, payload))
                else:
                    self._route(source, destination, payload)

    def soon(self, call: Callable[[], None]) -> None:
        """Have the hub's thread call `call`; may be used from any thread."""
        self._calls.append(call)
        if self._sleeps:
            wake(self._waker)

    def local_line(self, name: str) -> LocalLine:
        """A line for a client in this process; only one thread may use it."""

        def to_hub(destination: str, payload: bytes) -> None:
            if destination == HUB:
                self.soon(partial(self.handle, name, payload))
            else:
                self._route(name, destination, payload)

        line = self._local[name] = LocalLine(to_hub, self._carry)
        return line

    def _carry(self, line: LocalLine, wait_s: float | None) -> None:
        """Route messages in a client's thread until one may have arrived for the client."""
        if not self.thread.is_alive():
            line.wait(wait_s)
            return
        self._client_carries = True
        try:
            line.wait(wait_s, self.switchboard.descriptor)
            self._read()
        finally:
            self._client_carries = False

    def send(self, destination: str, message: Any) -> None:
        """Send a message from the hub."""
        self.deliver(destination, HUB, pickle.dumps(message))

    def deliver(self, destination: str, source: str, payload: bytes) -> None:
        local = self._local.get(destination)
        if local is not None:
            local.put(payload, wakes=threading.current_thread() is self.thread)
            return
        self.switchboard.send((destination,), source, payload)

    def _route(self, source: str, destination: str, payload: bytes) -> None:
        """Route a message that is not for the hub."""
        if destination.startswith("world/"):
            _, name, size = destination.split("/")
            ranks = [f"rank/{name}/{rank}" for rank in range(int(size))]
            self.switchboard.send(ranks, source, payload)
        elif destination:
            self.deliver(destination, source, payload)


class Requests:
    """The requests of clients that wait: the hub has no event loop, but once it has read all
    messages, it lets every request go on, in the order in which they came.

    answer: sends a value, or an error, to the client that asked.
    """

    def __init__(self, answer: Callable[[Asked, Any], None]) -> None:
        self._answer = answer
        self._waiting: dict[Asked, Coroutine[Any, Any, Any]] = {}

    def begin(self, asked: Asked, request: Coroutine[Any, Any, Any]) -> None:
        """Raises an error of the request that is no MnodeError, once it is answered."""
        self._waiting[asked] = request
        self._step(asked, request.send, None)

    def go_on(self) -> None:
        """Let every request go on. Raises as `begin`; the others go on at the next call."""
        for asked, request in list(self._waiting.items()):
            self._step(asked, request.send, None)

    def withdraw(self, client: str, seq: int | None = None) -> None:
        """End a client's requests. seq: only this one."""
        for asked, request in list(self._waiting.items()):
            if asked.is_of(client, seq):
                self._step(asked, request.throw, Withdrawn())

    def _step(self, asked: Asked, step: Callable[[Any], object], value: object) -> None:
        try:
            step(value)
        except StopIteration as end:
            answer = end.value
        except Withdrawn:
            del self._waiting[asked]
            return
        except Exception as error:
            answer = error
        else:
            return
        del self._waiting[asked]
        self._answer(asked, answer)
        if isinstance(answer, Exception) and not isinstance(answer, MnodeError):
            raise answer


_SUSPICION_S = 0.3


class Hub(Exchange):
    """The hub: start its `thread`, use it by a Client, end it by `on_stop`."""

    def __init__(
        self,
        launcher: Launcher,
        switchboard: Switchboard,
        facts: PoolFacts,
        place: RunDirectories,
    ) -> None:
        super().__init__(switchboard)
        self.launcher = launcher
        self.agents = Agents(launcher, place, switchboard)
        # Only the time in which the hub could listen counts for limits.
        self._now = self.agents.clock.now
        self.nodes: dict[str, NodeState] = {}
        self.requests = Requests(self._answer)
        self.leases = Leases(self.nodes)
        self.worlds = Worlds(facts, launcher, self.leases, self.send, self._to_agent, now=self._now)
        self.collect: Collect | None = None
        self._ranks_wanted = False
        self._begun = False
        self._boot_deadline = 0.0
        self._next_check = 0.0
        self._next_beat = 0.0
        self._suspects: dict[str, float] = {}
        self._gone_clients: set[str] = set()
        self._switching: dict[str, Future[None]] = {}
        """The end of the last request to switch each node's power; the next one waits for it."""
        # Other machines may take a minute to import torch, so they do that only if ranks need it.
        self._ranks_are_cheap = launcher.shared_kernel

    def turn(self) -> None:
        super().turn()
        self.requests.go_on()

    def failed(self, error: Exception) -> None:
        # Clients of a hub that ended would wait for ever, so it reports the error and continues.
        self._fail(WorldError(f"the hub failed: {type(error).__name__}: {error}"))

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.agents.close()
        try:
            self.launcher.close()
        except MnodeError as error:
            sys.stderr.write(f"mnode: {error}\n")

    def handle(self, source: str, payload: bytes) -> None:
        agent = self.agents.serving.get(source)
        if agent is None and source.startswith("agent/"):
            return  # its node is lost, or has another agent now
        message = None if payload == BEAT else pickle.loads(payload)
        call = message if isinstance(message, Call) else None
        if call is not None and source in self._gone_clients:
            return  # sent before it ended, and read late: it would hold its nodes for ever
        if call is not None and call.seq:
            asked = Asked(source, call.seq)
            self.requests.begin(asked, self._called(asked, call))
            return
        with contextlib.suppress(MnodeError):
            if call is None:
                self._from_below(agent, message)
            else:
                getattr(self, f"on_{call.method}")(*call.args)

    async def _called(self, asked: Asked, call: Call) -> Any:
        return await getattr(self, f"on_{call.method}")(asked, *call.args)

    def _answer(self, asked: Asked, value: Any) -> None:
        if isinstance(value, Exception):
            value = _known(value)
        try:
            payload = pickle.dumps(Answer(asked.seq, value))
        except Exception as error:  # it is a launcher's of other people, or holds theirs
            text = f"an answer that cannot be sent: {type(error).__name__}: {error}"
            known = ClusterError(str(value) if isinstance(value, MnodeError) else text)
            payload = pickle.dumps(Answer(asked.seq, known))
        self.deliver(asked.client, HUB, payload)

    def _to_agent(self, node: str, message: Any) -> None:
        state = self.nodes.get(node)
        if state is not None:
            self.send(self.agents.peer(state.agent), message)

    # Calls of clients; see Call. Those with an answer are coroutines.

    def on_start(self) -> None:
        """Start nodes and agents; also import torch if nodes share this machine's kernel."""
        self._start(ranks=self._ranks_are_cheap)

    def on_collect(self, collect: Collect) -> None:
        if self.collect is None:
            self.collect = collect
            self._boot_deadline = self._now() + self.launcher.limits.imported_s
            self.agents.tell_all(collect)
            if collect.ranks:
                self._want_ranks()

    async def on_lease(self, asked: Asked, *request: Any) -> Lease:
        """request: see NodesRequest."""
        wanted = NodesRequest(asked, *request)
        self._start(ranks=wanted.ranks or self._ranks_are_cheap)
        return await self.leases.lease(wanted)

    async def on_lease_idle_worlds(self, asked: Asked) -> tuple[Lease, tuple[WorldInfo, ...]]:
        """A Lease of no node, and all idle worlds, as they are; their nodes stay free."""
        lease = self.leases.lease_no_node(asked)
        return lease, self.worlds.lease_idle(lease.id)

    def on_release(self, lease: int) -> None:
        self.worlds.stop_leased(lease)
        self.leases.give_back(lease)

    async def on_open_world(self, asked: Asked, *request: Any) -> WorldInfo:
        """request: see Opening."""
        if self.leases.failure is None:
            self._want_ranks()
        return await self.worlds.open(Opening(asked, *request))

    def on_close_world(self, name: str, reusable: bool, new_group: bool, held: bool) -> None:
        self.worlds.close(name, reusable, new_group, held)

    async def on_ask_launcher(self, _: Asked, request: LauncherRequest) -> Any:
        """The launcher's answer."""
        self._start()
        match request:
            case DescribeRun() if self.nodes:
                return self._description()
            case DescribeRun():
                raise self.leases.failure or MnodeError("there are no nodes")
            case SwitchPower():
                return await self._switch_power(request)
            case _:
                return await self._ask_launcher(request)

    async def _switch_power(self, request: SwitchPower) -> Any:
        """Switch a node's power after earlier requests to do so, unless one of them never ends."""
        before, done = self._switching.get(request.node), Future[None]()
        self._switching[request.node] = done
        end = self._now() + self.launcher.limits.imported_s
        try:
            await _until(lambda: before is None or before.done() or self._now() > end)
            value = await self._ask_launcher(request)
            if isinstance(request, PowerOn):
                self._boot_agent(request.node)
            else:
                self._node_lost(request.node, "powered off")
            return value
        finally:
            done.set_result(None)

    async def _ask_launcher(self, request: LauncherRequest) -> Any:
        """Ask the launcher in a thread of its own, so that it does not block the hub."""
        found: Future[Any] = Future()

        def work() -> None:
            try:
                found.set_result(self._of_launcher(request))
            except Exception as error:
                found.set_exception(_known(error))
            self.soon(lambda: None)  # the hub lets the request go on

        name = f"mnode-{type(request).__name__}"
        threading.Thread(target=work, name=name, daemon=True).start()
        await _until(found.done)
        return found.result()

    def on_forget(self, client: str, seq: int | None = None) -> None:
        """Free what a client has that is gone, or no longer waits for the answer to `seq`."""
        if seq is None:
            self._gone_clients.add(client)
        self.worlds.forget(client, seq)
        self.requests.withdraw(client, seq)
        for lease in self.leases.of(client, seq):
            self.on_release(lease)

    def on_order(self, message: Any) -> None:
        """Send a message to the agent of its node."""
        self._to_agent(message.node, message)

    def on_stop(self) -> None:
        self.running = False

    # Calls of agents and ranks.

    def on_node_ready(self, name: str, port: int | None) -> None:
        """Ranks can be started on a node. port: for the store of the next world whose first node it
        is; None: the node's namespaces have ended instead."""
        state = self.nodes[name]
        if state.lost:
            return  # sent before that
        if port is None:
            # If the whole node is lost, its launcher will soon report a better reason.
            self._suspects[name] = self._now() + _SUSPICION_S
            state.booted = False
            return
        state.mark_booted(port)
        self._suspects.pop(name, None)

    def on_hello(self, world: str, rank: int, only_here: tuple[str, ...] = ()) -> None:
        """A rank has started. only_here: tests for ranks that it has and the controller has not."""
        self.worlds.hello(world, rank, only_here)

    def _fail(self, error: MnodeError) -> None:
        """Refuse every request, queued or later, with this error: the pool no longer works."""
        self.leases.failure = self.leases.failure or error
        self.worlds.fail_all(str(error))

    def _from_below(self, agent: int | None, message: Any) -> None:
        """agent: the sender's number, if it is one. message: None for a heartbeat."""
        match message:
            case None if agent is not None:
                self.agents.heard(agent)
                if not self._ranks_are_cheap:
                    self.leases.speak(self.agents.nodes[agent])
            case Collected(failure=str(text)) if text and agent is not None:
                self._agent_lost(agent, text)
            case Collected(files):
                root = self.collect.rootdir if self.collect else "/"
                self.worlds.import_in_ranks(files, root)
            case Death() | PartLost():
                self.worlds.broke(message)
            case StackTexts() | DebuggerAnswer() | TerminalData() | LiveOutput():
                self.worlds.to_owner(message.world, message)

    def _start(self, *, ranks: bool = False) -> None:
        if ranks:
            self._want_ranks()
        if self._begun or self.leases.failure:
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
            self._fail(ClusterError(f"could not start on the nodes: {error}"))

    def _want_ranks(self) -> None:
        if not self._ranks_wanted:
            self._ranks_wanted = True
            self._boot_deadline = self._now() + self.launcher.limits.imported_s
            self.agents.tell_all(Call(0, "import_torch"))

    def check_limits(self) -> None:
        now = self._now()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_S
        if not self._begun or self.leases.failure:
            return
        waiting = [s.node.name for s in self.nodes.values() if not s.booted and not s.lost]
        due = self._ranks_wanted and self.collect is not None and now > self._boot_deadline
        if waiting and due:
            place = self.agents.place_of_run
            kept = f"see the logs in {place.log_dir}"
            logs = "--mnode-log-dir=DIR keeps their logs" if place.logs_are_temporary else kept
            text = f"torch and the tests were not imported on {', '.join(waiting)}"
            limit = f"{self.launcher.limits.imported_s:.0f} s"
            slow = "raise --mnode-start-limit if their storage is slow"
            self._fail(TimeLimitError(f"{text} within {limit}; {logs}; {slow}"))
        for name in [n for n, due in self._suspects.items() if now > due]:
            del self._suspects[name]
            self._node_lost(name, "its namespaces ended")
        for agent, how in self.agents.ended().items():
            self._agent_lost(agent, how)
        for agent, how in self.agents.silent().items():
            for node in self.agents.nodes[agent]:
                self._node_lost(node.name, how)
        if not self.launcher.shared_kernel and now >= self._next_beat:
            self._next_beat = now + BEAT_S
            self.switchboard.send(self.agents.known, HUB, BEAT)

    def _agent_lost(self, agent: int, why: str) -> None:
        """Handle an agent that ended or failed: the run ends if the agent served all nodes;
        otherwise only the agent's node is lost."""
        if self.launcher.shared_kernel:
            self._fail(WorldError(f"{self.agents.place(agent)}: {why}"))
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

    def _of_launcher(self, request: LauncherRequest) -> Any:
        match request:
            case NodeCommands():
                nodes = [self.nodes[name].node for name in request.nodes]
                return self.launcher.commands(nodes, request.argv)
            case PowerOn() if not self.launcher.shared_kernel:
                return recover(self.launcher, self.nodes[request.node].node)
            case _:
                return self.launcher.ask(request)

    def _description(self) -> RunDescription:
        launcher, run_dir = self.launcher, self.agents.place_of_run.run_dir
        return RunDescription(
            nodes=tuple(state.node for state in self.nodes.values()),
            shares_kernel=launcher.shared_kernel,
            shares_files=launcher.shared_kernel or launcher.shared_dir is not None,
            scratch=str(launcher.shared_dir or run_dir),
            run_id=run_dir,
            python=launcher.python,
            allocation=launcher.job_id,
            job_facts=launcher.job_facts,
            env=launcher.env,
            takes_no_jobs=launcher.takes_no_jobs,
            backend=launcher.name,
            limits=launcher.limits,
        )

    def _boot_agent(self, name: str) -> None:
        state = self.nodes[name]
        if not state.lost and name not in self._suspects:
            return  # it was on, or is already booting
        state.mark_booting()
        self._suspects.pop(name, None)
        self._boot_deadline = self._now() + self.launcher.limits.imported_s
        if self.launcher.shared_kernel:
            self.send(self.agents.peer(state.agent), self.agents.entry(state.node))
            return
        try:
            state.node = self.agents.open_again(state.agent)
        except (MnodeError, OSError) as error:
            self._node_lost(name, str(error))


async def _until(condition: Callable[[], bool]) -> None:
    """Wait, also if nobody waits for the request any more, because its end changes nodes."""
    while not condition():
        with contextlib.suppress(Withdrawn):
            await change()


def _known(error: Exception) -> MnodeError:
    """The error; one that clients know if it is of another kind."""
    if isinstance(error, MnodeError):
        return error
    return ClusterError(f"{type(error).__name__}: {error}")

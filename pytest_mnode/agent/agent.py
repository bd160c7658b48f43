"""The agent: the program that a launcher starts on a node, or once for all nodes of one kernel.

It is light (no torch) and never blocks, so it notices at once when the controller is gone (its
standard input ends) and ends all processes below it. It carries messages between the hub and the
processes below, has the fork server start each node's part of a world, and ends such parts.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_mnode import processes
from pytest_mnode.agent import fork_server
from pytest_mnode.agent.orders import read_order, settled, sys_path_here
from pytest_mnode.machine import namespaces, open_files
from pytest_mnode.outcome.describe import returncode_text
from pytest_mnode.protocol.address import family_of
from pytest_mnode.protocol.channel import Line, Pipe, Switchboard, UnixLine, Uplink
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.messages import (
    BEAT,
    BEAT_S,
    HUB,
    RUN,
    AgentOrder,
    Call,
    Collected,
    Launch,
    NodeEntry,
    OpenTerminal,
    PartLost,
    TakeStacks,
    TerminalData,
)
from pytest_mnode.protocol.rank_files import agent_log

LIMIT_S = 5.0
"""How long to wait until killed processes have ended."""


@dataclass(slots=True)
class WorldPart:
    """A node's part of a world.

    pid: its first process, which only enters the namespaces of the node if it has any; 0 until the
    fork server has reported it. end_by: deadline once it must end (time.monotonic), else infinite.
    """

    launch: Launch
    pipe: Pipe
    pid: int = 0
    end_by: float = math.inf

    def end(self) -> None:
        """Set the deadline for `has_ended`, which kills the processes."""
        self.end_by = time.monotonic() + LIMIT_S

    def has_ended(self) -> bool:
        """Kill the part's processes; whether all have ended. Call it until it returns True.

        The elastic launcher is killed last, because it adopts processes that lose their parents
        meanwhile.
        """
        in_time = time.monotonic() < self.end_by
        if self.pid == 0:  # nothing is known to be below it; the launcher ends with its pipe
            if not in_time:
                self.pipe.close()
            return not in_time
        enters = self.launch.namespace_pid is not None  # then its child is the launcher
        launchers = [self.pid, *(processes.children(self.pid) if enters else [])]
        below = [
            pid
            for pid in processes.descendants(self.pid)
            if pid not in launchers and not processes.has_ended(pid)
        ]
        for pid in below:
            processes.kill(pid)
        if below and in_time:
            return False
        for pid in launchers:
            processes.kill(pid)
        self.pipe.close()
        return True


_ENDING_TURN_S = 0.02
_STATUS_S = 1.0
"""Time until the exit status of the fork server is known, after its pipe has ended."""
_FINALIZERS_S = 3.0
"""Time for finalizers of the modules that were imported for ranks, when the run ends."""


def main() -> None:
    text = _first_line()
    if not text:
        return
    order = settled(read_order(text))
    open_files.give_back(order.open_files)
    reads, writes = _own_streams()
    sys.path[:] = sys_path_here(order.sys_path, order)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of standard input ends an agent
    processes.set_name("mnode-agent")
    processes.adopt_orphans()
    server, pid = _fork_server(order, reads, writes)
    try:
        if order.remote:
            ranks = _ranks(order)
            agent = Agent(order, Uplink(order.peer, reads, writes, ranks), server, pid)
        else:
            line = UnixLine(order.peer, order.path, order.token)
            agent = Agent(order, line, server, pid, reads)
        agent.serve()
        agent.end_fork_server()
    finally:
        processes.kill_descendants()
        # Processes that the controller started on nodes would outlive it if a node is this machine.
        processes.end_started_with(RUN, order.run_id)
        shutil.rmtree(order.run_dir, ignore_errors=True)
        # On another machine, commands may have made files at the path of the controller's run_dir.
        if order.remote and not Path(order.run_id, "hub").exists():
            shutil.rmtree(order.run_id, ignore_errors=True)


def _first_line() -> str:
    """The first line of standard input; what follows it is the hub's, and stays there."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line.decode()


def _own_streams() -> tuple[int, int]:
    """The standard input and output, which nothing else uses from now on: what is printed goes to
    the log."""
    reads, writes, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return reads, writes


def _fork_server(order: AgentOrder, *streams: int) -> tuple[Pipe, int]:
    """Pipe to the fork server, which waits until ranks are needed, and the fork server's pid.

    streams: the agent's own, which the fork server and its ranks do not hold open.
    """
    ours, theirs = Pipe.pair()
    agent_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        for fd in streams:
            os.close(fd)
        processes.die_with_parent(agent_pid)
        processes.run_and_exit(lambda: fork_server.main(order, theirs))
    theirs.close()
    return ours, pid


def _ranks(order: AgentOrder) -> Switchboard:
    """Raises SystemExit, in one line, if this machine's directory takes no socket."""
    try:
        return Switchboard(order.path, order.token)
    except OSError as error:
        sys.exit(f"{order.path}: {error.strerror}; name a local directory: --mnode-env=TMPDIR=/tmp")


class Agent:
    """Serves the hub for the nodes of this kernel."""

    def __init__(
        self,
        order: AgentOrder,
        line: Line,
        fork_server: Pipe,
        fork_server_pid: int,
        input_fd: int = -1,
    ) -> None:
        """input_fd: what ends with the controller, unless the line does."""
        self._input_fd = input_fd
        self.order = order
        self.line = line
        self.fork_server = fork_server
        self.fork_server_pid = fork_server_pid
        self.nodes = {entry.name: entry for entry in order.nodes}
        self.parts: dict[tuple[str, str], WorldPart] = {}
        self.ending: list[WorldPart] = []
        self._stores: dict[str, socket.socket] = {}
        self._ready = False
        self._fork_server_status: int | None = None
        self._clock = ListeningClock()
        self._heard: float | None = None
        self._received = 0
        self._next_beat = 0.0
        self._poll = select.poll()
        for source in (input_fd, line.descriptor, fork_server.fileno()):
            if source >= 0:
                self._poll.register(source, select.POLLIN)

    def serve(self) -> None:
        """Serve until the controller is gone, or a hub on another machine is silent."""
        while self.turn():
            self._reap()

    def _reap(self) -> None:
        for pid, status in processes.reap():
            if pid == self.fork_server_pid:
                self._fork_server_status = status

    def turn(self) -> bool:
        """Wait for an event and handle it; False if the controller is gone."""
        now = time.monotonic()
        if now >= self._next_beat:
            self.line.send_bytes(HUB, BEAT)
            self._next_beat = now + BEAT_S
        try:
            while (payload := self.line.receive_bytes(0)) is not None:
                self._from_hub(payload)
        except EOFError:
            return False
        if self.line.received != self._received:  # also a part of a message
            self._received, self._heard = self.line.received, self._clock.now()
        wait_s = _ENDING_TURN_S if self.ending else max(0.0, self._next_beat - time.monotonic())
        ready = {source for source, _ in self._poll.poll(int(wait_s * 1000) + 1)}
        if self._input_fd in ready and not os.read(self._input_fd, 4096):
            return False
        heard = self._heard
        if heard is not None and self._clock.now() > heard + self.order.silence_s:
            sys.stderr.write(f"no message from the controller for {self.order.silence_s:g} s\n")
            return False
        if self.fork_server.fileno() in ready:
            self._from_fork_server()
        for part in [part for part in self.parts.values() if part.pipe.fileno() in ready]:
            self._from_part(part)
        self._end_processes()
        return True

    def _from_hub(self, payload: bytes) -> None:
        if payload == BEAT:
            return
        message = pickle.loads(payload)
        match message:
            case Launch():
                self._launch(message)
            case Call(method="stop_world", args=(node, world)):
                if (part := self.parts.pop((node, world), None)) is not None:
                    self._end(part)
            case TakeStacks() | OpenTerminal() | TerminalData():
                part = self.parts.get((message.node, message.world))
                # A launcher that does not read its pipe is stopped and would send no stacks.
                if part is not None and part.pipe.has_room():
                    with contextlib.suppress(OSError):
                        part.pipe.send_bytes(payload)
            case NodeEntry(name):
                self.nodes[name] = message
                if self._ready:
                    self._offer(message)
            case _:
                with contextlib.suppress(OSError):  # it ended; its EOF is handled elsewhere
                    self.fork_server.send_bytes(payload)

    def _from_fork_server(self) -> None:
        try:
            payloads = self.fork_server.receive()
        except EOFError:
            self._poll.unregister(self.fork_server.fileno())
            self._send(Collected(failure=self._how_it_ended()))
            return
        for payload in payloads:
            match pickle.loads(payload):
                case Collected(failure=str(text)) if text:
                    self._send(Collected(failure=text))
                case Collected():
                    self._ready = True
                    self.line.send_bytes(HUB, payload)
                    for entry in self.nodes.values():
                        self._offer(entry)
                case Call(method="forked", args=(node, world, pid)):
                    parts = [*self.parts.values(), *self.ending]
                    for part in parts:
                        if (part.launch.node, part.launch.world.id) == (node, world):
                            part.pid = pid

    def _send(self, message: Any) -> None:
        self.line.send(HUB, message)

    def end_fork_server(self) -> None:
        """Have it end by itself, if it has imported tests."""
        self.fork_server.close()
        if self._ready:
            self._await_fork_server(_FINALIZERS_S)

    def _await_fork_server(self, limit_s: float) -> int | None:
        """Its wait status; None if it has not ended within the limit."""
        limit = time.monotonic() + limit_s
        while self._fork_server_status is None and time.monotonic() < limit:
            time.sleep(0.01)
            self._reap()
        return self._fork_server_status

    def _how_it_ended(self) -> str:
        status = self._await_fork_server(_STATUS_S)
        how = "ended" if status is None else returncode_text(os.waitstatus_to_exitcode(status))
        log = agent_log(self.order.log_dir, self.order.agent, self.order.incarnation)
        tail = log.read_text(errors="replace")[-2000:].strip() if log.exists() else ""
        what = f"the process that imports torch and the tests {how}"
        return f"{what}:\n{tail}" if tail else what

    def _offer(self, entry: NodeEntry) -> None:
        """Open the port for the store of the next world whose first node this is; report it."""
        try:
            pid = entry.namespace_pid
            with contextlib.nullcontext() if pid is None else namespaces.network_of(pid):
                family = family_of(entry.address)
                store = socket.create_server((entry.address, 0), family=family, backlog=2048)
        except OSError as error:
            if entry.namespace_pid is None:  # the node itself exists
                text = f"{entry.name} cannot listen at its address {entry.address}: {error}"
                self._send(Collected(failure=text))
            else:
                self._send(Call(0, "node_ready", (entry.name, None)))
            return
        if (old := self._stores.pop(entry.name, None)) is not None:
            old.close()
        self._stores[entry.name] = store
        self._send(Call(0, "node_ready", (entry.name, store.getsockname()[1])))

    def _launch(self, launch: Launch) -> None:
        # The controller may be on another machine, with another log directory.
        entry, world = self.nodes[launch.node], replace(launch.world, log_dir=self.order.log_dir)
        launch = replace(launch, world=world, namespace_pid=entry.namespace_pid)
        leads = launch.node_rank == 0
        store = self._stores.pop(launch.node, None) if leads else None
        if leads and store is None:
            self._send(PartLost(launch.node, launch.world.id, "no port for the store"))
            return
        ours, theirs = Pipe.pair()
        fds = [theirs.fileno(), *([store.fileno()] if store is not None else [])]
        try:
            self.fork_server.send(launch, fds)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it ended; handling its EOF fails this world too
        except OSError as error:
            self._send(PartLost(launch.node, launch.world.id, f"fork server unreachable: {error}"))
        else:
            self.parts[launch.node, launch.world.id] = WorldPart(launch, ours)
            self._poll.register(ours.fileno(), select.POLLIN)
        theirs.close()
        if store is not None:
            store.close()
            self._offer(entry)

    def _from_part(self, part: WorldPart) -> None:
        """Forward the messages of a part's elastic launcher to the hub, or report its end."""
        node, world = part.launch.node, part.launch.world.id
        try:
            for payload in part.pipe.receive():
                self.line.send_bytes(HUB, payload)
        except EOFError:
            del self.parts[node, world]
            self._end(part)
            namespace_pid = self.nodes[node].namespace_pid
            if namespace_pid is not None and processes.is_ending(namespace_pid):
                # The nodes' launcher reports the reason.
                self._send(Call(0, "node_ready", (node, None)))
            else:
                self._send(PartLost(node, world, "the elastic launcher of this node ended"))

    def _end(self, part: WorldPart) -> None:
        self._poll.unregister(part.pipe.fileno())
        part.end()
        self.ending.append(part)
        self._end_processes()

    def _end_processes(self) -> None:
        """Kill the processes of ending parts, in as many turns as that takes."""
        self.ending = [part for part in self.ending if not part.has_ended()]


if __name__ == "__main__":
    main()

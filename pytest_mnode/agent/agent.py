"""One a node, inside it: forks worlds, stops them with all they started, takes stacks."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mnode.agent import elastic, process
from pytest_mnode.machine import namespaces
from pytest_mnode.machine.threads import native_frames, threads_text
from pytest_mnode.outcome import calls
from pytest_mnode.protocol.messages import (
    AgentUp,
    Death,
    GateOrder,
    Launch,
    NodeEntry,
    PartLost,
    RanksStarted,
    StackTexts,
    StopWorld,
    StorePort,
    TakeStacks,
)
from pytest_mnode.rank import traces
from pytest_mnode.rank.progress import read_progress

if TYPE_CHECKING:
    from pytest_mnode.rank.session import Follower

STACK_SIGNAL = signal.SIGRTMIN + 5
"""Asks a rank for its stacks: high enough that no library uses it."""

_STACKS_LIMIT_S = 0.6


def main(order: GateOrder, entry: NodeEntry, forge: Connection, follower: Follower) -> None:
    """Entry of the forked process, still outside its node."""
    if entry.namespace_pid is not None:
        namespaces.enter(entry.namespace_pid)
        outside = os.getpid()
        inside = os.fork()
        if inside:  # only a child is in the PID namespace; this one stays as its parent
            process.close_all_but(set())
            namespaces.set_process_name("mnode-door")
            os.waitpid(inside, 0)
            os._exit(0)
        process.die_with_parent(outside)
    namespaces.set_process_name("mnode-agent")
    process.adopt_orphans()
    try:
        Agent(order, entry, forge, follower).serve()
    except (EOFError, ConnectionError):
        pass  # the forge is gone, or closed this agent's line to boot another
    finally:
        process.kill_descendants()


@dataclass(slots=True)
class _Running:
    """What this node has of a world."""

    launch: Launch
    elastic_pid: int
    connection: Connection
    pids: dict[int, int] = field(default_factory=dict)


class Agent:
    """Serves the orders of the hub for one node."""

    def __init__(
        self, order: GateOrder, entry: NodeEntry, forge: Connection, follower: Follower
    ) -> None:
        self.order = order
        self.entry = entry
        self.forge = forge
        self.follower = follower
        self.worlds: dict[str, _Running] = {}
        self.store = self._new_store_socket()

    def _new_store_socket(self) -> socket.socket:
        """A listening socket on a port the system chose, for the next world led from here."""
        return socket.create_server((self.entry.address, 0), backlog=2048)

    def _send(self, message: Any) -> None:
        self.forge.send_bytes(pickle.dumps(message))

    def serve(self) -> None:
        port = self.store.getsockname()[1]
        self._send(AgentUp(self.entry.name, socket.gethostname(), port))
        while True:
            for ready in wait([self.forge, *(w.connection for w in self.worlds.values())]):
                if ready is self.forge:
                    self._obey(pickle.loads(self.forge.recv_bytes()))
                else:
                    self._from_elastic(ready)
            process.reap()

    def _obey(self, message: Any) -> None:
        match message:
            case Launch():
                self._launch(message)
            case StopWorld(world=world):
                self._stop(world)
            case TakeStacks(world=world, native=ranks) if ranks:
                self._send(StackTexts(self.entry.name, world, native=self._native(world, ranks)))
            case TakeStacks(world=world, look=look):
                texts = StackTexts(self.entry.name, world) if look else self._stacks(world)
                self._send(replace(texts, calls=self._calls(world), look=look))

    def _from_elastic(self, connection: Any) -> None:
        world = next((w for w in self.worlds.values() if w.connection is connection), None)
        if world is None:
            return  # stopped meanwhile
        try:
            message = connection.recv()
        except (EOFError, OSError):  # OSError: it ended in the middle of a message
            self._stop(world.launch.world.id)
            text = "the elastic launcher of this node ended"
            self._send(PartLost(self.entry.name, world.launch.world.id, text))
            return
        if isinstance(message, RanksStarted):
            world.pids = message.pids
            return
        if isinstance(message, Death):
            # The dead give no stacks: waiting for one would hold up the world that comes next.
            world.pids = {local: pid for local, pid in world.pids.items() if pid != message.pid}
        self._send(message)

    def _launch(self, launch: Launch) -> None:
        # The controller may be another machine, where logs lie elsewhere.
        launch = replace(launch, world=replace(launch.world, log_dir=self.order.log_dir))
        leads = launch.node_rank == 0
        listening = self.store if leads else None
        ours, theirs = Pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            keep = {theirs.fileno()} | ({listening.fileno()} if listening else set())
            self._close_mine(keep | {ours.fileno()})
            ours.close()
            process.die_with_parent(parent)
            process.run_and_exit(
                lambda: elastic.main(self.order, launch, theirs, listening, self.follower)
            )
        theirs.close()
        self.worlds[launch.world.id] = _Running(launch, pid, ours)
        if leads:
            self.store.close()
            self.store = self._new_store_socket()
            self._send(StorePort(self.entry.name, self.store.getsockname()[1]))

    def _close_mine(self, keep: set[int]) -> None:
        for connection in (self.forge, *(w.connection for w in self.worlds.values())):
            if connection.fileno() not in keep:
                connection.close()
        if self.store.fileno() not in keep:
            self.store.close()

    def _stop(self, world_id: str) -> None:
        world = self.worlds.pop(world_id, None)
        if world is None:
            return
        world.connection.close()
        # Ranks first, then what they started, which the kernel gave to this process by then.
        doomed = [world.elastic_pid, *process.descendants(world.elastic_pid)]
        for pid in doomed:
            process.kill(pid)
        process.reap()
        elastics = {w.elastic_pid for w in self.worlds.values()}
        for pid in process.children(os.getpid()):
            if pid not in elastics:
                for lost in (pid, *process.descendants(pid)):
                    process.kill(lost)
        process.reap()

    def _stacks(self, world_id: str) -> StackTexts:
        """What faulthandler writes in each rank of this node, all asked at once."""
        world = self.worlds.get(world_id)
        if world is None:
            return StackTexts(self.entry.name, world_id)
        info = world.launch.world
        first = world.launch.node_rank * info.shape.procs_per_node
        files = {first + local: traces.stack_file(info, first + local) for local in world.pids}
        for local, pid in world.pids.items():
            files[first + local].write_text("")
            process.kill(pid, STACK_SIGNAL)
        end = time.monotonic() + _STACKS_LIMIT_S
        sizes = dict.fromkeys(files, 0)
        while time.monotonic() < end:
            time.sleep(0.02)
            now = {rank: _size(path) for rank, path in files.items()}
            if all(now.values()) and now == sizes:
                break
            sizes = now
        texts = {rank: path.read_text(errors="replace") for rank, path in files.items()}
        pids = {first + local: pid for local, pid in world.pids.items()}
        return StackTexts(
            self.entry.name,
            world_id,
            texts,
            {rank: _output(pid) for rank, pid in pids.items()},
            {rank: process.state(pid) for rank, pid in pids.items() if not texts[rank]},
            {rank: read_progress(traces.mark_file(info, rank)) for rank in pids},
            kernel={rank: threads_text(pid) for rank, pid in pids.items()},
        )

    def _native(self, world_id: str, ranks: Sequence[int]) -> dict[int, str]:
        """C stacks of ranks of this node, all taken at the same time."""
        world = self.worlds.get(world_id)
        if world is None:
            return {}
        first = world.launch.node_rank * world.launch.world.shape.procs_per_node
        pids = {rank: world.pids[rank - first] for rank in ranks if rank - first in world.pids}
        with ThreadPoolExecutor() as pool:
            return dict(zip(pids, pool.map(native_frames, pids.values()), strict=True))

    def _calls(self, world_id: str) -> dict[int, str]:
        """The record of every rank of this node, also of one that died."""
        world = self.worlds.get(world_id)
        if world is None:
            return {}
        info = world.launch.world
        first = world.launch.node_rank * info.shape.procs_per_node
        ranks = range(first, first + info.shape.procs_per_node)
        read = {rank: calls.read(traces.calls_file(info, rank)) for rank in ranks}
        return {rank: text for rank, text in read.items() if text is not None}


def _output(pid: int) -> str:
    """The end of what a rank's test has printed so far."""
    tails = []
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
            tails.append(traces.tail_of_fd(opened))
            os.close(opened)
    return "".join(tails)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

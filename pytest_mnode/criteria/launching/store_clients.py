"""Clients of a store, run by ranks: each is a thread with a connection of its own.

Each connects, writes its key, waits until all have come, reads its neighbour's key, and passes a
barrier, as ranks that make a group do.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World

_SPARE_FILES = 64
_LONG_S = 1.0
"""If connecting takes longer, the time of a name look-up is measured."""


@dataclass(frozen=True, slots=True)
class RankClients:
    """The clients of one rank. Times are of its slowest client, in s from the common start.

    connected_s, all_came_s, passed_s: when it had connected, knew that all had come, and had passed
    the barrier; None if a client never did. wrong: number of neighbours' keys that were wrong.
    errors: of clients, one line each. look_up_s: of a name look-up; None if not measured.
    """

    rank: int
    node: str
    clients: int
    connected_s: float | None = None
    all_came_s: float | None = None
    passed_s: float | None = None
    wrong: int = 0
    errors: tuple[str, ...] = ()
    look_up_s: float | None = None


class Start:
    """The common start of threads, given or called off; no thread waits longer than `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._decided = threading.Event()
        self._off = False

    def given(self) -> bool:
        """Wait in a thread for the start; False if it is called off or does not come in time."""
        return self._decided.wait(self._limit_s) and not self._off

    def run(self, threads: Sequence[threading.Thread], agree: Callable[[], None]) -> float:
        """Start all threads, agree with the other ranks, give the start, and wait for the threads.

        Returns the time of the start, by this process's clock. If a thread cannot be started, or
        the ranks do not agree, the start is called off.
        """
        started = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
            agree()
        except BaseException:
            self._off = True
            raise
        finally:
            began = time.perf_counter()
            self._decided.set()
            for thread in started:
                thread.join()
        return began


@dataclass(slots=True)
class _Client:
    """A client, and the times of its three steps by this rank's clock."""

    number: int
    at: list[float] = field(default_factory=list)
    wrong: bool = False
    error: str = ""

    def run(self, address: str, port: int, clients: int, limit: timedelta, start: Start) -> None:
        """Run all steps of the client in a thread; the client's connection ends with the thread."""
        if not start.given():
            self.error = f"client {self.number}: the start was called off"
            return
        from torch._C._distributed_c10d import TCPStore

        try:
            store = TCPStore(address, port, None, False, limit, False)
            self.at.append(time.perf_counter())
            store.set(f"client/{self.number}", str(self.number))
            barrier(store, "came", clients, limit)
            self.at.append(time.perf_counter())
            neighbour = (self.number + 1) % clients
            self.wrong = store.get(f"client/{neighbour}").decode() != str(neighbour)
            barrier(store, "through", clients, limit)
            self.at.append(time.perf_counter())
        except (RuntimeError, OSError) as error:
            self.error = f"client {self.number}: {error}".splitlines()[0]


def run_clients(clients: int, round_name: str, limit_s: float, *, world: World) -> RankClients:
    """Run this rank's share of the clients of a store that rank 0 opens and closes.

    round_name: unique in a world.
    """
    from torch._C._distributed_c10d import TCPStore

    limit = timedelta(seconds=limit_s)
    address = os.environ["MASTER_ADDR"]
    meeting = TCPStore(address, int(os.environ["MASTER_PORT"]), None, False, limit, False)
    mine = range(world.rank, clients, world.size)
    files = len(mine) + (clients if world.rank == 0 else 0) + _SPARE_FILES
    with _open_files(files) as refused:
        _agree(meeting, f"{round_name}/refused", refused, world, limit)
        refusals = [meeting.get(f"{round_name}/refused/{r}").decode() for r in range(world.size)]
        if any(refusals):
            own = (refused,) if refused else ()
            return RankClients(world.rank, world.node, len(mine), errors=own)
        server = None
        if world.rank == 0:
            server = TCPStore(address, 0, None, True, limit, False)
            meeting.set(f"{round_name}/port", str(server.port))
        port = int(meeting.get(f"{round_name}/port"))
        found = [_Client(number) for number in mine]
        # Twice the limit, because the threads' wait begins before that of the agreement.
        start = Start(2 * limit_s)
        threads = [
            threading.Thread(target=client.run, args=(address, port, clients, limit, start))
            for client in found
        ]
        began = start.run(threads, lambda: _agree(meeting, f"{round_name}/start", "", world, limit))
        _agree(meeting, f"{round_name}/end", "", world, limit)
        del server
    return _rank_clients(world, found, began)


def barrier(store: Any, name: str, clients: int, limit: timedelta) -> None:
    """A barrier of this number of clients; each `name` can be used once."""
    if store.add(f"{name}/count", 1) == clients:
        store.set(f"{name}/all", "yes")
    store.wait([f"{name}/all"], limit)


def _agree(store: Any, name: str, text: str, world: World, limit: timedelta) -> None:
    """Write a text for the other ranks, and wait until all ranks have written theirs."""
    store.set(f"{name}/{world.rank}", text)
    barrier(store, name, world.size, limit)


@contextlib.contextmanager
def _open_files(wanted: int) -> Iterator[str]:
    """Raise the limit of open files for a while; yields why that is impossible, else ""."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted and hard != unlimited and hard < wanted:
        yield (
            f"{socket.gethostname()}: a process may have {hard} open files (hard limit), and "
            f"{wanted} are needed; raise nofile"
        )
        return
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield ""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _rank_clients(world: World, found: Sequence[_Client], began: float) -> RankClients:
    def latest(step: int) -> float | None:
        if any(len(client.at) <= step for client in found):
            return None
        return max((client.at[step] - began for client in found), default=0.0)

    return RankClients(
        world.rank,
        world.node,
        len(found),
        latest(0),
        latest(1),
        latest(2),
        sum(client.wrong for client in found),
        tuple(client.error for client in found if client.error),
        _look_up_s() if (latest(0) or 0.0) > _LONG_S else None,
    )


def _look_up_s() -> float:
    began = time.perf_counter()
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(os.environ["MASTER_ADDR"])
        socket.getnameinfo((f"::ffff:{address}", 0, 0, 0), 0)
    return time.perf_counter() - began

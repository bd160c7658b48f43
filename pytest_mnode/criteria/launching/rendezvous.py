"""How fast ranks make a process group, and how many clients their store serves: measured in ranks,
judged here.

Each client of a store under load is a thread of a rank with a connection of its own. It connects,
writes its key, waits until all have come, reads its neighbour's key, and passes a barrier, as ranks
that make a group do.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import MnodeError, RankError
from pytest_mnode.measurement import (
    Bound,
    HeadlineMark,
    Measurement,
    all_of,
    at_least,
    at_most,
    equals,
    listed,
)
from pytest_mnode.progress import progress
from pytest_mnode.spec import Spec
from pytest_mnode.spec.launch import RendezvousPromise, StorePromise

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
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


_KEY = "mnode-rendezvous"
_STANDS_OUT = 3.0
"""A rank is named if its own connection takes this many times the median of all ranks, and …"""
_LEAST_S = 0.1
"""… exceeds the median by this time, so that no scheduling delay is blamed."""
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank's times, s. connect_s: its own connection to the store and two round trips, without
    waiting for other ranks. init_s: init_process_group, started by all ranks together; None if
    it failed with `error`."""

    rank: int
    node: str
    connect_s: float
    init_s: float | None
    error: str = ""


def time_init(backend: str | None, limit_s: float, *, world: World) -> RankTimes:
    """Make a process group as a job does, in a rank without one, and destroy it."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    if backend != "gloo" and torch.accelerator.is_available():
        torch.accelerator.set_device_index(world.local_rank % torch.accelerator.device_count())
    limit = timedelta(seconds=limit_s)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    began = time.perf_counter()
    socket.getaddrinfo(address, port)
    store = TCPStore(address, port, None, False, limit, False)
    store.set(f"{_KEY}/{world.rank}", "here")
    store.get(f"{_KEY}/{world.rank}")
    connect_s = time.perf_counter() - began
    try:
        barrier(store, f"{_KEY}/begin", world.size, limit)
        began = time.perf_counter()
        dist.init_process_group(backend, timeout=limit)
        init_s = time.perf_counter() - began
        # To ranks that still connect, a group that has ended looks like a dead peer.
        barrier(store, f"{_KEY}/end", world.size, limit)
    except RuntimeError as error:
        return RankTimes(world.rank, world.node, connect_s, None, str(error).partition("\n")[0])
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return RankTimes(world.rank, world.node, connect_s, init_s)


def measured_rendezvous(
    cluster: Cluster, promise: RendezvousPromise, spec: Spec
) -> list[Measurement]:
    """Have fresh ranks make a group, and judge the time of the slowest rank."""
    devices, nodes = spec.accelerators.per_node, len(cluster.nodes)
    each = ranks_per_node(promise.ranks, nodes, devices)
    name = f"init_process_group over {each * nodes} ranks"
    limit_s = 4 * promise.within_s + 10
    try:
        with cluster.world(procs_per_node=each, fresh=True) as world:
            backend = None if devices else "gloo"
            times = world.run(time_init, backend, limit_s, timeout=2 * limit_s)
    except MnodeError as error:
        why = first_error(str(error))
        bound, source = _within(promise)
        kept = error.culprit if isinstance(error, RankError) else None
        who = Culprit.of_record(kept) if kept else None
        return [
            Measurement.unknown(name, why, unit="s", expected=bound, source=source, culprit=who)
        ]
    ranks = judged_ranks(times, promise, name, nodes=nodes, devices=devices)
    return [ranks, *judged_times(times, promise, name)]


def ranks_per_node(wanted: int, nodes: int, accelerators: int) -> int:
    """The fewest ranks per node for `wanted` in total; at most one per accelerator, if any."""
    each = -(-wanted // nodes)
    return min(each, accelerators) if accelerators else each


def first_error(text: str) -> str:
    """The line with the error in a report of failed ranks; the first line if none has one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = (line for line in lines if _ERROR.match(line))
    return next(errors, lines[0] if lines else "no message")


def judged_ranks(
    times: Sequence[RankTimes], promise: RendezvousPromise, name: str, *, nodes: int, devices: int
) -> Measurement:
    """Number of ranks that made a group; inconclusive if these nodes cannot have enough ranks.

    devices: accelerators per node, one per rank; 0 if ranks share CPUs.
    """
    without = [one for one in times if one.init_s is None]
    value: int | None = len(times) - len(without)
    note = ""
    if 0 < devices * nodes < promise.ranks:
        value = None
        note = (
            f"{nodes} nodes × {devices} accelerators allow {nodes * devices} ranks; "
            f"the promised number needs {-(-promise.ranks // devices)} nodes"
        )
    key = "criteria.launch.rendezvous.ranks"
    bound, source = at_least(promise.ranks).of(key, promise.ranks), f"{key} {promise.ranks}"
    culprit = None
    if without:  # one of them keeps the others from meeting
        words = f"rank {without[0].rank} on {without[0].node}"
        culprit = Culprit(words, either=[{one.node for one in without}])
    return Measurement(f"{name}: ranks", value, "", bound, source, culprit, note)


def judged_times(
    times: Sequence[RankTimes], promise: RendezvousPromise, name: str
) -> list[Measurement]:
    """Times of the slowest init_process_group, and of the slowest connection of a rank alone."""
    slow = all_of(
        Culprit(
            f"{one.node} (rank {one.rank}: {one.connect_s:.2f} s to connect to the store alone)",
            one.node,
        )
        for one in slow_ranks(times)
    )
    failed = [one for one in times if one.init_s is None]
    last = max(times, key=lambda one: one.init_s or 0.0)
    none = Culprit(f"no single rank; rank {last.rank} on {last.node} was the last")
    connects = [one.connect_s for one in times]
    bound, source = _within(promise)
    return [
        Measurement(
            name,
            None if failed else last.init_s,
            "s",
            bound,
            source,
            slow or none,
            f"rank {failed[0].rank} on {failed[0].node}: {failed[0].error}" if failed else "",
            headline=HeadlineMark(after=f"until {len(times)} ranks met", order=1),
        ),
        Measurement(
            f"{name}: own connection of the slowest rank",
            max(connects),
            "s",
            bound,
            source,
            slow,
            f"median of all ranks {statistics.median(connects):.3f} s",
        ),
    ]


def slow_ranks(times: Sequence[RankTimes]) -> list[RankTimes]:
    """Ranks whose own connection stands out, the slowest of each node, and the slowest first."""
    least_s = _outlier_s([one.connect_s for one in times])
    slow = sorted(times, key=lambda one: one.connect_s, reverse=True)
    slowest = {one.node: one for one in reversed(slow) if one.connect_s > least_s}
    return [one for one in slow if one is slowest.get(one.node)]


def _outlier_s(times_s: Sequence[float]) -> float:
    """Times that are longer stand out."""
    usual = statistics.median_low(times_s)
    return max(_STANDS_OUT * usual, usual + _LEAST_S)


def _within(promise: RendezvousPromise) -> tuple[Bound, str]:
    """The bound of all times, and its source."""
    key, within_s = "criteria.launch.rendezvous.within", promise.within_s
    return at_most(within_s).of(key, within_s), f"{key} {within_s:g} s"


_LONG_LOOK_UP = 0.3
"""A name look-up that takes more than this share of the whole time is the cause."""


@dataclass(frozen=True, slots=True)
class StoreLoad:
    """Results of one number of clients, by rank. failed: why there are none; "" if there are."""

    clients: int
    ranks: tuple[RankClients, ...]
    failed: str = ""

    @property
    def errors(self) -> list[str]:
        """Errors of clients and ranks, each with its node."""
        own = [f"{rank.node}: {error}" for rank in self.ranks for error in rank.errors]
        return [self.failed, *own] if self.failed else own

    def latest(
        self, step: Callable[[RankClients], float | None]
    ) -> tuple[float, RankClients] | None:
        """Time and rank of the slowest client at a step; None if a client never reached it."""
        times = [(value, rank) for rank in self.ranks if (value := step(rank)) is not None]
        if not times or len(times) < len(self.ranks):
            return None
        return max(times, key=lambda one: one[0])


def table(loads: Sequence[StoreLoad]) -> str:
    """One line for each number of clients, with the time of its slowest client at each step."""
    steps: Sequence[Callable[[RankClients], float | None]] = (
        lambda rank: rank.connected_s,
        lambda rank: rank.all_came_s,
        lambda rank: rank.passed_s,
    )
    lines = ["clients  connected  all came  barrier passed (s, slowest client)"]
    for one in loads:
        found = [one.latest(step) for step in steps]
        words = [f"{at[0]:.3f}" if at else "never" for at in found]
        lines.append(f"{one.clients:7d}  {words[0]:>9}  {words[1]:>8}  {words[2]:>14}")
    return "\n".join(lines)


def measured_loads(cluster: Cluster, promise: StorePromise) -> list[StoreLoad]:
    """Have a store of rank 0 serve each number of clients in turn."""
    limit_s = 3 * promise.within_s + 5
    found: list[StoreLoad] = []
    try:
        with cluster.world(fresh=True) as world:
            for clients in promise.clients:
                progress(f"{clients} clients", len(found), len(promise.clients))
                name = f"mnode-store-{clients}"
                ranks = world.run(run_clients, clients, name, limit_s, timeout=3 * limit_s)
                found.append(StoreLoad(clients, tuple(ranks)))
    except MnodeError as error:
        why = first_error(str(error))
        found += [StoreLoad(n, (), why) for n in promise.clients[len(found) :]]
    return found


def judged_loads(loads: Sequence[StoreLoad], promise: StorePromise) -> list[Measurement]:
    """The time of each number of clients, and the number of wrong keys.

    A time is inconclusive after a client's error, or if the limit of open files is too low.
    """
    source = f"criteria.launch.store.within {promise.within_s:g} s"
    judged = []
    for one in loads:
        last = one.latest(lambda rank: rank.passed_s) if not one.errors else None
        judged.append(
            Measurement(
                f"store: {one.clients} clients connected, exchanged keys and passed a barrier",
                last[0] if last else None,
                "s",
                at_most(promise.within_s).of("criteria.launch.store.within", promise.within_s),
                source,
                _slowest(one, last[1]) if last else None,
                listed(one.errors, 3),
            )
        )
    ranks = [rank for one in loads for rank in one.ranks]
    unread = not ranks or any(one.errors for one in loads)
    wrong = [Culprit.rank(f"rank {r.rank} on {r.node}", r.node, r.rank) for r in ranks if r.wrong]
    return [
        *judged,
        Measurement(
            "store: wrong keys",
            sum(rank.wrong for rank in ranks) if wrong or not unread else None,
            "",
            equals(0),
            "each client reads its neighbour's key",
            all_of(wrong, 16, ", "),
        ),
    ]


def _slowest(one: StoreLoad, last: RankClients) -> Culprit:
    """Nodes with slow name look-ups or much later clients; else the rank of the last client."""
    long_s = _LONG_LOOK_UP * (last.passed_s or 0.0)
    blamed = [
        Culprit(f"{rank.node} (looking up the store's address took {took_s:.1f} s)", rank.node)
        for rank in one.ranks
        if (took_s := rank.look_up_s or 0.0) > long_s
    ]
    if 1 < len(blamed) == len(one.ranks):
        return Culprit(str(all_of(blamed)))  # of the name server, perhaps
    times = [(rank.connected_s, rank) for rank in one.ranks if rank.connected_s is not None]
    least_s = _outlier_s([took_s for took_s, _ in times])
    blamed = blamed or [
        Culprit(f"{rank.node} (clients of rank {rank.rank}: {took_s:.2f} s to connect)", rank.node)
        for took_s, rank in times
        if took_s > least_s
    ]
    return all_of(blamed) or Culprit(f"{last.node} (clients of rank {last.rank} last)")

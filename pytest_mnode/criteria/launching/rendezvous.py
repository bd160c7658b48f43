"""The time that ranks take to make a process group: measured in the ranks, judged here."""

from __future__ import annotations

import os
import re
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.store_clients import barrier
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import MnodeError
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, at_least, at_most
from pytest_mnode.spec import Spec
from pytest_mnode.spec.launch import RendezvousPromise

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.rank.world import World

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
        return [Measurement.unknown(name, why, unit="s", expected=bound, source=source)]
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
    slow = slow_rank(times)
    failed = [one for one in times if one.init_s is None]
    last = max(times, key=lambda one: one.init_s or 0.0)
    culprit = Culprit(f"no single rank; rank {last.rank} on {last.node} was the last")
    if slow:
        alone = f"{slow.connect_s:.2f} s to connect to the store alone"
        culprit = Culprit(f"{slow.node} (rank {slow.rank}: {alone})", slow.node)
    connects = [one.connect_s for one in times]
    bound, source = _within(promise)
    return [
        Measurement(
            name,
            None if failed else last.init_s,
            "s",
            bound,
            source,
            culprit,
            f"rank {failed[0].rank} on {failed[0].node}: {failed[0].error}" if failed else "",
            headline=HeadlineMark(after=f"until {len(times)} ranks met", order=1),
        ),
        Measurement(
            f"{name}: own connection of the slowest rank",
            max(connects),
            "s",
            bound,
            source,
            culprit if slow else None,
            f"median of all ranks {statistics.median(connects):.3f} s",
        ),
    ]


def slow_rank(times: Sequence[RankTimes]) -> RankTimes | None:
    """The rank whose own connection stands out; None if all took about the same time."""
    slowest = max(times, key=lambda one: one.connect_s)
    return slowest if stands_out([one.connect_s for one in times]) else None


def stands_out(times_s: Sequence[float]) -> bool:
    """Whether the longest of these times is an outlier."""
    usual, longest = statistics.median_low(times_s), max(times_s)
    return longest > _STANDS_OUT * usual and longest - usual > _LEAST_S


def _within(promise: RendezvousPromise) -> tuple[Bound, str]:
    """The bound of all times, and its source."""
    key, within_s = "criteria.launch.rendezvous.within", promise.within_s
    return at_most(within_s).of(key, within_s), f"{key} {within_s:g} s"

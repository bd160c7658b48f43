"""How long ranks take to make a process group, measured in the ranks and judged here."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.absent import gist
from pytest_mnode.criteria.launching.clients import all_here
from pytest_mnode.errors import MnodeError

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.launch import RendezvousPromise

_KEY = "mnode-rendezvous"
_STANDS_OUT = 3.0
"""A rank is named where its own part is so many times the median of all ranks', and …"""
_LEAST_S = 0.1
"""… that much longer, so that no scheduling delay is blamed."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank's times, s. connect_s: its own connection to the store and two round trips, with
    nobody to wait for. init_s: init_process_group, begun by all ranks together; None where it
    failed, and `error` says how."""

    rank: int
    node: str
    connect_s: float
    init_s: float | None
    error: str = ""


def time_init(backend: str | None, limit_s: float, *, world: World) -> RankTimes:
    """In a rank that has no group: make one as a job does, and end it."""
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
        all_here(store, f"{_KEY}/begin", world.size, limit)
        began = time.perf_counter()
        dist.init_process_group(backend, timeout=limit)
        init_s = time.perf_counter() - began
        # A group that ends while others still connect to it looks to them like a dead peer.
        all_here(store, f"{_KEY}/end", world.size, limit)
    except RuntimeError as error:
        return RankTimes(world.rank, world.node, connect_s, None, str(error).partition("\n")[0])
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return RankTimes(world.rank, world.node, connect_s, init_s)


def slow_rank(times: Sequence[RankTimes]) -> RankTimes | None:
    """The rank whose own part stands out; None where all took about as long."""
    slowest = max(times, key=lambda one: one.connect_s)
    return slowest if stands_out([one.connect_s for one in times]) else None


def stands_out(times_s: Sequence[float]) -> bool:
    """Whether the longest of these times is one that the others do not explain."""
    usual, longest = statistics.median_low(times_s), max(times_s)
    return longest > _STANDS_OUT * usual and longest - usual > _LEAST_S


def ranks_per_node(wanted: int, nodes: int, accelerators: int) -> int:
    """As few a node as make `wanted` in all; one an accelerator where there are."""
    each = -(-wanted // nodes)
    return min(each, accelerators) if accelerators else each


def record_rendezvous(
    cluster: Cluster, promise: RendezvousPromise, spec: Spec, measure: Measure
) -> None:
    """Have fresh ranks make a group, and record how long the slowest took."""
    devices = spec.accelerators.per_node
    each = ranks_per_node(promise.ranks, len(cluster.nodes), devices)
    size = each * len(cluster.nodes)
    backend = None if devices else "gloo"
    limit_s = 4 * promise.within_s + 10
    name = f"init_process_group over {size} ranks"
    source = f"criteria.launch.rendezvous.within {promise.within_s:g} s"
    try:
        with cluster.world(procs_per_node=each, fresh=True) as world:
            times = world.run(time_init, backend, limit_s, timeout=2 * limit_s)
    except MnodeError as error:
        why = gist(str(error))
        measure(name, None, "s", at_most=promise.within_s, source=source, note=why)
        return
    judge_ranks(times, promise, name, measure, nodes=len(cluster.nodes), devices=devices)
    judge_times(times, promise, name, measure)


def judge_ranks(
    times: Sequence[RankTimes],
    promise: RendezvousPromise,
    name: str,
    measure: Measure,
    *,
    nodes: int,
    devices: int,
) -> None:
    """Record how many ranks have a group: no answer where these nodes cannot have enough of them.

    devices: accelerators of a node, of which a rank has one; 0 where ranks share processors.
    """
    short = 0 < devices * nodes < promise.ranks
    needed = -(-promise.ranks // devices) if devices else 0
    without = [one for one in times if one.init_s is None]
    measure(
        f"{name}: ranks",
        None if short else len(times) - len(without),
        at_least=promise.ranks,
        source=f"criteria.launch.rendezvous.ranks {promise.ranks}",
        culprit=f"rank {without[0].rank} on {without[0].node}" if without else None,
        note=f"{nodes} nodes × {devices} accelerators have {nodes * devices} ranks; "
        f"{needed} nodes have as many as are promised"
        if short
        else "",
    )


def judge_times(
    times: Sequence[RankTimes], promise: RendezvousPromise, name: str, measure: Measure
) -> None:
    """Record the slowest rank's init_process_group, and how long its own part of it took."""
    source = f"criteria.launch.rendezvous.within {promise.within_s:g} s"
    slow = slow_rank(times)
    failed = [one for one in times if one.init_s is None]
    last = max(times, key=lambda one: one.init_s or 0.0)
    usual = f"no rank by itself; rank {last.rank} on {last.node} was the last"
    measure(
        name,
        None if failed else last.init_s,
        "s",
        at_most=promise.within_s,
        source=source,
        culprit=_named(slow) if slow else usual,
        note=f"rank {failed[0].rank} on {failed[0].node}: {failed[0].error}" if failed else "",
    )
    connects = [one.connect_s for one in times]
    measure(
        f"{name}: own connection of the slowest rank",
        max(connects),
        "s",
        at_most=promise.within_s,
        source=source,
        culprit=_named(slow) if slow else None,
        note=f"median of all ranks {statistics.median(connects):.3f} s",
    )


def _named(rank: RankTimes) -> str:
    return f"{rank.node} (rank {rank.rank}: {rank.connect_s:.2f} s to connect to the store alone)"

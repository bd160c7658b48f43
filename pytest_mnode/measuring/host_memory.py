"""Bandwidth of the host's memory, by NUMA node: all of its cores copy at once, in its own memory.

A memory channel that is missing takes its share from one NUMA node: an eighth or a twelfth. The
ranks of a node share its NUMA nodes out, and all are measured at once; nodes that share one machine
take turns, with one thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.numa import NumaNode, read_numa
from pytest_mnode.measuring.copies import running_on
from pytest_mnode.measuring.devices import ROUNDS, Work, calls_to_fill, repeat_s
from pytest_mnode.measuring.rank_rates import COMPARISONS, FALSE_ALARM, Comparison, RankRate, cause
from pytest_mnode.measuring.ranks import barrier, gathered, share_a_machine
from pytest_mnode.rank import mempolicy
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import HostMemoryPromise

_MOST_THREADS = 32
"""Fewer cores than those of a large socket saturate its memory."""
_TIMES = 8
"""Copies of a call, between which threads do not wait for each other."""
_HOST = torch.device("cpu")
Pair = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def numa_of_rank(nodes: Sequence[NumaNode], local_rank: int, local_size: int) -> list[NumaNode]:
    """The NUMA nodes that a rank measures, one after another: those of all ranks are all."""
    able = [node for node in nodes if node.cpus and node.memory_bytes]
    return able[local_rank::local_size]


def compare_host_memory(
    promise: HostMemoryPromise,
    world: World,
    device: torch.device,
    *,
    comparisons: int = COMPARISONS,
) -> Comparison:
    """Compare copies in the memory of all NUMA nodes of all nodes. All ranks call this.

    comparisons: number of comparisons of the certificate, see `Task`.
    """
    shared = share_a_machine(world)
    mine = numa_of_rank(read_numa().nodes, world.local_rank, world.local_size)
    slots = max(gathered(len(mine)))
    found: dict[int, RankRate] = {}
    again = {node.number for node in mine}
    kind = ("host memory", "GB/s", promise, promise.at_least_gbytes_s)
    how = f"median of {promise.repeats}, " + (
        "one node at a time and one thread, because nodes share a machine"
        if shared
        else f"by up to {_MOST_THREADS} threads of each NUMA node, all at once"
    )
    for _ in range(ROUNDS):
        for slot in range(slots):
            for turn in range(len(world.nodes)) if shared else [world.nodes.index(world.node)]:
                barrier(device)
                numa = mine[slot] if slot < len(mine) else None
                if numa is None or numa.number not in again or world.nodes[turn] != world.node:
                    continue
                row = _measured(numa, promise, world, shared=shared)
                before = found.get(numa.number)
                if before is None or (row.rate or 0.0) > (before.rate or 0.0):
                    found[numa.number] = row
        rows = tuple(row for of_rank in gathered(tuple(found.values())) for row in of_rank)
        share = FALSE_ALARM / comparisons
        compared = Comparison(*kind, rows, how, shared, share, "NUMA node")
        bound = compared.bound
        slow = {rows[i].name for i in (*bound.slow, *bound.unsure)} if bound else set()
        again = {number for number, row in found.items() if row.name in slow}
        if not slow:
            break
    return compared


def _measured(
    numa: NumaNode, promise: HostMemoryPromise, world: World, *, shared: bool
) -> RankRate:
    """The rate of one NUMA node now."""
    name = Culprit.device(
        f"NUMA node {numa.number} of {world.node}", world.node, f"NUMA node {numa.number}"
    )
    allowed = os.sched_getaffinity(0)
    cpus = sorted((numa.cpus or frozenset()) & allowed if shared else numa.cpus or ())
    if shared and not cpus:
        cpus = sorted(allowed)  # the node is bound elsewhere on the one machine
    threads = 1 if shared else min(len(cpus), _MOST_THREADS)
    chosen = cpus[:: max(1, len(cpus) // threads)][:threads]
    try:
        with copying(numa.number, chosen, promise.size_bytes) as work:
            work.call()
            calls = calls_to_fill(work, shared)
            timed = [repeat_s(work, calls, shared, None) for _ in range(promise.repeats)]
    except (OSError, MemoryError, RuntimeError) as error:
        return RankRate(name, None, str(error).partition("\n")[0])
    rates = [work.amount * calls / seconds for seconds, _ in timed]
    why = cause(timed[-1][1], shared, None, world.node)
    return RankRate(name, median(rates), why, repeats=tuple(rates))


@contextlib.contextmanager
def copying(number: int, cpus: Sequence[int], size_bytes: int) -> Iterator[Work]:
    """Copies in a NUMA node's memory by a thread on each of `cpus`; raises OSError, MemoryError."""
    each = size_bytes // len(cpus)
    if len(cpus) == 1:
        # In this thread, whose waiting for a CPU is known.
        with running_on(frozenset(cpus)):
            pair = _pair(number, each)
            yield Work(_TIMES * each / 1e9, lambda: _copy(pair), _HOST)
        return
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in cpus]
        made = [
            pool.submit(_pinned, number, cpu, each) for pool, cpu in zip(pools, cpus, strict=True)
        ]
        pairs = [one.result() for one in made]

        def call() -> None:
            copies: list[Future[None]] = [
                pool.submit(_copy, pair) for pool, pair in zip(pools, pairs, strict=True)
            ]
            for copy in copies:
                copy.result()

        yield Work(_TIMES * each * len(cpus) / 1e9, call, _HOST)


def _pinned(number: int, cpu: int, size_bytes: int) -> Pair:
    os.sched_setaffinity(0, [cpu])  # of this thread alone
    return _pair(number, size_bytes)


def _pair(number: int, size_bytes: int) -> Pair:
    """Where the policy may not be set, as in many containers, the first touch places pages too."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(mempolicy.only(number))
        return np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)


def _copy(pair: Pair) -> None:
    for _ in range(_TIMES):
        np.copyto(pair[1], pair[0])

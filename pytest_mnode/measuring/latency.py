"""Latency of small messages between pairs of nodes.

Judges import this in the controller, so that torch is imported by what measures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import TYPE_CHECKING

from pytest_mnode.measuring.locating.rounds import Pair, circle

if TYPE_CHECKING:
    import torch

    from pytest_mnode.rank.world import World

SIZES_BYTES = (8, 1 << 10)
"""Far below the plateau, where a rate says nothing about a node."""
TIMES_AS_LONG = 3.0
"""A node is slow if its messages take more than this many times as long as those of most nodes."""
_FLOOR_S, _SHARED_FLOOR_S = 20e-6, 500e-6
"""Smaller times are not compared: they differ by distance (NVLink, leaf, spine), and where nodes
share a machine by whose turn it is on a core."""
EXCHANGES, _WARMUP = 10, 2
_REPEATS, _MOST_REPEATS = 3, 8
_ALL_PAIRS_UP_TO = 16
_ROUNDS = 5
"""Rounds of more nodes: each node has a pair in each."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Times of a message of one size, one way, s. The same on every rank.

    by_pair: of nodes, the slowest of their local ranks, each with the least of its repeats' medians
    over 10 exchanges. least_s: times below are taken for this one.
    """

    size_bytes: int
    repeats: int
    least_s: float
    by_pair: Mapping[Pair, float]

    @property
    def by_node(self) -> dict[int, float]:
        """A node's fastest pair: a slow node has none, and slows no other node's fastest."""
        found: dict[int, float] = {}
        for pair, time_s in self.by_pair.items():
            for node in pair:
                found[node] = min(found.get(node, time_s), time_s)
        return found

    @property
    def usual_s(self) -> float:
        """Time of the median node."""
        return max(self.least_s, median_low(self.by_node.values()))

    @property
    def slow(self) -> list[int]:
        """Nodes whose messages take too long."""
        limit_s = TIMES_AS_LONG * self.usual_s
        return [node for node, time_s in sorted(self.by_node.items()) if time_s > limit_s]


def latencies(world: World, device: torch.device) -> tuple[Latencies, ...]:
    """Latencies of each size; of more than 16 nodes, of five pairs of each node.

    All ranks call this together.
    A busy machine delays any message: pairs are measured again, up to 8 times, while one is slow.
    """
    from pytest_mnode.measuring.ranks import share_a_machine

    rounds = rounds_of(len(world.nodes))
    least_s = _SHARED_FLOOR_S if share_a_machine(world) else _FLOOR_S
    return tuple(_latencies(world, size, least_s, rounds, device) for size in SIZES_BYTES)


def rounds_of(nodes: int) -> Sequence[Sequence[Pair]]:
    """Rounds of pairs: all of them, or of many nodes about five."""
    rounds = circle(nodes)
    return rounds if nodes <= _ALL_PAIRS_UP_TO else rounds[:: len(rounds) // _ROUNDS]


def _latencies(
    world: World,
    size_bytes: int,
    least_s: float,
    rounds: Sequence[Sequence[Pair]],
    device: torch.device,
) -> Latencies:
    import torch

    from pytest_mnode.measuring.ranks import by_rank

    message = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    best: dict[Pair, list[float]] = {}
    found: Latencies | None = None
    repeats = 0
    while found is None or repeats < _REPEATS or (found.slow and repeats < _MOST_REPEATS):
        repeats += 1
        for pairs in rounds:
            every = by_rank([_exchanged_s(world, message, pairs, device)], device)
            for pair in pairs:
                first = pair[0] * world.local_size
                times = [time_s for [time_s] in every[first : first + world.local_size]]
                best[pair] = list(map(min, times, best.get(pair, times)))
        by_pair = {pair: max(times) for pair, times in best.items()}
        found = Latencies(size_bytes, repeats, least_s, by_pair)
    return found


def _exchanged_s(
    world: World, message: torch.Tensor, pairs: Sequence[Pair], device: torch.device
) -> float:
    """Median time, one way, of exchanges with this rank's partner; 0 without a partner."""
    import torch.distributed as dist

    from pytest_mnode.measuring.locating.pairs import Transfer
    from pytest_mnode.measuring.ranks import finish

    node, local = divmod(world.rank, world.local_size)
    partner = next((sum(pair) - node for pair in pairs if node in pair), None)
    if partner is None:
        return 0.0
    peer = partner * world.local_size + local
    calls = (dist.isend, dist.irecv) if (node, partner) in pairs else (dist.irecv, dist.isend)
    times = []
    for _ in range(_WARMUP + EXCHANGES):
        finish(device)
        started = time.perf_counter()
        for call in calls:
            Transfer(call, message, peer).finish()
        times.append((time.perf_counter() - started) / 2)
    return median(times[_WARMUP:])

"""Bandwidth inside each node: all-reduce over its ranks, and exchanges of pairs of them.

All nodes at once, each in a group of its own, so that no NIC carries anything; nodes that share one
machine take turns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.distributed as dist

from pytest_mnode.culprit import Culprit
from pytest_mnode.measuring.devices import MOST_CALLS, REPEAT_S, ROUNDS
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.rank_rates import COMPARISONS, FALSE_ALARM, Comparison, RankRate
from pytest_mnode.measuring.ranks import (
    backend_on,
    by_rank,
    elapsed_s,
    finish,
    send_and_receive,
    share_a_machine,
)
from pytest_mnode.rank.world import World
from pytest_mnode.skipping import not_promised
from pytest_mnode.spec import Spec
from pytest_mnode.spec.alpha_beta import Algorithm, CollectiveModel, Platform
from pytest_mnode.spec.bandwidth import Collective, bus_factor
from pytest_mnode.spec.devices import InsideNodePromise


def compare_inside_nodes(
    promise: InsideNodePromise,
    spec: Spec,
    world: World,
    device: torch.device,
    *,
    comparisons: int = COMPARISONS,
) -> tuple[Comparison, Comparison]:
    """All-reduce of the nodes, and exchanges of the ranks; both in GB/s. All ranks call this.

    The first is bus bandwidth, of each node's slowest rank. The second is what a rank sends and
    receives at once, the median over its partners: an accelerator with half its links is slow with
    all of them. Ends the test as not promised with one rank a node.
    """
    each = world.local_size
    if each < 2:
        not_promised("one rank on each node exchanges nothing inside it")
    shared, values = share_a_machine(world), max(1, promise.size_bytes // 4)
    nodes = [list(range(first, first + each)) for first in range(0, world.size, each)]
    groups = [dist.new_group(ranks) for ranks in nodes]  # all ranks make all groups
    own, mine = nodes[world.rank // each], groups[world.rank // each]
    try:
        buffer = torch.zeros(values, device=device)
        summed = functools.partial(dist.all_reduce, buffer, group=mine)
        moved = bus_factor(Collective.ALL_REDUCE, each) * buffer.nbytes / 1e9
        whole = _Measured(world, device, promise, shared, lambda: [(summed, moved)])
        arrived = torch.zeros_like(buffer)

        def pairs() -> list[tuple[Callable[[], object], float]]:
            exchanges: list[tuple[Callable[[], object], float]] = []
            for away in range(1, each):
                place = own.index(world.rank)
                to, source = own[(place + away) % each], own[(place - away) % each]
                call = functools.partial(send_and_receive, buffer, to, arrived, source, mine)
                exchanges.append((call, buffer.nbytes / 1e9))
            return exchanges

        names = [Culprit(node, node) for node in world.nodes]
        all_reduce = whole.compared(
            *(
                "all-reduce inside the node",
                names,
                floor_gbytes_s(promise, spec, each, backend_on(device)),
            ),
            *("node", comparisons),
        )
        exchanged = _Measured(world, device, promise, shared, pairs).compared(
            "exchanges inside the node",
            *([rank_name(world, rank) for rank in range(world.size)], None, "rank", comparisons),
        )
    finally:
        finish(device)
        dist.destroy_process_group(mine)
    return all_reduce, exchanged


def floor_gbytes_s(
    promise: InsideNodePromise, spec: Spec, ranks_per_node: int, backend: str
) -> float | None:
    """What the promise asks of a ring over the platform's links; None where these are not known.

    A ring, because nothing that the library may choose instead is slower when chosen well.
    """
    platform, fraction = Platform.of(spec), promise.model_at_least_fraction
    if fraction is None or platform.nvlink is None:
        return None
    model = CollectiveModel(platform, Collective.ALL_REDUCE, 1, ranks_per_node, backend)
    return fraction * model.busbw_gbytes_s(Algorithm.RING, promise.size_bytes)


class _Measured:
    """Rates of calls that the ranks of each node make together, in rounds while one seems slow."""

    def __init__(
        self,
        world: World,
        device: torch.device,
        promise: InsideNodePromise,
        shared: bool,
        calls: Callable[[], list[tuple[Callable[[], object], float]]],
    ) -> None:
        self._world, self._device, self._promise = world, device, promise
        self._turns = range(len(world.nodes)) if shared else [None]
        self._shared, self._calls = shared, calls()

    def compared(
        self, name: str, names: Sequence[Culprit], floor: float | None, of: str, comparisons: int
    ) -> Comparison:
        """names: of nodes, whose slowest rank counts, or of ranks."""
        promise, best = self._promise, [list[float]() for _ in names]
        each = self._world.size // len(names)
        how = "one node at a time" if self._shared else "all nodes at once"
        how = f"median of {promise.repeats}, {how}"
        for _ in range(ROUNDS):
            every = self._round()
            for i, old in enumerate(best):
                ranks = every[i * each : (i + 1) * each]
                new = [min(of_repeat) for of_repeat in zip(*ranks, strict=True)]
                best[i] = max([old, new], key=lambda one: median(one) if one else 0.0)
            rows = tuple(
                RankRate(of_whom, median(rates), "", repeats=tuple(rates))
                for of_whom, rates in zip(names, best, strict=True)
            )
            found = Comparison(
                *(name, "GB/s", promise, floor, rows, how, self._shared),
                *(FALSE_ALARM / comparisons, of),
            )
            bound = found.bound
            if bound is None or not (bound.slow or bound.unsure):
                break
        return found

    def _round(self) -> list[list[float]]:
        """Rates of the repeats, by rank; each is the median over the kinds of calls."""
        device, repeats = self._device, self._promise.repeats
        rates: list[list[float]] = []
        for call, amount in self._calls:
            of_call = [0.0] * repeats
            for turn in self._turns:
                by_rank([0.0], device)
                if self._works(turn):
                    call()  # connects
                took = [elapsed_s(call, 1, device) if self._works(turn) else 0.0]
                slowest = max(seconds for [seconds] in by_rank(took, device))
                count = max(1, min(MOST_CALLS, math.ceil(REPEAT_S / max(slowest, 1e-6))))
                if self._works(turn):
                    of_call = [
                        amount * count / elapsed_s(call, count, device) for _ in range(repeats)
                    ]
            rates.append(of_call)
        mine = [median(of_repeat) for of_repeat in zip(*rates, strict=True)]
        return by_rank(mine, device)

    def _works(self, turn: int | None) -> bool:
        return turn is None or self._world.nodes[turn] == self._world.node

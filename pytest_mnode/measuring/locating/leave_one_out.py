"""Finds a node that is slow only in company: all_reduce over all nodes but one, for each node."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from pytest_mnode.measuring.ranks import by_rank, elapsed_s
from pytest_mnode.rank.world import World
from pytest_mnode.spec.bandwidth import Collective, busbw_gbytes_s

FEWEST_NODES, MOST_NODES = 3, 16
"""Of two nodes nothing is left to compare."""
_CALLS = 2


def only_restorer(without: Sequence[float], whole: float, enough: float) -> int | None:
    """The node without which the rate comes back, where that is one node; None otherwise. Pure.

    without: rate by the node left out; whole: of all nodes; enough: what is promised. The rate of
    no other node's absence comes halfway up to it.
    """
    best = max(range(len(without)), key=lambda node: without[node])
    others = [rate for node, rate in enumerate(without) if node != best]
    if whole >= enough or without[best] < enough:
        return None
    return best if max(others) < (whole + without[best]) / 2 else None


def slow_in_company(
    world: World, size_bytes: int, enough_gbytes_s: float, device: torch.device, budget_s: float
) -> str:
    """The node without which all_reduce reaches its rate, in words; "" where that is no one node.

    enough_gbytes_s: bus bandwidth promised. Tried twice, so that a disturbed reading names nobody.
    All ranks call this; no measurement begins after `budget_s`.
    """
    nodes = len(world.nodes)
    if not FEWEST_NODES <= nodes <= MOST_NODES:
        return ""
    buffer = torch.zeros(max(1, size_bytes // 4), dtype=torch.float32, device=device)
    started_s = time.monotonic()

    def measured(left_out: int | None) -> float | None:
        """None when time is up, by the clock of rank 0."""
        mine_s = 0.0
        spent_s = time.monotonic() - started_s
        if by_rank([spent_s], device)[0][0] > budget_s:
            return None
        ranks = [r for r in range(world.size) if r // world.local_size != left_out]
        group = dist.new_group(ranks)
        if world.rank in ranks:
            dist.all_reduce(buffer, group=group)  # connects, and uses up a shaper's burst
            mine_s = elapsed_s(lambda: dist.all_reduce(buffer, group=group), _CALLS, device)
            dist.destroy_process_group(group)
        slowest_s = max(times[0] for times in by_rank([mine_s], device)) / _CALLS
        rate = busbw_gbytes_s(Collective.ALL_REDUCE, buffer.nbytes, slowest_s, len(ranks))
        what = "all nodes" if left_out is None else f"all but {world.nodes[left_out]}"
        if world.rank == 0:
            print(f"locate: all_reduce of {what}: {rate:.4g} GB/s", flush=True)
        return rate

    whole, named = 0.0, None
    for trial in range(2):
        rates = [measured(node) for node in (None, *range(nodes))]
        whole, *without = [rate for rate in rates if rate is not None] or [0.0]
        found = only_restorer(without, whole, enough_gbytes_s) if len(without) == nodes else None
        if found is None or (trial and found != named):
            return ""
        named = found
    assert named is not None
    return (
        f"{world.nodes[named]}, slow only in company: every pair of nodes keeps the rate, and so "
        f"does all_reduce without {world.nodes[named]} ({without[named]:.4g} GB/s; with it "
        f"{whole:.4g})"
    )

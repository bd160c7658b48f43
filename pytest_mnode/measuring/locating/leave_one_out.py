"""Search for a node that slows only collectives: all_reduce over all nodes but one, for each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_mnode.culprit import Culprit
from pytest_mnode.measuring.ranks import by_rank, elapsed_s
from pytest_mnode.rank.world import World
from pytest_mnode.spec.bandwidth import Collective, busbw_gbytes_s

FEWEST_NODES, MOST_NODES = 3, 16
"""Without one of two nodes, no collective is left to compare."""
_CALLS = 2
_TRIALS = 5
"""Most trials; two of them have to name the same node."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Busbw of one trial, GB/s. whole: with all nodes. without: by index of the node left out."""

    whole: float
    without: tuple[float, ...]

    def or_faster(self, other: Trial) -> Trial:
        """The faster reading of each kind: other activity can make a reading only slower."""
        faster = map(max, self.without, other.without)
        return Trial(max(self.whole, other.whole), tuple(faster))


def only_restorer(without: Sequence[float], whole: float, enough: float) -> int | None:
    """The only node whose absence restores the rate; None if there is no such single node. Pure.

    without: rates by node left out. whole: rate of all nodes. enough: promised rate. The absence of
    any other node must gain less than half as much.
    """
    best = max(range(len(without)), key=lambda node: without[node])
    others = [rate for node, rate in enumerate(without) if node != best]
    if whole >= enough or without[best] < enough:
        return None
    return best if max(others) < (whole + without[best]) / 2 else None


def named_by(trials: Iterable[Trial], enough: float) -> tuple[int, Trial] | None:
    """The node that two trials and the best readings of all trials name, and those readings. Pure.

    enough: promised rate. A trial that names no node may be disturbed, so up to `_TRIALS` trials
    are taken while all nodes together stay below the promise.
    """
    named: list[int | None] = []
    best: Trial | None = None
    for trial in itertools.islice(trials, _TRIALS):
        if trial.whole >= enough:
            return None
        named.append(only_restorer(trial.without, trial.whole, enough))
        best = trial if best is None else best.or_faster(trial)
        node = only_restorer(best.without, best.whole, enough)
        if node is not None and named.count(node) > 1:
            return node, best
    return None


def slow_in_collectives(
    world: World, size_bytes: int, enough_gbytes_s: float, device: torch.device, budget_s: float
) -> Culprit | None:
    """The only node without which all_reduce reaches its rate; None if there is none.

    enough_gbytes_s: promised busbw. All ranks call this. No measurement begins after `budget_s`
    seconds.
    """
    nodes = len(world.nodes)
    if not FEWEST_NODES <= nodes <= MOST_NODES:
        return None
    buffer = torch.zeros(max(1, size_bytes // 4), dtype=torch.float32, device=device)
    started_s = time.monotonic()

    def measured(left_out: int | None) -> float | None:
        """Busbw in GB/s; None after the budget is spent, by the clock of rank 0."""
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

    def trials() -> Iterator[Trial]:
        """Trials until the budget is spent; an incomplete trial is dropped."""
        while True:
            rates = [measured(node) for node in (None, *range(nodes))]
            whole, *without = [rate for rate in rates if rate is not None] or [0.0]
            if len(without) < nodes:
                return
            yield Trial(whole, tuple(without))

    return culprit_of_trials(trials(), enough_gbytes_s, world.nodes)


def culprit_of_trials(
    trials: Iterable[Trial], enough_gbytes_s: float, nodes: Sequence[str]
) -> Culprit | None:
    """The node that trials name (`named_by`), with their rates; None if there is none. Pure."""
    found = named_by(trials, enough_gbytes_s)
    if found is None:
        return None
    node, best = found
    name = nodes[node]
    words = (
        f"{name}, slow only in collectives: every pair of nodes keeps the rate, and so does "
        f"all_reduce without {name} ({best.without[node]:.4g} GB/s; with it {best.whole:.4g})"
    )
    return Culprit(words, name)

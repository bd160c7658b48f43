"""Search for a node that slows only collectives: all_reduce without each node of a group.

Up to 16 nodes are one group; more are searched in groups of as many, all at the same time, whose
all_reduce shows a node that slows others by itself, as with a narrow NVLink.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_mnode.culprit import Culprit
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.measurement import all_of, with_suspects
from pytest_mnode.measuring.ranks import by_rank, elapsed_s
from pytest_mnode.rank.world import World
from pytest_mnode.spec.bandwidth import Collective, busbw_gbytes_s

FEWEST_NODES, MOST_NODES = 3, 16
"""Without one of two nodes, no collective is left to compare."""
_CALLS = 2
_TRIALS = 5
"""Most trials; two of them have to name the same node."""
_NEAR = 1.05
"""[choice] All nodes may be so much faster here than in the communicators that missed the rate, and
without the node to blame they are faster by at least as much."""


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
    if whole >= enough * _NEAR or without[best] < max(enough, whole * _NEAR):
        return None
    return best if max(others) < (whole + without[best]) / 2 else None


def named_by(trials: Iterable[Trial], enough: float) -> tuple[int, Trial] | None:
    """The node that two trials and the best readings of all trials name, and those readings. Pure.

    enough: promised rate. A trial that names no node may be disturbed, so up to `_TRIALS` trials
    are taken while all nodes together stay below the promise, or close above it.
    """
    named: list[int | None] = []
    best: Trial | None = None
    for trial in itertools.islice(trials, _TRIALS):
        if trial.whole >= enough * _NEAR:
            return None
        named.append(only_restorer(trial.without, trial.whole, enough))
        best = trial if best is None else best.or_faster(trial)
        node = only_restorer(best.without, best.whole, enough)
        if node is not None and named.count(node) > 1:
            return node, best
    return None


Rates = Callable[[Sequence[Sequence[int]]], Sequence[float] | None]
"""Busbw of all_reduce in groups of nodes, all at the same time, in GB/s; None without time left."""


def groups_of(nodes: int) -> list[list[int]]:
    """Consecutive groups of like sizes, of at most `MOST_NODES`; none of fewer than three nodes."""
    count = -(-nodes // MOST_NODES) if nodes >= FEWEST_NODES else 0
    return [list(range(nodes * i // count, nodes * (i + 1) // count)) for i in range(count)]


def slow_in_collectives(
    nodes: Sequence[str], enough: Callable[[int], float], rates: Rates
) -> Culprit | None:
    """The nodes, one of a group, without which all_reduce reaches its rate; None without one.

    enough: promised busbw of so many nodes, GB/s. An incomplete trial is dropped.
    """
    trials: list[tuple[list[int], list[Trial]]] = [(group, []) for group in groups_of(len(nodes))]
    found = list[Culprit]()

    def still_slow() -> list[Culprit]:
        """Nodes of groups without one to blame: any of them may be."""
        return [
            Culprit("", either=[[nodes[n] for n in group]])
            for group, made in trials
            if made[-1].whole < enough(len(group))
        ]

    for _ in range(_TRIALS):
        if not trials or (whole := rates([group for group, _ in trials])) is None:
            break
        # Groups that keep the rate are not slow.
        trials = [
            (group, [*before, Trial(rate, ())])
            for (group, before), rate in zip(trials, whole, strict=True)
            if rate < enough(len(group)) * _NEAR
        ]
        without: list[list[float]] = [[] for _ in trials]
        for place in range(max((len(group) for group, _ in trials), default=0)):
            chosen = [i for i, (group, _) in enumerate(trials) if place < len(group)]
            left = [[n for n in trials[i][0] if n != trials[i][0][place]] for i in chosen]
            if (measured := rates(left)) is None:
                return with_suspects(all_of(found), still_slow()) if found else None
            for i, rate in zip(chosen, measured, strict=True):
                without[i].append(rate)
        going = []
        for (group, made), restored in zip(trials, without, strict=True):
            made[-1] = Trial(made[-1].whole, tuple(restored))
            named = named_by(made, enough(len(group)))
            if named is None:
                going.append((group, made))
            else:
                found.append(_culprit(nodes, group, *named))
        trials = going
    return with_suspects(all_of(found), still_slow()) if found else None


def _culprit(nodes: Sequence[str], group: Sequence[int], node: int, best: Trial) -> Culprit:
    name = nodes[group[node]]
    among = "" if len(group) == len(nodes) else f" of {nodes[group[0]]} to {nodes[group[-1]]}"
    words = (
        f"{name}, slow only in collectives: every pair of nodes keeps the rate, and so does "
        f"all_reduce{among} without {name} ({best.without[node]:.4g} GB/s; with it "
        f"{best.whole:.4g})"
    )
    return Culprit(words, name)


def measured_in_ranks(
    world: World, size_bytes: int, device: torch.device, budget_s: float
) -> Rates:
    """All_reduce of `size_bytes` in the ranks of a world, all of which call it alike.

    No measurement begins after `budget_s` seconds, by the clock of rank 0.
    """
    buffer = torch.zeros(max(1, size_bytes // 4), dtype=torch.float32, device=device)
    started_s = time.monotonic()

    def measured(groups: Sequence[Sequence[int]]) -> list[float] | None:
        mine_s = 0.0
        if by_rank([time.monotonic() - started_s], device)[0][0] > budget_s:
            return None
        each = world.local_size
        members = [[n * each + i for n in nodes for i in range(each)] for nodes in groups]
        made = [dist.new_group(ranks) for ranks in members]  # all ranks make all groups
        for group, ranks in zip(made, members, strict=True):
            if world.rank in ranks:
                call = functools.partial(dist.all_reduce, buffer, group=group)
                call()  # connects, and uses up a shaper's burst
                mine_s = elapsed_s(call, _CALLS, device)
                dist.destroy_process_group(group)
        every = by_rank([mine_s], device)
        rates = [
            busbw_gbytes_s(
                Collective.ALL_REDUCE,
                buffer.nbytes,
                max(every[rank][0] for rank in ranks) / _CALLS,
                len(ranks),
            )
            for ranks in members
        ]
        if world.rank == 0:
            for nodes, rate in zip(groups, rates, strict=True):
                names = compress([world.nodes[n] for n in nodes])
                print(f"locate: all_reduce of {names}: {rate:.4g} GB/s", flush=True)
        return rates

    return measured

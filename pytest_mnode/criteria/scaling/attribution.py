"""Splits a step on n nodes, and its loss compared with one node, into parts. Pure.

Ranks run in lockstep, so a step takes as long as its slowest rank. A rank waits in collectives for
two reasons: the time that the collectives need, and the time until the slowest rank arrives. No
clocks are compared to separate the two: in each step the rank that waits least is the slowest, its
wait is what the collectives need, and any longer wait of a rank is waiting for the slowest rank.

Along the slowest rank of each step the parts add up to the step without any such waiting, so that
the loss compared with one node splits into parts that each have one cause.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from pytest_mnode.criteria.scaling.efficiency import Throughput, reference_node
from pytest_mnode.criteria.scaling.timings import (
    EXPOSED,
    WALL,
    GroupSteps,
    JobTimings,
    Step,
    mean_of,
)
from pytest_mnode.jobs.observer import TRACED_STEPS

TYPICAL = 0.5
"""Fraction of the steps whose means represent all steps: means add up, which medians of parts would
not, and these means leave out events that happened once."""
_MOSTLY = 0.8
"""Fraction of a rank's steps that counts as most of them; by chance, one of eight ranks is often
slow in two thirds of nine steps."""
_NEAR = 0.005
"""Fraction of a step by which the mean of typical steps may differ from the judged step time."""


@dataclass(frozen=True, slots=True)
class RankMeans:
    """Means of a rank's typical steps.

    slowest_in: fraction of the steps in which it was the slowest. missed: fraction of its step time
    by which the sum of its parts differs from it. computes_mostly: least compute in most steps.
    """

    rank: int
    node: str
    step: Step
    slowest_in: float
    missed: float
    computes_mostly: float


@dataclass(frozen=True, slots=True)
class Means:
    """Means of the typical steps of some groups. mean: of all ranks. slowest: of the slowest rank
    of each step."""

    mean: Step
    slowest: Step

    def scaled(self, share: float) -> Means:
        """The same with this share of the work."""
        return Means(self.mean.scaled(share), self.slowest.scaled(share))


@dataclass(frozen=True, slots=True)
class Attribution:
    """The typical steps on some number of nodes, in parts.

    ranks: each rank's own parts, over all its groups; alone: of the ranks of one
    node. typical: of all ranks; its step time is near the judged one. ideal: of one node: nothing
    is lost in it. Both of one node are scaled to the work that a node has in these steps. sent_s,
    hidden_s: times for which collectives ran, and were hidden, on the rank that waits least, by
    traces; None if not known.
    """

    ranks: tuple[RankMeans, ...]
    alone: tuple[RankMeans, ...]
    typical: Means
    ideal: Means
    sent_s: float | None
    hidden_s: float | None

    @property
    def lost_s(self) -> float:
        return self.typical.mean.wall_s - self.ideal.mean.wall_s

    @property
    def lost(self) -> tuple[float, ...]:
        """The loss in parts of the mean rank, in the order of PARTS."""
        return _differences(self.typical.mean.parts, self.ideal.mean.parts)

    @property
    def lost_on_path(self) -> tuple[float, ...]:
        """The loss in parts of the slowest rank of each step, in the order of PARTS."""
        return _differences(self.typical.slowest.parts, self.ideal.slowest.parts)

    @property
    def uneven_s(self) -> float:
        """The loss that is not on the path: a collective does not end for all ranks at
        once, and the rank for which it ends last is the slowest in the next step."""
        return self.lost_s - sum(self.lost_on_path)

    @property
    def worst_missed(self) -> RankMeans:
        """The rank whose parts differ most from its step time."""
        return max(self.ranks, key=lambda rank: rank.missed)

    @property
    def hidden_fraction(self) -> float | None:
        """Fraction of the transfer time that was hidden; None if not known, or nothing was sent."""
        if self.sent_s is None or self.hidden_s is None or self.sent_s <= 0:
            return None
        return self.hidden_s / self.sent_s


def _differences(some: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    return tuple(one - other for one, other in zip(some, others, strict=True))


def attribute(timings: JobTimings, row: Throughput) -> Attribution:
    """Split the steps on `row.count` nodes, and their loss compared with one node, into parts.

    If the row is by means, typical turns are taken, with their slow steps, not typical steps.
    """
    reference = reference_node(timings)
    alone = [one for one in timings.over(1) if one.nodes[0] == reference]
    everywhere = timings.over(row.count)
    share, whole = row.share, row.mean is None
    ideal = _means(_typical(alone, row.ideal_s / share, whole)).scaled(share)
    typical = ideal if row.count == 1 else _means(_typical(everywhere, row.step_s, whole))
    ranks_alone = [replace(one, step=one.step.scaled(share)) for one in rank_means(alone, whole)]
    return Attribution(
        rank_means(everywhere, whole),
        tuple(ranks_alone),
        typical,
        ideal,
        *_sent(everywhere),
    )


def _typical(groups: Sequence[GroupSteps], around_s: float, whole: bool) -> np.ndarray:
    """Half of the steps, adjacent by time, whose mean is nearest to `around_s`; fewer steps, at
    least one, if no half is near enough. whole: turns with all their steps, instead of steps.

    Their parts have to add up to the judged time. The steps nearest to it would not: if every other
    step is longer, the median lies in the gap, and all near steps are on one side.
    """
    cycles = np.array([one.cycles(whole) for one in groups])
    units = cycles if whole else cycles.reshape(-1, 1, *cycles.shape[2:])
    took_s = units[..., WALL].mean(axis=(1, 2))
    units = units[np.argsort(took_s, kind="stable")]
    before = np.concatenate([[0.0], np.cumsum(np.sort(took_s))])
    found: tuple[float, int, int] | None = None
    size = math.ceil(len(units) * TYPICAL)
    size += (len(units) - size) % 2  # so that as many lie on either side of the median
    while size and (found is None or found[0] > _NEAR * around_s):
        off = np.abs((before[size:] - before[:-size]) / size - around_s)
        first = int(np.argmin(off))
        if found is None or off[first] < found[0]:
            found = float(off[first]), first, size
        size //= 2
    assert found is not None
    _, first, size = found
    return np.concatenate(units[first : first + size])


def _means(cycles: np.ndarray) -> Means:
    """cycles: seconds by step, rank and field."""
    mean = mean_of(np.concatenate(cycles))
    slowest = mean_of(cycles[np.arange(len(cycles)), cycles[..., EXPOSED].argmin(axis=1)])
    return Means(_apart(mean, slowest.exposed), slowest)


def _apart(step: Step, needed_s: float) -> Step:
    """The step with the time that collectives need, apart from that of waiting for the slowest."""
    return step._replace(exposed=needed_s, waiting=step.exposed - needed_s)


def _sent(groups: Sequence[GroupSteps]) -> tuple[float | None, float | None]:
    """Seconds of a step in which collectives run on the rank that waits least, and those of them
    that are hidden, by traces of all ranks of a group; None if there are none."""
    every = [[one for one in group.traced if one] for group in groups]
    whole = [
        some for some, group in zip(every, groups, strict=True) if len(some) == len(group.ranks)
    ]
    least = [min(some, key=lambda one: one.exposed) for some in whole]
    if not least:
        return None, None
    hidden_s = fmean(one.hidden for one in least) / TRACED_STEPS
    return hidden_s + fmean(one.exposed for one in least) / TRACED_STEPS, hidden_s


def rank_means(groups: Sequence[GroupSteps], whole: bool) -> tuple[RankMeans, ...]:
    """Means of each rank's typical steps, the half nearest to the median; of all, if `whole`."""
    every: dict[tuple[int, str], list[np.ndarray]] = defaultdict(list)
    for one in groups:
        steps = one.by_rank
        of_group = steps[..., WALL].mean(axis=0), steps[..., EXPOSED].min(axis=0)
        for index, rank in enumerate(one.ranks):
            every[rank, one.node_of(index)].append(np.column_stack((*of_group, steps[index])))
    part = 1.0 if whole else TYPICAL
    return tuple(
        _rank_time(*rank, np.concatenate(some), part) for rank, some in sorted(every.items())
    )


def _rank_time(rank: int, node: str, steps: np.ndarray, part: float) -> RankMeans:
    """steps: each with the group's step time, its least time exposed, and the rank's own fields."""
    order = np.argsort(np.abs(steps[:, 0] - np.median(steps[:, 0])), kind="stable")
    typical = steps[order[: math.ceil(len(steps) * part)]]
    least_s = typical[:, 1]
    compute = [Step(*own).compute for own in steps[:, 2:]]
    return RankMeans(
        rank=rank,
        node=node,
        step=_apart(mean_of(typical[:, 2:]), float(least_s.mean())),
        slowest_in=float((typical[:, 2 + EXPOSED] <= least_s).mean()),
        missed=fmean(Step(*own).missed for own in typical[:, 2:]),
        computes_mostly=float(np.quantile(compute, 1 - _MOSTLY, method="lower")),
    )

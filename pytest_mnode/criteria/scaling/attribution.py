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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.criteria.scaling.efficiency import Throughput, reference_node
from pytest_mnode.criteria.scaling.timings import PARTS, GroupSteps, JobTimings, Step
from pytest_mnode.jobs.observer import TRACED_STEPS

TYPICAL = 0.5
"""Fraction of the steps whose means represent all steps: means add up, which medians of parts would
not, and these means leave out events that happened once."""
_MOSTLY = 0.8
"""Fraction of a rank's steps that counts as most of them; by chance, one of eight ranks is often
slow in two thirds of nine steps."""
SPLIT = (*PARTS, "waiting")
"""Parts of the mean rank's step; here `exposed` is only the time that the collectives need."""
_EXPOSED = PARTS.index("exposed")
_NEAR = 0.005
"""Fraction of a step by which the mean of typical steps may differ from the judged step time."""


@dataclass(frozen=True, slots=True)
class RankMeans:
    """Mean seconds of a rank's typical steps. waiting_s: the part of `exposed` that is waiting
    for the slowest rank.

    slowest_in: fraction of the steps in which it was the slowest. missed: fraction of its step time
    by which the sum of its parts differs from it. computes_mostly: least compute in most steps.
    """

    rank: int
    node: str
    step_s: float
    compute: float
    exposed: float
    input: float
    optimiser: float
    checkpoint: float
    rest: float
    waiting_s: float
    slowest_in: float
    missed: float
    computes_mostly: float

    def scaled(self, share: float) -> RankMeans:
        """The same rank with this share of the work."""
        return replace(self, **{part: getattr(self, part) * share for part in PARTS})


@dataclass(frozen=True, slots=True)
class Attribution:
    """The typical steps on `count` nodes, in parts.

    ranks: each rank's own parts, over all its groups of `count` nodes; alone: of the ranks of one
    node, scaled to the work that a node has in these steps. step_s: mean of the typical steps, near
    the judged step time; ideal_s: of the steps of one node, scaled likewise: nothing is lost in it.
    parts: of the mean rank, in the order of SPLIT; ideal: of one node. path, path_ideal: along the
    slowest rank of each step, in the order of PARTS. sent_s, hidden_s: times for which collectives
    ran, and were hidden, on the rank that waits least, by traces; None if not known. backward_s:
    time that could have hidden them.
    """

    count: int
    ranks: tuple[RankMeans, ...]
    alone: tuple[RankMeans, ...]
    step_s: float
    ideal_s: float
    parts: tuple[float, ...]
    ideal: tuple[float, ...]
    path: tuple[float, ...]
    path_ideal: tuple[float, ...]
    sent_s: float | None
    hidden_s: float | None
    backward_s: float

    @property
    def lost_s(self) -> float:
        return self.step_s - self.ideal_s

    @property
    def lost(self) -> tuple[float, ...]:
        """The loss in parts of the mean rank, in the order of SPLIT."""
        return tuple(mine - one for mine, one in zip(self.parts, self.ideal, strict=True))

    @property
    def lost_on_path(self) -> tuple[float, ...]:
        """The loss in parts of the slowest rank of each step, in the order of PARTS."""
        return tuple(mine - one for mine, one in zip(self.path, self.path_ideal, strict=True))

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


@dataclass(frozen=True, slots=True)
class _Means:
    """Means over some steps: step time, parts of the mean rank, and parts of the slowest ranks."""

    step_s: float
    parts: NDArray[np.float64]
    path: NDArray[np.float64]
    backward_s: float


def attribute(timings: JobTimings, row: Throughput) -> Attribution:
    """Split the steps on `row.count` nodes, and their loss compared with one node, into parts.

    If the row is by means, typical turns are taken, with their slow steps, not typical steps.
    """
    reference = reference_node(timings)
    ones = [one for one in timings.over(1) if one.nodes[0] == reference]
    alone = [(one, number) for one in ones for number in range(len(one.steps[0]))]
    everywhere = list(timings.each_step(row.count))
    share = row.share
    whole = row.mean is None
    base = _means(_typical(alone, row.ideal_s / share, whole), whole)
    mine = base
    if row.count > 1:
        mine = _means(_typical(everywhere, row.step_s, whole), whole)
    sent_s, hidden_s = _sent(timings.over(row.count))
    return Attribution(
        count=row.count,
        ranks=rank_means(everywhere, whole),
        alone=tuple(rank.scaled(share) for rank in rank_means(alone, whole)),
        step_s=mine.step_s,
        ideal_s=base.step_s * share,
        parts=tuple(mine.parts.tolist()),
        ideal=tuple((base.parts * share).tolist()),
        path=tuple(mine.path.tolist()),
        path_ideal=tuple((base.path * share).tolist()),
        sent_s=sent_s,
        hidden_s=hidden_s,
        backward_s=mine.backward_s,
    )


def _typical(
    steps: Sequence[tuple[GroupSteps, int]], around_s: float, whole: bool
) -> list[tuple[GroupSteps, int]]:
    """Half of the steps, adjacent by time, whose mean is nearest to `around_s`; fewer steps, at
    least one, if no half is near enough. whole: turns with all their steps, instead of steps.

    Their parts have to add up to the judged time. The steps nearest to it would not: if every other
    step is longer, the median lies in the gap, and all near steps are on one side.
    """
    units: dict[tuple[int, int], list[tuple[GroupSteps, int]]] = {}
    for one, number in steps:
        units.setdefault((id(one), 0 if whole else number), []).append((one, number))
    timed = [
        (float(np.mean([s.wall_s for one, i in unit for s in one.cycle(i, whole)])), unit)
        for unit in units.values()
    ]
    timed.sort(key=lambda unit: unit[0])
    before = np.concatenate([[0.0], np.cumsum([took_s for took_s, _ in timed])])
    found: tuple[float, int, int] | None = None
    size = math.ceil(len(timed) * TYPICAL)
    size += (len(timed) - size) % 2  # so that as many lie on either side of the median
    while size and (found is None or found[0] > _NEAR * around_s):
        off = np.abs((before[size:] - before[:-size]) / size - around_s)
        first = int(np.argmin(off))
        if found is None or off[first] < found[0]:
            found = float(off[first]), first, size
        size //= 2
    assert found is not None
    _, first, size = found
    return [step for _, unit in timed[first : first + size] for step in unit]


def _means(steps: Sequence[tuple[GroupSteps, int]], whole: bool) -> _Means:
    cycles = [one.cycle(number, whole) for one, number in steps]
    slowest = [min(cycle, key=lambda step: step.exposed) for cycle in cycles]
    parts = np.mean([np.mean([one.parts for one in cycle], axis=0) for cycle in cycles], axis=0)
    path = np.mean([step.parts for step in slowest], axis=0)
    waiting_s = parts[_EXPOSED] - path[_EXPOSED]
    parts[_EXPOSED] = path[_EXPOSED]
    return _Means(
        fmean(fmean(step.wall_s for step in cycle) for cycle in cycles),
        np.append(parts, waiting_s),
        path,
        fmean(step.backward_s for step in slowest),
    )


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


def rank_means(steps: Sequence[tuple[GroupSteps, int]], whole: bool) -> tuple[RankMeans, ...]:
    """Means of each rank's typical steps, the half nearest to the median; of all, if `whole`."""
    every: dict[tuple[int, str], list[tuple[float, float, Step]]] = {}
    for one, number in steps:
        took_s, least_s = one.step_s(number), min(step.exposed for step in one.step(number))
        for index, rank in enumerate(one.ranks):
            of_rank = every.setdefault((rank, one.node_of(index)), [])
            of_rank.append((took_s, least_s, one.steps[index][number]))
    part = 1.0 if whole else TYPICAL
    return tuple(_rank_time(*rank, some, part) for rank, some in sorted(every.items()))


def _rank_time(
    rank: int, node: str, steps: list[tuple[float, float, Step]], part: float
) -> RankMeans:
    """steps: seconds of the group's step, its least time exposed, and the rank's own."""
    middle_s = median(took_s for took_s, *_ in steps)
    typical = sorted(steps, key=lambda one: abs(one[0] - middle_s))[: math.ceil(len(steps) * part)]
    parts = np.mean([own.parts for *_, own in typical], axis=0)
    return RankMeans(
        rank=rank,
        node=node,
        step_s=fmean(own.wall_s for *_, own in typical),
        **dict(zip(PARTS, map(float, parts), strict=True)),
        waiting_s=float(parts[_EXPOSED]) - fmean(least_s for _, least_s, _ in typical),
        slowest_in=fmean(own.exposed <= least_s for _, least_s, own in typical),
        missed=fmean(own.missed for *_, own in typical),
        computes_mostly=float(
            np.quantile([own.compute for *_, own in steps], 1 - _MOSTLY, method="lower")
        ),
    )

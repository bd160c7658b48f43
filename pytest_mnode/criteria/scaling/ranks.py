"""Each rank's own steps on average, over all groups that it was in. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from pytest_mnode.criteria.scaling.facts import PARTS, Trained

_EXPOSED = PARTS.index("exposed")
TYPICAL = 0.5
"""Part of the steps whose means stand for all: they add up, which medians of parts would not, and
leave out what happened once."""
_MOSTLY = 0.8
"""Part of its steps in which a rank does what it does mostly; of eight ranks one often does so by
chance in two thirds of nine steps."""


@dataclass(frozen=True, slots=True)
class RankTime:
    """Mean seconds of a rank's typical steps. waiting_s: of `exposed`, for the slowest rank.

    slowest_in: part of the steps in which it was the slowest. missed: part of its step time by
    which all its parts together miss it. computes_mostly: seconds, so long at least in most steps.
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

    def scaled(self, share: float) -> RankTime:
        """The same rank with so much of the work."""
        return replace(self, **{part: getattr(self, part) * share for part in PARTS})

    @property
    def collectives_s(self) -> float:
        """What the collectives themselves cost it, not hidden beneath computing."""
        return self.exposed - self.waiting_s


def by_rank(steps: Sequence[tuple[Trained, int]], whole: bool) -> tuple[RankTime, ...]:
    """Each rank's own typical steps, in the middle half of its groups'; all of them for `whole`."""
    every: dict[int, list[tuple[Trained, int, int]]] = {}
    for one, number in steps:
        for index, rank in enumerate(one.ranks):
            every.setdefault(rank, []).append((one, number, index))
    part = 1.0 if whole else TYPICAL
    return tuple(_rank_time(rank, every[rank], part) for rank in sorted(every))


def _rank_time(rank: int, steps: Sequence[tuple[Trained, int, int]], part: float) -> RankTime:
    middle_s = median(one.step_s(number) for one, number, _ in steps)
    order = sorted(steps, key=lambda one: abs(one[0].step_s(one[1]) - middle_s))
    typical = order[: math.ceil(len(order) * part)]
    own = [one.steps[index][number] for one, number, index in typical]
    every = [one.steps[index][number] for one, number, index in steps]
    least = [min(step.exposed for step in one.step(number)) for one, number, _ in typical]
    parts = np.mean([step.parts for step in own], axis=0)
    first, _, index = steps[0]
    wall_s = float(np.mean([step.wall_s for step in own]))
    return RankTime(
        rank=rank,
        node=first.node_of(index),
        step_s=wall_s,
        **dict(zip(PARTS, map(float, parts), strict=True)),
        waiting_s=float(parts[_EXPOSED] - np.mean(least)),
        slowest_in=float(np.mean([s.exposed <= e for s, e in zip(own, least, strict=True)])),
        missed=float(np.mean([step.missed for step in own])),
        computes_mostly=float(
            np.quantile([step.compute for step in every], 1 - _MOSTLY, method="lower")
        ),
    )

"""Throughput and efficiency with what is uncertain about them. Pure.

A step time is the median of medians: of the steps of each group in each turn, then of these, of an
even number the slower of the middle two, so that where half of the groups have a slow node it
shows. One node is the median node, of an even number the faster of the middle two: of two nodes
a slow one cannot hide in their mean.

A median of steps does not see what fewer than half of them wait for. Where the mean of a group's
steps in a turn shows more loss, it counts in place of the median; the median over turns stays, so
that one or two disturbed turns change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_high
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.criteria.scaling.timings import GroupSteps, JobTimings
from pytest_mnode.detection import Detection, smallest_loss
from pytest_mnode.spec.scaling import ScalingCriterion

RESAMPLES = 400
CONFIDENCE = 0.95
FEWEST_ROUNDS = 3
"""On which an efficiency may be found to miss its bound."""
_Rounds = Mapping[int, Sequence[NDArray[np.float64]]]
"""By round: the step times of each of its groups, seconds."""
_Middle = Callable[..., Any]
"""np.median or np.mean: of steps, along an axis."""
_MOST_GROUPS = 16
"""Of a round, by chance, from which steps are drawn: more would take long, and change little."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """One number of nodes against one node.

    step_s: as above. ideal_s: what the step would take with nothing lost. samples_s, tokens_s: per
    second. low, high: 95 % confidence interval of the efficiency. steps: how many were timed.
    share: what a node has of the work of one node alone: 1 in weak scaling, 1/n in strong.
    by_round: the efficiency of each round by itself; () of one node.
    mean: the same by the mean of a group's steps in a turn; None where this is by the mean.
    """

    count: int
    step_s: float
    ideal_s: float
    samples_s: float
    tokens_s: float
    efficiency: float
    low: float
    high: float
    steps: int
    share: float
    by_round: tuple[float, ...] = ()
    mean: Throughput | None = None

    def by_mean(self) -> Throughput:
        """The same by means of steps."""
        return self.mean or self

    def hides(self, more_than: float) -> bool:
        """Whether by the mean more is lost, by so much of the ideal throughput."""
        return self.efficiency - self.by_mean().efficiency > more_than

    def judged_by(self, hidden: float) -> Throughput:
        """What is judged: this, or the mean where this hides more."""
        return self.by_mean() if self.hides(hidden) else self

    @property
    def uncertainty(self) -> float:
        """Half of the confidence interval."""
        return (self.high - self.low) / 2

    def known(self, at_most_uncertainty: float, bound: float) -> bool:
        """Whether the uncertainty is as small, or the interval is on one side of the bound."""
        return self.uncertainty <= at_most_uncertainty or not self.low < bound <= self.high

    def detection(self, bound: float, promise: ScalingCriterion) -> Detection | None:
        """The loss of efficiency that would have been found, by how much rounds differ.

        Noise makes nothing inconclusive where other nodes make it: computing is declared only
        where nodes share the processors of one machine.
        """
        if not self.by_round:
            return None
        tolerated = 1 - bound if promise.compute_s is None else None
        return smallest_loss(self.by_round, bound, tolerated, judged=self.efficiency)

    @property
    def lost_s(self) -> float:
        """Seconds of each step that one node does not need."""
        return self.step_s - self.ideal_s


def reference_node(timings: JobTimings) -> str:
    """The node that stands for one node: the median by step time, of two the faster."""
    times: dict[str, list[float]] = {}
    for one in timings.over(1):
        times.setdefault(one.nodes[0], []).extend(one.step_times_s)
    by_time = sorted((median(of_node), name) for name, of_node in times.items())
    return by_time[(len(by_time) - 1) // 2][1]


def throughputs(timings: JobTimings, *, seed: int = 0) -> tuple[Throughput, ...]:
    """A row for each number of nodes, rising, from one node on; () where nothing ran on one."""
    ones = timings.over(1)
    if not ones or any(not one.steps[0] for one in timings.trained):
        return ()
    name = reference_node(timings)
    alone = [one for one in ones if one.nodes[0] == name]
    rows = []
    for count in timings.counts:
        over = alone if count == 1 else timings.over(count)
        share = over[0].samples / (count * ones[0].samples)
        mean = _row(alone, over, share, np.mean, seed)
        rows.append(replace(_row(alone, over, share, np.median, seed), mean=mean))
    return tuple(rows)


def _row(
    alone: Sequence[GroupSteps],
    over: Sequence[GroupSteps],
    share: float,
    middle: _Middle,
    seed: int,
) -> Throughput:
    """What groups did beside one node. middle: of a group's steps in a turn."""
    rounds, ideal = _by_round(over), _by_round(alone)
    step_s, ideal_s = _step_s(rounds, middle), _step_s(ideal, middle) * share
    count = over[0].count
    low, high = (1.0, 1.0)
    if count > 1:
        low, high = _interval(ideal, rounds, share, middle, seed)
    return Throughput(
        count=count,
        step_s=step_s,
        ideal_s=ideal_s,
        samples_s=over[0].samples / step_s,
        tokens_s=over[0].tokens / step_s,
        efficiency=ideal_s / step_s,
        low=low,
        high=high,
        share=share,
        by_round=by_round(ideal, rounds, share, middle) if count > 1 else (),
        steps=sum(g.size for of_round in rounds.values() for g in of_round),
    )


def settled(timings: JobTimings, promise: ScalingCriterion, *, seed: int = 0) -> bool:
    """Whether every efficiency is known well enough, or known to be on one side of the bound.

    Fewer than `FEWEST_ROUNDS` settle it only where every interval is above the bound, so that a
    disturbed round never decides against a cluster.
    """
    bound = promise.at_least_efficiency
    rows = [row.judged_by(promise.parts_within) for row in throughputs(timings, seed=seed)]
    if timings.rounds < FEWEST_ROUNDS and any(row.low < bound for row in rows):
        return False
    return bool(rows) and all(
        row.known(promise.at_most_uncertainty, bound) and not _too_noisy(row, promise)
        for row in rows
    )


def _too_noisy(row: Throughput, promise: ScalingCriterion) -> bool:
    """Whether rounds hide more than the bound lets go, where the efficiency keeps it."""
    full, least = promise.at_least_efficiency, promise.explained_from
    found = row.detection(full if row.efficiency >= full else least, promise)
    return found is not None and found.too_noisy


def _by_round(trained: Sequence[GroupSteps]) -> dict[int, list[NDArray[np.float64]]]:
    found: dict[int, list[NDArray[np.float64]]] = {}
    for one in trained:
        found.setdefault(one.round, []).append(np.array(one.step_times_s))
    return found


def by_round(
    alone: _Rounds, over: _Rounds, share: float, middle: _Middle = np.median
) -> tuple[float, ...]:
    """The efficiency of each round by itself."""
    return tuple(
        _step_s({number: alone[number]}, middle) * share / _step_s({number: over[number]}, middle)
        for number in sorted(set(over) & set(alone))
    )


def _step_s(rounds: _Rounds, middle: _Middle) -> float:
    return median_high(float(middle(g)) for of_round in rounds.values() for g in of_round)


def _interval(
    alone: _Rounds, over: _Rounds, share: float, middle: _Middle, seed: int
) -> tuple[float, float]:
    """Resample rounds, and steps within them, with replacement; both sides by the same rounds.

    Source: Davison and Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8
    (hierarchical data).
    """
    source = np.random.default_rng(seed)
    numbers = sorted(set(over) & set(alone))
    if not numbers:
        return 0.0, 1.0
    drawn = source.integers(len(numbers), size=(RESAMPLES, len(numbers)))
    one_s, many_s = (
        _resampled([rounds[number] for number in numbers], drawn, middle, source)
        for rounds in (alone, over)
    )
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(one_s * share / many_s, [edge, 1 - edge])
    return float(low), float(high)


def _resampled(
    rounds: Sequence[Sequence[NDArray[np.float64]]],
    drawn: NDArray[np.int64],
    middle: _Middle,
    source: np.random.Generator,
) -> NDArray[np.float64]:
    """Step times over steps of the rounds `drawn` (resamples, rounds) that are drawn themselves."""
    least = min(len(of_round) for of_round in rounds)
    chosen = source.choice(least, min(least, _MOST_GROUPS), replace=False)
    times = np.array([[of_round[int(i)] for i in chosen] for of_round in rounds])
    middles = []
    for of_slot in drawn.T:
        for group in range(times.shape[1]):
            steps = times[of_slot, group]
            places = source.integers(steps.shape[1], size=steps.shape)
            middles.append(middle(np.take_along_axis(steps, places, axis=1), axis=1))
    ordered = np.sort(np.array(middles), axis=0)
    found: NDArray[np.float64] = ordered[len(ordered) // 2]
    return found

"""Throughput and efficiency, with their uncertainty. Pure.

A step time is a median of medians: first of the steps of each group in each turn, then of these
medians. If their number is even, it is the slower of the middle two, so that a slow node in half of
the groups shows. One node is represented by the median node; if their number is even, by the faster
of the middle two, so that a slow node of two cannot hide in their mean.

A median of steps does not show a delay of fewer than half of them. If the mean of a group's steps
in a turn shows more loss, it replaces the median; the median over turns stays, so that one or two
disturbed turns change nothing.

How sure an efficiency is follows from how much it differs by round: a round is the smallest part of
a job that draws all noise anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, median_high

from pytest_mnode.criteria.scaling.timings import GroupSteps, JobTimings
from pytest_mnode.detection import Detection, smallest_loss
from pytest_mnode.intervals import CONFIDENCE, Interval, interval_of
from pytest_mnode.spec.scaling import ScalingCriterion

FALSE_ALARM = 0.01
"""Share of jobs of a cluster that just keeps its promise of which any efficiency fails."""
_KEPT = 2 / 3
"""Part of the false alarms that the end of an interval is asked for: of 6 to 12 rounds, trimmed, it
errs in up to 1.5 times as many cases (simulated)."""
FEWEST_ROUNDS = 3
"""Fewest rounds that can show that an efficiency misses its bound."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of one number of nodes, compared with one node.

    step_s: as above. ideal_s: the step time without any loss. samples_s, tokens_s: per second.
    low, high: 95 % confidence interval of the efficiency. at_most: the efficiency is higher in no
    more than `false_alarm` of cases. steps: number of timed steps.
    share: fraction of the work of one node alone that each node has: 1 in weak scaling, 1/n in
    strong. by_round: the efficiency of each round by itself; () for one node.
    mean: the same by the mean of a group's steps in a turn; None if this one is by the mean.
    """

    count: int
    step_s: float
    ideal_s: float
    samples_s: float
    tokens_s: float
    efficiency: float
    low: float
    high: float
    at_most: float
    steps: int
    share: float
    false_alarm: float = 0.0
    by_round: tuple[float, ...] = ()
    mean: Throughput | None = None

    def judged_by(self, hidden: float) -> Throughput:
        """The throughput to judge: this, or that by the mean if this hides more than `hidden`."""
        mean = self.mean or self
        return mean if self.efficiency - mean.efficiency > hidden else self

    @property
    def uncertainty(self) -> float:
        """Half of the confidence interval."""
        return (self.high - self.low) / 2

    def reaches(self, bound: float) -> bool | None:
        """Whether the efficiency surely reaches the bound; None if that is not sure.

        It does if its interval does, and does not if `at_most` is below the bound.
        """
        if self.low >= bound:
            return True
        return False if self.at_most < bound else None

    def detection(self, bound: float, promise: ScalingCriterion) -> Detection | None:
        """The smallest loss of efficiency that would have been found, given how much rounds differ.

        If compute is declared, noise makes nothing inconclusive: nodes then share the processors of
        one machine, and the noise comes from other nodes.
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
    """The node that represents one node: the median by step time, the faster of two."""
    times: dict[str, list[float]] = {}
    for one in timings.over(1):
        times.setdefault(one.nodes[0], []).extend(one.step_times_s)
    by_time = sorted((median(of_node), name) for name, of_node in times.items())
    return by_time[(len(by_time) - 1) // 2][1]


def throughputs(timings: JobTimings) -> tuple[Throughput, ...]:
    """One row per number of nodes, ascending from one node."""
    name = reference_node(timings)
    alone = [one for one in timings.over(1) if one.nodes[0] == name]
    false_alarm = FALSE_ALARM / max(1, len(timings.counts) - 1)
    rows = []
    for count in timings.counts:
        over = alone if count == 1 else timings.over(count)
        row, mean = (_row(alone, over, middle, false_alarm) for middle in (median, fmean))
        rows.append(replace(row, mean=mean))
    return tuple(rows)


def _row(
    alone: Sequence[GroupSteps],
    over: Sequence[GroupSteps],
    middle: Callable[[Sequence[float]], float],
    false_alarm: float,
) -> Throughput:
    """Throughput of groups, compared with one node. middle: of a group's steps in a turn."""
    count = over[0].count
    share = over[0].samples / (count * alone[0].samples)
    rounds, ideal = _by_round(over, middle), _by_round(alone, middle)
    step_s, alone_s = (median_high(itertools.chain(*of.values())) for of in (rounds, ideal))
    ideal_s = alone_s * share
    each = tuple(
        median_high(ideal[number]) * share / median_high(rounds[number])
        for number in sorted(rounds.keys() & ideal.keys())
    )
    efficiency = ideal_s / step_s
    usual, wide = (
        (interval_of(each, confidence) or Interval(0.0, 1.0)).including(efficiency)
        for confidence in (CONFIDENCE, 1 - 2 * false_alarm * _KEPT)
    )
    return Throughput(
        count=count,
        step_s=step_s,
        ideal_s=ideal_s,
        samples_s=over[0].samples / step_s,
        tokens_s=over[0].tokens / step_s,
        efficiency=efficiency,
        low=usual.low,
        high=usual.high,
        at_most=wide.high,
        share=share,
        false_alarm=false_alarm,
        by_round=each if count > 1 else (),
        steps=sum(len(one.steps[0]) for one in over),
    )


def _by_round(
    trained: Sequence[GroupSteps], middle: Callable[[Sequence[float]], float]
) -> dict[int, list[float]]:
    """The middle step time of each group in a turn, by round."""
    found: dict[int, list[float]] = {}
    for one in trained:
        found.setdefault(one.round, []).append(middle(one.step_times_s))
    return found


def settled(timings: JobTimings, promise: ScalingCriterion) -> bool:
    """Whether no further round is needed: each efficiency is surely below its bound, or surely
    reaches it and is known to within `at_most_uncertainty`, and noise hides no loss.

    Fewer than `FEWEST_ROUNDS` rounds settle it only if every interval is above the bound, so that a
    disturbed round never decides against a cluster.
    """
    full = promise.at_least_efficiency
    rows = [row.judged_by(promise.parts_within) for row in throughputs(timings)]
    if timings.rounds < FEWEST_ROUNDS and any(row.low < full for row in rows):
        return False
    return all(_settled(row, promise) for row in rows)


def _settled(row: Throughput, promise: ScalingCriterion) -> bool:
    if row.reaches(promise.at_least_efficiency):
        return row.uncertainty <= promise.at_most_uncertainty and not _too_noisy(row, promise)
    # Allowed causes may explain a loss down to the lower bound.
    lower = promise.explained_from if promise.allowed_causes else promise.at_least_efficiency
    surely = {row.reaches(bound) for bound in (lower, promise.at_least_efficiency)}
    return None not in surely and not _too_noisy(row, promise)


def _too_noisy(row: Throughput, promise: ScalingCriterion) -> bool:
    """Whether noise hides more loss than the bound tolerates, for an efficiency that meets it."""
    full, least = promise.at_least_efficiency, promise.explained_from
    found = row.detection(full if row.efficiency >= full else least, promise)
    return found is not None and found.too_noisy

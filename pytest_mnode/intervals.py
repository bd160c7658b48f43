"""Confidence intervals of what a few rounds measured. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
_TRIMMED_FROM = 6
"""From this many rounds on the lowest and the highest of every six are not averaged, so that one
disturbed round of six changes little. Of fewer, trimming would leave too little to know the noise.
"""
_WIDEST = 100.0
"""Half of an interval of logarithms at most, so that its ends are numbers: a factor of 10^43."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the true value is with `confidence`: between `low` and `high`, both included."""

    low: float
    high: float
    confidence: float = CONFIDENCE

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def including(self, value: float) -> Interval:
        """This interval, widened to include a value that was estimated in another way."""
        return Interval(min(self.low, value), max(self.high, value), self.confidence)

    @property
    def half(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2


def interval_of(
    ratios: Sequence[float], confidence: float = CONFIDENCE, *, trimmed: bool = True
) -> Interval | None:
    """The interval of the true ratio, from the ratio that each round measured; all above 0.

    A t-interval of their logarithms, because ratios have no unit and err by factors. Rounds may
    differ from each other by more than what is measured within them, so each counts as one value.
    From `_TRIMMED_FROM` rounds on it is that of the trimmed mean, if `trimmed`; what is far out
    then changes little, but a confidence near 1 is not quite kept. None for fewer than two rounds,
    which say nothing about their noise, and if a ratio is not finite and above 0.

    Sources: Student, "The probable error of a mean", Biometrika 6, 1908; for the trimmed mean,
    Tukey and McLaughlin, Sankhya A 25, 1963: the error is s √n / h with h - 1 degrees of freedom,
    for h of n values kept and the deviation s of all, those left out moved to the nearest one kept.
    """
    if len(ratios) < 2 or not all(0 < ratio < math.inf for ratio in ratios):
        return None
    logs = sorted(map(math.log, ratios))
    count, cut = len(logs), len(logs) // _TRIMMED_FROM * trimmed
    kept = logs[cut : count - cut]
    moved = [kept[0]] * cut + kept + [kept[-1]] * cut
    middle = statistics.fmean(moved)
    deviation = math.sqrt(sum((log - middle) ** 2 for log in moved) / (count - 1))
    error = deviation * math.sqrt(count) / len(kept)
    half = min(_WIDEST, t_quantile((1 + confidence) / 2, len(kept) - 1) * error)
    middle = statistics.fmean(kept)
    return Interval(math.exp(middle - half), math.exp(middle + half), confidence)


def quantile_interval(
    values: Sequence[float], quantile: float, confidence: float = CONFIDENCE
) -> Interval | None:
    """The interval of a quantile (0 to 1, both excluded) of what these values are drawn from, by
    their order, whatever their distribution; None if they are too few to bound it on both sides.

    Source: the number of n values up to the quantile is binomial; Conover, Practical Nonparametric
    Statistics, 3.2.
    """
    ordered, count, beyond = sorted(values), len(values), (1 - confidence) / 2
    below, low, high = 0.0, None, None
    odds = math.log(quantile), math.log(1 - quantile)
    for at in range(count):  # value number at + 1: below is P(at or fewer up to the quantile)
        ways = math.lgamma(count + 1) - math.lgamma(at + 1) - math.lgamma(count - at + 1)
        below += math.exp(ways + at * odds[0] + (count - at) * odds[1])
        if below <= beyond:
            low = ordered[at]
        if high is None and 1 - below <= beyond:
            high = ordered[at]
    return None if low is None or high is None else Interval(low, high, confidence)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees: int) -> float:
    """The value that Student's t with `degrees` of freedom stays below with `probability`.

    probability: from 0.5 to less than 1. Source of the distribution: Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.3 and 26.7.4 (sums of powers of a cosine).
    """
    if not 0.5 <= probability < 1 or degrees < 1:
        raise ValueError(f"no quantile {probability} of t with {degrees} degrees of freedom")
    low, high = 0.0, 1.0
    while _t_below(high, degrees) < probability:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, degrees) < probability else (low, middle)
    return high


def _t_below(value: float, degrees: int) -> float:
    """The probability that t is below `value`, which is 0 or more."""
    angle = math.atan(value / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for number in range(1, degrees // 2 + 1):
        total += term
        term *= cosine**2 * (2 * number - 1 + odd) / (2 * number + odd)
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + within) / 2


_MANY = 10_000
"""From this many events on their number is normally distributed, to four digits."""


def least_mean(count: int, chance: float) -> float:
    """The mean number of events that is surely exceeded where `count` of them were seen.

    With a lower mean, `count` or more would be seen with less than `chance`. 0 for none.

    Source: Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28, 1936.
    """
    if count >= _MANY:
        return count - statistics.NormalDist().inv_cdf(1 - chance) * math.sqrt(count)
    return _largest(lambda mean: 1 - _at_most(count - 1, mean) < chance, count) if count else 0.0


def most_mean(count: int, chance: float) -> float:
    """The mean number of events that is surely not reached where `count` of them were seen.

    With a higher mean, `count` or fewer would be seen with less than `chance`: 3.0 for none at 5 %.

    Source: as of `least_mean`.
    """
    if count >= _MANY:
        return count - statistics.NormalDist().inv_cdf(chance) * math.sqrt(count)
    return _largest(lambda mean: _at_most(count, mean) >= chance, 2 * count - 2 * math.log(chance))


def _largest(holds: Callable[[float], bool], high: float) -> float:
    """The largest mean below `high` for which it holds, to nine digits."""
    low = 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _at_most(count: int, mean: float) -> float:
    """Chance of `count` or fewer events."""
    term = total = 1.0
    for seen in range(count, 0, -1):
        term *= seen / mean if mean else math.inf
        total += term
    return math.exp(math.log(total) + count * math.log(mean) - mean - math.lgamma(count + 1))

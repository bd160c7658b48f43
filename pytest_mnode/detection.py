"""The smallest fault that a measurement would have shown, from its own noise. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

PROBABILITY = 0.99

_FEW = 4
"""Up to here the standard deviation is taken: the MAD of three is the lesser of two gaps."""
_FACTORS = {
    **{2: 31.4, 3: 6.21, 4: 3.40, 5: 9.87, 6: 5.51, 7: 5.21, 8: 3.77, 9: 3.69, 10: 3.01},
    **{12: 2.52, 15: 2.17, 20: 1.66, 30: 1.27, 50: 0.93},
}
"""How many MADs of R repeats lie between their median and that of R others, at most, in 99 of 100.

Of `_FEW` repeats or fewer it is standard deviations. MAD is the median of the distances from the
median: one disturbed repeat of five changes it little. By 400,000 draws of R + R values from a
normal distribution for each R. Of values whose noise has longer tails, or one tail only, it is
less: with 5 repeats 9.3 (Laplace), 6.9 (exponential). Few repeats tell little of their noise, hence
the large numbers. For many the distance is z₀.₉₉ √2 σ √(π/2R) = 2.33 × 1.41 × 1.25 / √R × MAD /
0.6745, by the variance of a median (Kendall and Stuart, The Advanced Theory of Statistics, 14.12)
and the MAD of a normal distribution (Hampel, JASA 69, 1974).
"""
_OF_THREE_ROUNDS = {
    **{2: 58.4, 3: 9.23, 4: 4.56, 5: 14.5, 6: 7.42, 7: 7.01, 8: 4.90, 9: 4.79, 10: 3.78},
    **{12: 3.13, 15: 2.68, 20: 2.02, 30: 1.51, 50: 1.10},
}
"""The same for the best of three medians: a value that misses its bound is measured again, twice,
and misses it only where all three do. By 300,000 draws for each R."""


@dataclass(frozen=True, slots=True)
class Detection:
    """The smallest fault that would have been found with `probability`, had it been there.

    kind: "less", "more": of the measured value; "wrong": of calls that are right or wrong.
    share: how much less or more; of calls, how many are wrong. repeats: values, or calls, that it
    follows from. blur: share by which medians of two such runs differ, at most, in 99 of 100; None
    of calls. tolerated: share of what a sound cluster reaches that the bound lets go; None where
    the promise names none.
    """

    kind: Literal["less", "more", "wrong"]
    share: float
    repeats: int
    blur: float | None = None
    tolerated: float | None = None
    probability: float = PROBABILITY

    def __post_init__(self) -> None:
        numbers = (self.share, self.blur or 0.0, self.tolerated or 0.0, self.probability)
        if not all(map(math.isfinite, numbers)) or (self.kind == "wrong" and self.share <= 0):
            raise ValueError(
                f"a detection of {numbers} cannot be used; give None where it is not known"
            )

    @property
    def blurred(self) -> bool:
        """Whether noise hides more than the bound lets go: a loss of twice that might pass."""
        return self.blur is not None and self.tolerated is not None and self.blur > self.tolerated

    @property
    def text(self) -> str:
        """Such as "8.1 % less", or "1 wrong call in 52", would have been found."""
        if self.kind == "wrong":
            return f"1 wrong call in {max(1, math.floor(1 / self.share))}"
        return f"{100 * self.share:.3g} % {self.kind}"

    @property
    def doubt(self) -> str:
        """Why nothing follows from a value within its bound; "" where something does."""
        if not self.blurred or self.blur is None or self.tolerated is None:
            return ""
        return (
            f"too noisy: medians of {self.repeats} repeats differ by up to {100 * self.blur:.3g} %,"
            f" and the bound lets {100 * self.tolerated:.3g} % go, so that twice as much might pass"
        )


def blur(values: Sequence[float], *, rounds_of_three: bool = False) -> float | None:
    """Share by which medians of two runs like this one differ, at most, in 99 of 100.

    values: one of each repeat. None for a single one, which says nothing of its noise, for 0, and
    where one is not finite.
    rounds_of_three: the best of three medians counts where the first one misses its bound.
    """
    middle = statistics.median(values)
    if len(values) < 2 or not middle or not all(map(math.isfinite, values)):
        return None
    factors = _OF_THREE_ROUNDS if rounds_of_three else _FACTORS
    factor = factors[max(known for known in factors if known <= len(values))]
    return factor * scale(values) / middle


def scale(values: Sequence[float]) -> float:
    """How far values scatter: their standard deviation where they are few, else their MAD."""
    if len(values) <= _FEW:
        return statistics.stdev(values)
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def smallest_loss(
    values: Sequence[float],
    least: float,
    tolerated: float | None = None,
    *,
    judged: float | None = None,
    rounds_of_three: bool = False,
) -> Detection | None:
    """How much less each value would have to be for the median to miss `least` with 99 %.

    A run with a share d less has a median of m(1 - d), m being this run's, but for noise: at most
    m(1 - d)(1 + blur) in 99 of 100. That is below `least` from d = 1 - least / (m (1 + blur)) on.
    It has two parts: the margin that this run has, and its blur. values, rounds_of_three: as of
    `blur`. judged: the value that is judged, where it is not the median of `values`: by as much as
    the two differ another run's may differ too. None where `blur` is, and for a median that misses
    `least` anyway, or is not above 0.
    """
    unsure = blur(values, rounds_of_three=rounds_of_three)
    middle = statistics.median(values) if judged is None else judged
    if unsure is None or not middle >= least or middle <= 0:
        return None
    unsure += abs(middle / statistics.median(values) - 1)
    share = 1 - least / (middle * (1 + unsure))
    return Detection("less", share, len(values), unsure, tolerated)


def smallest_excess(values: Sequence[float], most: float) -> Detection | None:
    """How much more each value would have to be for the median to exceed `most` with 99 %.

    A time that is so much longer is a rate that is less: see `smallest_loss`. None for one of 0.
    """
    if most <= 0 or min(values) <= 0:
        return None
    found = smallest_loss([1 / value for value in values], 1 / most)
    return found and replace(found, kind="more", share=found.share / (1 - found.share))


def smallest_share_wrong(calls: int) -> Detection | None:
    """Which share of calls must be wrong for one of these calls to be so with 99 %.

    All of n calls are right with (1 - p)^n, which is 1 % at p = 1 - 0.01^(1/n), about 4.6 / n.
    None for no call.

    Source: Hanley and Lippman-Hand, "If nothing goes wrong, is everything all right?", JAMA 249,
    1983, whose rule of three is the same for 95 %.
    """
    if calls < 1:
        return None
    return Detection("wrong", 1 - (1 - PROBABILITY) ** (1 / calls), calls)

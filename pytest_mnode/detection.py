"""The smallest fault that a measurement would have shown, computed from its noise. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

PROBABILITY = 0.99

_FEW = 4
"""Up to this many repeats the standard deviation is used: the MAD of 3 is the smaller gap."""
_FACTORS = {
    **{2: 31.4, 3: 6.21, 4: 3.40, 5: 9.87, 6: 5.51, 7: 5.21, 8: 3.77, 9: 3.69, 10: 3.01},
    **{12: 2.52, 15: 2.17, 20: 1.66, 30: 1.27, 50: 0.93},
}
"""Largest distance, in MADs, between medians of two runs of R repeats in 99 of 100 cases, by R.

For `_FEW` repeats or fewer the unit is the standard deviation. The MAD is the median of the
distances from the median: one disturbed repeat of five changes it little. Simulated by 400,000
draws of R + R values from a normal distribution for each R. Noise with longer tails, or with one
tail only, has smaller factors: with 5 repeats 9.3 (Laplace), 6.9 (exponential). Factors of few
repeats are large because these say little about their noise. For many repeats the distance is
z₀.₉₉ √2 σ √(π/2R) = 2.33 × 1.41 × 1.25 / √R × MAD / 0.6745, by the variance of a median (Kendall
and Stuart, The Advanced Theory of Statistics, 14.12) and the MAD of a normal distribution (Hampel,
JASA 69, 1974).
"""
_OF_THREE_ROUNDS = {
    **{2: 58.4, 3: 9.23, 4: 4.56, 5: 14.5, 6: 7.42, 7: 7.01, 8: 4.90, 9: 4.79, 10: 3.78},
    **{12: 3.13, 15: 2.68, 20: 2.02, 30: 1.51, 50: 1.10},
}
"""As `_FACTORS`, for the best of three medians: a value that misses its bound is measured twice
more, and fails only if all three medians miss it. Simulated by 300,000 draws for each R."""


@dataclass(frozen=True, slots=True)
class Detection:
    """The smallest fault that a measurement would have shown with `probability`.

    kind: "less" or "more" for a measured value; "wrong" for calls that are right or wrong.
    share: relative loss or excess of the value, or share of wrong calls. repeats: number of values
    or calls. blur: the values' `noise_share`; None for calls. tolerated: share of a sound cluster's
    value that the bound lets a cluster lose; None if the promise names none.
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
    def too_noisy(self) -> bool:
        """Whether `blur` exceeds `tolerated`: a loss of twice the tolerated share might pass."""
        return self.blur is not None and self.tolerated is not None and self.blur > self.tolerated

    @property
    def text(self) -> str:
        """The smallest fault as text, such as "8.1 % less" or "1 wrong call in 52"."""
        if self.kind == "wrong":
            return f"1 wrong call in {max(1, math.floor(1 / self.share))}"
        return f"{100 * self.share:.3g} % {self.kind}"

    @property
    def doubt(self) -> str:
        """Why a value within its bound is inconclusive; "" if it is conclusive."""
        if not self.too_noisy or self.blur is None or self.tolerated is None:
            return ""
        return (
            f"too noisy: medians of {self.repeats} repeats differ by up to {100 * self.blur:.3g} %,"
            f" and the bound tolerates a loss of {100 * self.tolerated:.3g} %, so a loss of twice "
            "that could pass"
        )


def noise_share(values: Sequence[float], *, rounds_of_three: bool = False) -> float | None:
    """Largest relative difference of the medians of two such runs in 99 of 100 cases.

    values: one per repeat. None for a single value, which says nothing about its noise, for a
    median of 0, and if a value is not finite.
    rounds_of_three: whether the best of three medians counts if the first one misses its bound.
    """
    middle = statistics.median(values)
    if len(values) < 2 or not middle or not all(map(math.isfinite, values)):
        return None
    factors = _OF_THREE_ROUNDS if rounds_of_three else _FACTORS
    factor = factors[max(known for known in factors if known <= len(values))]
    return factor * scale(values) / middle


def scale(values: Sequence[float]) -> float:
    """Scatter of `values`: the standard deviation of up to `_FEW` values, else the MAD."""
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
    """Smallest relative loss of all values by which the median misses `least` with 99 %.

    With m as this run's median, a run that loses the share d has a median of m(1 - d) and noise: at
    most m(1 - d)(1 + noise) in 99 of 100 cases. That is below `least` if d is more than
    1 - least / (m (1 + noise)), which covers this run's margin and its noise. values,
    rounds_of_three: as in `noise_share`. judged: the judged value if it is not the median of
    `values`; the two may differ as much in another run, so their difference is added to the noise.
    None if `noise_share` is None, or if the median misses `least` already or is not above 0.
    """
    unsure = noise_share(values, rounds_of_three=rounds_of_three)
    middle = statistics.median(values) if judged is None else judged
    if unsure is None or not middle >= least or middle <= 0:
        return None
    unsure += abs(middle / statistics.median(values) - 1)
    share = 1 - least / (middle * (1 + unsure))
    return Detection("less", share, len(values), unsure, tolerated)


def smallest_excess(values: Sequence[float], most: float) -> Detection | None:
    """Smallest relative excess of all values by which the median exceeds `most` with 99 %.

    A longer time is a lower rate: see `smallest_loss`. None if `most` or a value is not above 0.
    """
    if most <= 0 or min(values) <= 0:
        return None
    found = smallest_loss([1 / value for value in values], 1 / most)
    return found and replace(found, kind="more", share=found.share / (1 - found.share))


def smallest_share_wrong(calls: int) -> Detection | None:
    """Smallest share of wrong calls at which at least one of these calls is wrong with 99 %.

    All of n calls are right with probability (1 - p)^n, which is 1 % at p = 1 - 0.01^(1/n),
    about 4.6 / n. None if `calls` is 0.

    Source: Hanley and Lippman-Hand, "If nothing goes wrong, is everything all right?", JAMA 249,
    1983, whose rule of three is the same for 95 %.
    """
    if calls < 1:
        return None
    return Detection("wrong", 1 - (1 - PROBABILITY) ** (1 / calls), calls)

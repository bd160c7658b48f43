"""How sure a measured value is, and the smallest fault that it detects. Pure.

Repeats are nested: communicator ⊃ repeat ⊃ call. A communicator draws its connections, and so its
paths through the fabric, once; its repeats share them. So a communicator gives one value, the
median of its repeats, and the values of communicators are independent: their variance is that
between communicators plus that within one, divided by its repeats. Their mean is judged; one that
drew a slow path counts as it does for a job. `intervals.interval_of` gives the interval.

A value is decided if its interval is on one side of its bound; if it is not, more communicators are
measured, and after the last of the `LOOKS` it is inconclusive. So a cluster whose true value keeps
its bound fails in at most 1 of 100 cases, and one whose true value misses it passes in at most 1 of
100, however often one looks (Bonferroni).

Source: Searle, Casella and McCulloch, "Variance Components", 1992, chapter 3 (one-way random
model).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_mnode.intervals import interval_of

PROBABILITY = 0.99
LOOKS = (1, 4 / 3, 2, 4)
"""Multiples of the planned number of communicators after which one looks whether a value is
decided; each look has an equal part of the 1 %. One more than three is worth a look of its own: two
degrees of freedom know so little of a variance that the fourth value halves the interval."""
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
    """The smallest fault that a measurement detects with `probability`.

    kind: "less" or "more" for a measured value; "wrong" for calls that are right or wrong.
    share: relative loss or excess of the value, or share of wrong calls. repeats: number of values
    or calls. blur: largest relative difference of two such values in 99 of 100 cases; None for
    calls. tolerated: share of a sound cluster's value that the bound lets a cluster lose; None if
    the promise names none, or an interval decides.
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value over communicators, and how sure it is.

    value: mean of the communicators' values, in their unit. low, high: its interval; the true value
    is below it with at most 1 %, and above it with at most 1 %. values: of the repeats of each
    communicator.
    """

    value: float
    low: float
    high: float
    values: tuple[tuple[float, ...], ...]

    @property
    def interval(self) -> tuple[float, float]:
        """Low and high."""
        return self.low, self.high

    @property
    def repeats(self) -> int:
        """Repeats of all communicators together."""
        return sum(map(len, self.values))

    @property
    def noise(self) -> float:
        """Largest relative difference of two such values in 99 of 100 cases."""
        once = interval_of(_middles(self.values), _both_ends(PROBABILITY), trimmed=False)
        return math.log(once.high / once.low) / math.sqrt(2) if once else math.inf

    @property
    def scatter(self) -> tuple[float, float]:
        """Relative standard deviations: of the repeats of a communicator, and of communicators
        apart from their repeats (analysis of variance)."""
        groups = [list(map(math.log, repeats)) for repeats in self.values]
        means = [statistics.fmean(group) for group in groups]
        between, within = statistics.variance(means), 0.0
        if free := self.repeats - len(groups):
            pairs = zip(groups, means, strict=True)
            within = sum((one - mean) ** 2 for group, mean in pairs for one in group) / free
            between = max(0.0, between - within * len(groups) / self.repeats)
        return math.sqrt(within), math.sqrt(between)

    def detection(self, accepted: tuple[float, float]) -> Detection | None:
        """The smallest fault with which such a value would not have passed, with 99 %.

        accepted: lowest and highest value that keep the bound, one of them infinite. The true value
        is at most `high`; a cluster that lost the share 1 - least / high has at most `least` left,
        and passes in 1 of 100 cases. None if the whole interval misses the bound.
        """
        least, most = accepted
        if math.isfinite(least):
            if self.high < least or least <= 0:
                return None
            return Detection("less", 1 - least / self.high, self.repeats, self.noise)
        if self.low > most or not math.isfinite(most):
            return None
        return Detection("more", most / self.low - 1, self.repeats, self.noise)


def estimate(communicators: Sequence[Sequence[float]], looks: int = len(LOOKS)) -> Estimate | None:
    """The mean of communicators, each by the median of its repeats, and how sure it is.

    communicators: values of the repeats of each. looks: how often one looks at most whether the
    value is decided; 1 if nothing more is measured where it is not. None for fewer than two
    communicators, which say nothing about their noise, and if a value is not finite and above 0.
    """
    if not all(0 < value < math.inf for repeats in communicators for value in repeats):
        return None
    missed = (1 - PROBABILITY) / looks
    found = interval_of(_middles(communicators), _both_ends(1 - missed), trimmed=False)
    if found is None:
        return None
    value = math.sqrt(found.low) * math.sqrt(found.high)
    return Estimate(
        value=min(max(value, found.low), found.high),  # these are equal if nothing differs
        low=found.low,
        high=found.high,
        values=tuple(map(tuple, communicators)),
    )


def _middles(communicators: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.median(repeats) for repeats in communicators]


def _both_ends(each: float) -> float:
    """The confidence of an interval each end of which is kept with `each`."""
    return 2 * each - 1


def wants_more(communicators: int, planned: int, *, decided: bool) -> bool:
    """Whether another communicator is to be measured after so many.

    decided: whether the interval of the value is on one side of its bound.
    """
    looks = {math.ceil(round(planned * times, 9)) for times in LOOKS}
    return communicators < max(looks) and not (decided and communicators in looks)


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

"""Judges whether memory near the accelerator is faster than far memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pytest_mnode.culprit import Culprit
from pytest_mnode.intervals import Interval, interval_of
from pytest_mnode.measurement import Bound, Measurement, at_least
from pytest_mnode.spec import Spec
from pytest_mnode.spec.devices import NumaCriterion

FALSE_ALARM = 0.01
"""Share of clusters that just keep the promise of which any rank fails."""
_RATES = {
    "copy near": "near_gbytes_s",
    "copy far": "far_gbytes_s",
    "copy to device from near": "near_to_device_gbytes_s",
    "copy to device from far": "far_to_device_gbytes_s",
}


@dataclass(frozen=True, slots=True)
class CopyRates:
    """Rates that one rank measured: bytes copied (not bytes moved) in GB/s; None if not measured.

    *_to_device: from pinned memory to the accelerator; None without one. why: why not measured.
    ratios: near rate divided by far rate, by repeat.
    """

    rank: str
    near_gbytes_s: float | None = None
    far_gbytes_s: float | None = None
    near_to_device_gbytes_s: float | None = None
    far_to_device_gbytes_s: float | None = None
    where: str = ""
    why: str = ""
    ratios: tuple[float, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Near rate divided by far rate; None if one of them was not measured."""
        if not self.near_gbytes_s or not self.far_gbytes_s:
            return None
        return self.near_gbytes_s / self.far_gbytes_s


def undecided(ratios: Sequence[float], criterion: NumaCriterion, ranks: int) -> bool:
    """Whether the ratios of a rank's repeats, near over far, leave the promise open."""
    if criterion.copy_near_over_far is None:
        return False
    bound = _bound(criterion.copy_near_over_far)
    return bound.decides(*_interval(ratios, median(ratios), ranks)) is None


def _bound(least: float) -> Bound:
    return at_least(least).of("criteria.numa.copy_near_over_far", least)


def _interval(ratios: Sequence[float], ratio: float, ranks: int) -> tuple[float, float]:
    """The interval of a rank's ratio; the ratio itself if there are no repeats to tell."""
    found = interval_of(ratios, 1 - 2 * FALSE_ALARM / ranks, trimmed=False)
    found = (found or Interval(ratio, ratio)).including(ratio)
    return found.low, found.high


def judge_copies(rates: Sequence[CopyRates], spec: Spec) -> list[Measurement]:
    """The lowest ratio of near to far rates against the promise, and the median rates."""
    criterion = spec.criteria.numa
    if criterion is None or criterion.copy_near_over_far is None:
        return []
    bound, ranks = _bound(criterion.copy_near_over_far), len(rates)
    unknown = [f"{one.rank}: {one.why}" for one in rates if one.ratio is None]
    known = [
        (bound.decides(*_interval(one.ratios, one.ratio, ranks)), one.ratio, one)
        for one in rates
        if one.ratio is not None
    ]
    # First those that surely break the promise, then those that may.
    known.sort(key=lambda one: ([False, None, True].index(one[0]), one[1]))
    keeps, ratio, worst = known[0] if known else (None, None, None)
    note = "; ".join(unknown[:4])
    if worst is not None and not note:
        note = f"{worst.rank}: {worst.where}"
    return [
        Measurement(
            "copy near over far, of the rank with least",
            None if unknown and keeps is not False else ratio,
            "",
            bound,
            "numa.copy_near_over_far",
            Culprit.merged(worst.rank, [one.rank for keeps, _, one in known if keeps is False])
            if worst
            else None,
            note,
            interval=_interval(worst.ratios, ratio, ranks) if worst and ratio else None,
            false_alarm=FALSE_ALARM if worst and worst.ratios else None,
        ),
        *(
            Measurement(f"{name}, median of ranks", median(found), "GB/s")
            for name, field in _RATES.items()
            if (found := [rate for one in rates if (rate := getattr(one, field)) is not None])
        ),
    ]


def copies_table(rates: Sequence[CopyRates]) -> str:
    """Text table of the rates, one line per rank."""
    lines = [f"{'near':>8} {'far':>8} {'ratio':>6}  GB/s"]
    for one in rates:
        values = (one.near_gbytes_s, one.far_gbytes_s, one.ratio)
        near, far, ratio = ("-" if value is None else f"{value:.2f}" for value in values)
        lines.append(f"{near:>8} {far:>8} {ratio:>6}  {one.rank} {one.where or one.why}")
    return "\n".join(lines)

"""Judging reduced metrics: the mean of all values, the sum of all counts. Pure, without torch."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, ulp
from sys import float_info

from pytest_mnode.checks.judged import At, none_wrong, texts_by_who
from pytest_mnode.measurement import Measurement, listed

_ROUNDING = 1e-12
"""Of the mean of absolute values: float64 sums of a million values are better than that."""
_SINGLE = 1e-5
"""What sums in float32 may be off by."""
_Mistake = tuple[str, Sequence[float], float]
"""A wrong way to reduce: in words, what it may come to, and how near to that."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """One rank's own values of a metric, and what it took for the result over all ranks."""

    at: At
    values: tuple[float, ...]
    result: float | None


def judge_mean(label: str, reduced: Sequence[Reduced]) -> Measurement:
    """Has every rank the mean of all values of all ranks, as float64 has it?

    Inconclusive where an average of the ranks' averages would be the same, for then a wrong way
    would not show; and where the sum of all values is not finite, for then many ways agree.
    """
    name = f"{label}: ranks with a wrong mean"
    source = "sum over all values by their number, in float64"
    values = list(itertools.chain.from_iterable(one.values for one in reduced))
    if why := _no_mean(reduced, values):
        return Measurement.unknown(name, why, source=source)
    mean = fsum(values) / len(values)
    tolerance = _ROUNDING * fsum(map(abs, values)) / len(values)
    single = _SINGLE * abs(mean)
    averages = [fsum(one.values) / len(one.values) for one in reduced if one.values]
    of_averages = fsum(averages) / len(averages)
    if abs(of_averages - mean) <= max(tolerance, single):
        why = "an average of the ranks' averages is the same here; give ranks unequal batches"
        return Measurement.unknown(name, why, source=source)
    numbers = [len(one.values) for one in reduced]
    return _judged(
        name,
        source,
        reduced,
        (mean, tolerance),
        (
            ("the average of the ranks' averages", [of_averages], _ROUNDING * abs(of_averages)),
            ("one rank's own", averages, 0),
            ("as float32 has it", [mean], single),
        ),
        f"{mean!r} of {len(values)} values, {min(numbers)} to {max(numbers)} a rank",
    )


def _no_mean(reduced: Sequence[Reduced], values: Sequence[float]) -> str:
    """Why the values have no mean in float64, and whose they are; "" where they have one."""
    if not values:
        return "no rank has a value"
    with contextlib.suppress(OverflowError):
        if isfinite(fsum(map(abs, values))):
            return ""
    share = float_info.max / len(values)
    large = [
        f"{one.at} has {too_large[0]!r}"
        for one in reduced
        if (too_large := [value for value in one.values if not abs(value) <= share])
    ]
    return f"{listed(large)}, and the sum of all values is not finite in float64"


def judge_count(label: str, counted: Sequence[Reduced]) -> Measurement:
    """Has every rank the sum of all counts, exactly?"""
    total = sum(int(one.values[0]) for one in counted)
    return _judged(
        f"{label}: ranks with a wrong sum",
        "sums of whole numbers are exact",
        counted,
        (total, 0),
        [("as float64 has it", [total], len(counted) * ulp(float(total)))],
        f"{total} in all",
    )


def _judged(  # noqa: PLR0917  what is judged, and by what
    name: str,
    source: str,
    reduced: Sequence[Reduced],
    right: tuple[float, float],
    mistakes: Iterable[_Mistake],
    note: str,
) -> Measurement:
    """Ranks whose result is not the right one, give or take; those near a mistake with its name."""
    silent = [str(one.at) for one in reduced if one.result is None]
    if silent or not reduced:
        why = f"{listed(silent) or 'no rank'} has no result"
        return Measurement.unknown(name, why, source=source)
    value, tolerance = right
    texts = []
    for at, result in ((one.at, one.result) for one in reduced if one.result is not None):
        if not abs(result - value) <= tolerance:
            whys = (
                f", {mistake}"
                for mistake, values, margin in mistakes
                if any(abs(result - other) <= max(tolerance, margin) for other in values)
            )
            texts.append((at, f"{result!r}{next(whys, '')}"))
    culprits = texts_by_who(texts, len(reduced))
    return none_wrong(name, culprits, source, count=len(texts), note=note)

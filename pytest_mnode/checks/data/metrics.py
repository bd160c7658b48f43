"""Judges reduced metrics: the mean of all values, the sum of all counts. Pure, without torch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, isfinite, ulp
from sys import float_info

from pytest_mnode.checks.judged import At, texts_by_who
from pytest_mnode.measurement import Measurement, listed

_ROUNDING = 1e-12
"""Relative to the mean of absolute values: float64 sums of a million values are more exact."""
_SINGLE = 1e-5
"""Relative error that sums in float32 may have."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """One rank's own values of a metric, and its result over all ranks."""

    at: At
    values: tuple[float, ...]
    result: float | None


def judge_mean(label: str, reduced: Sequence[Reduced]) -> Measurement:
    """Judge whether every rank has the mean of all values of all ranks, in float64.

    Inconclusive if an average of the ranks' averages is the same, because a wrong formula would not
    show; and if the sum of all values is not finite, because many formulas agree then.
    """
    name = f"{label}: ranks with a wrong mean"
    source = "sum over all values by their number, in float64"
    values = [value for one in reduced for value in one.values]
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
    mistakes = [
        ("the average of the ranks' averages", of_averages, _ROUNDING * abs(of_averages)),
        *(("one rank's own", average, 0.0) for average in averages),
        ("as float32 has it", mean, single),
    ]
    numbers = [len(one.values) for one in reduced]
    note = f"{mean!r} of {len(values)} values, {min(numbers)} to {max(numbers)} a rank"
    return _judged(name, source, reduced, [("", mean, tolerance), *mistakes], note)


def _no_mean(reduced: Sequence[Reduced], values: Sequence[float]) -> str:
    """Why the values have no mean in float64, and whose they are; "" if they have one."""
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
    """Judge whether every rank has exactly the sum of all counts."""
    total = sum(int(one.values[0]) for one in counted)
    inexact = ("as float64 has it", total, len(counted) * ulp(float(total)))
    return _judged(
        f"{label}: ranks with a wrong sum",
        "sums of whole numbers are exact",
        counted,
        [("", total, 0.0), inexact],
        f"{total} in all",
    )


def _judged(
    name: str,
    source: str,
    reduced: Sequence[Reduced],
    ways: Sequence[tuple[str, float, float]],
    note: str,
) -> Measurement:
    """Judge the results of ranks; of a wrong one the culprit says which mistake it comes near to.

    ways: (name, result, tolerance) of the right formula, then of mistakes.
    """
    silent = [str(one.at) for one in reduced if one.result is None]
    if silent or not reduced:
        why = f"{listed(silent) or 'no rank'} has no result"
        return Measurement.unknown(name, why, source=source)
    _, right, tolerance = ways[0]
    texts, shown = [], []
    for at, result in ((one.at, one.result) for one in reduced if one.result is not None):
        if not abs(result - right) <= tolerance:
            near = (w for w, value, margin in ways if abs(result - value) <= max(tolerance, margin))
            texts.append((at, next(near, "")))
            shown.append(f"{at}: {result!r}")
    culprits = texts_by_who(texts, len(reduced))
    note = "; ".join(filter(None, [listed(shown), note]))
    return Measurement.none_allowed(name, culprits, source, count=len(texts), note=note)

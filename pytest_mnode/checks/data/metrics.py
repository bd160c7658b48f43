"""Judging reduced metrics: the mean of all values, the sum of all counts. Pure, without torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import fsum, isfinite, ulp
from sys import float_info

from pytest_mnode.checks.data.facts import At, Counted, Reduced
from pytest_mnode.checks.judged import texts_by_who
from pytest_mnode.measurement import Measurement, listed

_ROUNDING = 1e-12
"""Of the mean of absolute values: float64 sums of a million values are better than that."""
_SINGLE = 1e-5
"""What sums in float32 may be off by."""


def judge_mean(label: str, reduced: Sequence[Reduced]) -> Measurement:
    """Has every rank the mean of all values of all ranks, as float64 has it?

    Inconclusive where an average of the ranks' averages would be the same, for then a wrong way
    would not show; and where a value is not finite, or their sum is not, for then many ways agree.
    """
    name = f"{label}: ranks with a wrong mean"
    source = "sum over all values by their number, in float64"
    values = list(itertools.chain.from_iterable(one.values for one in reduced))
    if not values:
        return Measurement.unknown(name, "no rank has a value", source=source)
    if why := _no_mean(reduced, len(values)):
        return Measurement.unknown(name, why, source=source)
    mean = fsum(values) / len(values)
    tolerance = _ROUNDING * fsum(map(abs, values)) / len(values)
    averages = [fsum(one.values) / len(one.values) for one in reduced if one.values]
    of_averages = fsum(averages) / len(averages)
    if abs(of_averages - mean) <= max(tolerance, _SINGLE * abs(mean)):
        why = "an average of the ranks' averages is the same here; give ranks unequal batches"
        return Measurement.unknown(name, why, source=source)
    silent = [str(one.at) for one in reduced if one.result is None]
    if silent:
        return Measurement.unknown(name, f"{listed(silent)} has no result", source=source)
    texts = []
    for one in reduced:
        result = one.result
        assert result is not None
        if isfinite(result) and abs(result - mean) <= tolerance:
            continue
        why = ""
        if abs(result - of_averages) <= max(tolerance, _ROUNDING * abs(of_averages)):
            why = ", the average of the ranks' averages"
        elif any(abs(result - average) <= tolerance for average in averages):
            why = ", one rank's own"
        elif abs(result - mean) <= _SINGLE * abs(mean):
            why = ", as float32 has it"
        texts.append((one.at, f"{result!r}{why}"))
    note = f"{mean!r} of {len(values)} values, {min(len(one.values) for one in reduced)} to "
    note += f"{max(len(one.values) for one in reduced)} a rank"
    return _judged(name, texts, source, len(reduced), note)


def _no_mean(reduced: Sequence[Reduced], number: int) -> str:
    """Why so many values have no mean in float64, and whose they are; "" where they have one."""
    strange = [
        f"{one.at} has {value!r}"
        for one in reduced
        if (value := next((v for v in one.values if not isfinite(v)), None)) is not None
    ]
    if strange:
        return f"{listed(strange)}, and a mean of that says nothing"
    try:
        fsum(abs(value) for one in reduced for value in one.values)
    except OverflowError:
        share = float_info.max / number
        large = [
            f"{one.at} has {value!r}"
            for one in reduced
            if (value := max(one.values, key=abs, default=0.0)) and abs(value) > share
        ]
        return f"{listed(large)}, and the sum is too large for float64"
    return ""


def judge_count(label: str, counted: Sequence[Counted]) -> Measurement:
    """Has every rank the sum of all counts, exactly?"""
    name, source = f"{label}: ranks with a wrong sum", "sums of whole numbers are exact"
    silent = [str(one.at) for one in counted if one.result is None]
    if silent or not counted:
        why = f"{listed(silent) or 'no rank'} has no result"
        return Measurement.unknown(name, why, source=source)
    total = sum(one.count for one in counted)
    texts = []
    for one in counted:
        if one.result == total:
            continue
        assert one.result is not None
        near = abs(one.result - total) <= len(counted) * ulp(float(total))
        why = ", as float64 has it" if near else ""
        texts.append((one.at, f"{one.result}{why}"))
    return _judged(name, texts, source, len(counted), f"{total} in all")


def _judged(
    name: str, texts: Sequence[tuple[At, str]], source: str, ranks: int, note: str
) -> Measurement:
    culprits = texts_by_who(texts, ranks)
    return Measurement.none_allowed(name, culprits, source, count=len(texts), note=note)

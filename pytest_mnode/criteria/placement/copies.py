"""Judges whether memory near the accelerator is faster than far memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.measuring.copies import CopyRates

_RATES = {
    "copy near": "near_gbytes_s",
    "copy far": "far_gbytes_s",
    "copy to device from near": "near_to_device_gbytes_s",
    "copy to device from far": "far_to_device_gbytes_s",
}


def judge_copies(rates: Sequence[CopyRates], spec: Spec) -> list[Measurement]:
    """The lowest ratio of near to far rates against the promise, and the median rates."""
    criterion = spec.criteria.numa
    if criterion is None or criterion.copy_near_over_far is None:
        return []
    unknown = [f"{one.rank}: {one.why}" for one in rates if one.ratio is None]
    known = [(one.ratio, one) for one in rates if one.ratio is not None]
    ratio, worst = min(known, key=lambda pair: pair[0], default=(None, None))
    low = [one.rank for one_ratio, one in known if one_ratio < criterion.copy_near_over_far]
    note = "; ".join(unknown[:4])
    if worst is not None and not note:
        note = f"{worst.rank}: {worst.where}"
    return [
        Measurement(
            "copy near over far, of the rank with least",
            None if unknown and (ratio is None or ratio >= criterion.copy_near_over_far) else ratio,
            "",
            at_least(criterion.copy_near_over_far).of(
                "criteria.numa.copy_near_over_far", criterion.copy_near_over_far
            ),
            "numa.copy_near_over_far",
            Culprit.merged(worst.rank, low) if worst else None,
            note,
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

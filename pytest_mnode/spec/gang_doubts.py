"""Promises of gangs that ask so little that they would hide a fault."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mnode.spec.models import Spec
from pytest_mnode.spec.quantity import DURATION

_KEY = "criteria.gang"
_RUNS_LEAST_S = 1.0
"""A few heartbeats, which come every 0.2 s, and a few looks."""


def gang_doubts(spec: Spec) -> Iterator[str]:
    """One line for each promise under which what is wrong would not show."""
    promise = spec.criteria.gang
    if promise is None:
        return
    runs = DURATION.text(promise.runs_s)
    if promise.runs_s < _RUNS_LEAST_S:
        yield (
            f"{_KEY}.runs: {runs} is less than {DURATION.text(_RUNS_LEAST_S)}: a gang comes and "
            "goes between two looks"
        )
    if promise.settle_s is not None and promise.settle_s >= promise.runs_s:
        yield (
            f"{_KEY}.settle: {DURATION.text(promise.settle_s)} is no less than runs, {runs}: half "
            "a gang that never gets the rest passes"
        )
    # Clocks of two nodes may differ by twice as much.
    skew, excused = DURATION.text(promise.clock_skew_s), 2 * promise.clock_skew_s
    for key in ("runs", "waits"):
        seconds = getattr(promise, f"{key}_s")
        if excused >= seconds:
            yield (
                f"{_KEY}.clock_skew: {skew} either way is no less than {key}, "
                f"{DURATION.text(seconds)}: ranks that run at the wrong time pass for clocks that "
                "differ"
            )

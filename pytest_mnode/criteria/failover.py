"""Judges what became of traffic while ports of the fabric went down and up again. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from pytest_mnode.culprit import Culprit
from pytest_mnode.intervals import Interval, interval_of
from pytest_mnode.measurement import Bound, Measurement, all_of, at_least, at_most, listed

if TYPE_CHECKING:
    from pytest_mnode.measuring.failover import PortFailover
    from pytest_mnode.spec.at_once import FailoverPromise

_KEY = "fabric.failover"
DOWN, AFTER = "rate while a port is down", "rate after it is up"
_CARRIES = 0.05
"""[choice] Part of what all named ports send, below which one carries nothing."""


_SAME_RATE = 0.05
"""[choice] Part of a bound by which a rate may be below it and still be the same: two rates of
seconds differ by a few per cent, and what a port's loss costs is far more."""
_CONFIDENCE = 0.98
"""Of both sides together: the true rate is beyond one end in at most 1 of 100 cases."""
_BLOCKS = 10
"""[choice] Parts of a stretch of calls in a row, whose medians say how much a rate differs."""


@dataclass(frozen=True, slots=True)
class Course:
    """pause_s: the longest call since the port went down, less a usual one. down, after: rates
    while it was down and once it was up again, as parts of that of before: exactly 0 without a
    call in time for two usual ones; None with too few calls to tell."""

    pause_s: float
    down: Interval | None
    after: Interval | None


def course_of(one: PortFailover, within_s: float) -> Course | None:
    """None if no call ended before the port went down."""
    before = [end - begin for begin, end in one.calls if end <= one.down_s]
    if not before:
        return None
    usual_s, last_s = median(before), one.calls[-1][1]

    def rate(first_s: float, last_s: float) -> Interval | None:
        calls = [end - begin for begin, end in one.calls if begin >= first_s and end <= last_s]
        if not calls and last_s - first_s >= 2 * usual_s:
            return Interval(0.0, 0.0)
        count = min(_BLOCKS, len(before), len(calls))
        parts = zip(_medians(before, count), _medians(calls, count), strict=True)
        return interval_of([a / b for a, b in parts], _CONFIDENCE)

    since = [end - begin for begin, end in one.calls if end > one.down_s]
    pause_s = max(0.0, max(since, default=0.0) - usual_s)
    return Course(pause_s, rate(one.down_s, one.up_s), rate(one.up_s + within_s, last_s))


def _medians(values: Sequence[float], count: int) -> list[float]:
    """Of so many parts in a row."""
    ends = [len(values) * n // count for n in range(count + 1)] if count else []
    return [median(values[a:b]) for a, b in pairwise(ends)]


def judge_failover(found: Sequence[PortFailover], promise: FailoverPromise) -> list[Measurement]:
    """The worst of all ports in each respect; ports that could not be judged are told apart."""
    courses: list[tuple[PortFailover, Course]] = []
    unknown: list[str] = []
    idle = {one.node for one in found} - {one.node for one in found if _carried(one)}
    for one in found:
        course = course_of(one, promise.within_s)
        why = one.why or ("no port of the node carried anything" if one.node in idle else "")
        if why or course is None:
            unknown.append(f"{one.node} {one.port}: {why or 'no call before it went down'}")
        else:
            courses.append((one, course))
            for name, rate in ((DOWN, course.down), (AFTER, course.after)):
                if rate is None:
                    unknown.append(f"{one.node} {one.port}: too few calls for the {name}")
    wrong = [
        Culprit.device(f"{one.node} {one.port}", one.node, one.port) for one in found if one.wrong
    ]
    judged = [
        *_worst(courses, promise),
        Measurement.none_allowed(
            "ports with wrong sums in their failover", wrong, "a sum of whole numbers is exact"
        ),
    ]
    if unknown:
        judged.append(
            Measurement.unknown("failover of each port", listed(unknown), source=f"{_KEY}.ports")
        )
    return judged


def _worst(
    courses: Sequence[tuple[PortFailover, Course]], promise: FailoverPromise
) -> Iterator[Measurement]:
    least, after = promise.at_least_fraction, promise.after_at_least_fraction
    pause = at_most(promise.within_s).of(f"criteria.{_KEY}.within", promise.within_s)
    pauses = [(one, Interval(course.pause_s, course.pause_s)) for one, course in courses]
    yield from _of_ports(
        "longest pause when a port goes down or up", "s", "within", pause, pauses, promise
    )
    for name, key, limit, found in (
        (DOWN, "at_least_fraction", least, [(one, course.down) for one, course in courses]),
        (AFTER, "after_at_least_fraction", after, [(one, course.after) for one, course in courses]),
    ):
        bound = at_least(limit, _SAME_RATE * limit).of(f"criteria.{_KEY}.{key}", limit)
        known = [(one, rate) for one, rate in found if rate is not None]
        yield from _of_ports(name, "", key, bound, known, promise)


def _of_ports(  # noqa: PLR0917  of one respect
    name: str,
    unit: str,
    key: str,
    bound: Bound,
    found: Sequence[tuple[PortFailover, Interval]],
    promise: FailoverPromise,
) -> Iterator[Measurement]:
    """The worst port: one that breaks the bound, else one whose interval contains it."""
    if not found:
        return
    bad = [(one, kept) for one, kept in found if bound.decides(kept.low, kept.high) is False]
    open_ = [(one, kept) for one, kept in found if bound.decides(kept.low, kept.high) is None]
    port, kept = min(bad or open_ or found, key=lambda pair: bound.margin(_middle(pair[1])))
    culprits = [
        Culprit.device(f"{one.node} {one.port} ({_middle(rate):.3g}{unit})", one.node, one.port)
        for one, rate in bad
    ]
    yield Measurement(
        name,
        _middle(kept),
        unit,
        bound,
        f"{_KEY}.{key}" + ("" if unit else " of the rate of before"),
        all_of(culprits),
        f"{port.node} {port.port}; {len(found)} ports, each down for {promise.down_for_s:g} s",
        interval=None if unit else (kept.low, kept.high),
    )


def _middle(kept: Interval) -> float:
    return math.sqrt(kept.low * kept.high)


def _carried(one: PortFailover) -> bool:
    """Whether its going down shows anything: not that of a spare port. True if nobody counted."""
    if not one.sent or one.port not in one.sent:
        return True
    before = {port: first for port, (first, _) in one.sent.items()}
    return before[one.port] >= max(1, _CARRIES * sum(before.values()))

"""Judges what became of traffic while ports of the fabric went down and up again. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, all_of, at_least, at_most, listed

if TYPE_CHECKING:
    from pytest_mnode.measuring.failover import PortFailover
    from pytest_mnode.spec.at_once import FailoverPromise

_KEY = "fabric.failover"
_CARRIES = 0.05
"""[choice] Part of what all named ports send, below which one carries nothing."""


@dataclass(frozen=True, slots=True)
class Course:
    """pause_s: the longest call since the port went down, less a usual one. down, after: rates
    while it was down and once it was up again, as parts of that of before; 0 without a call."""

    pause_s: float
    down: float
    after: float


def course_of(one: PortFailover, within_s: float) -> Course | None:
    """None if no call ended before the port went down."""
    before = [end - begin for begin, end in one.calls if end <= one.down_s]
    if not before:
        return None
    usual_s = median(before)

    def rate(calls: Sequence[float]) -> float:
        return usual_s / median(calls) if calls else 0.0

    since = [end - begin for begin, end in one.calls if end > one.down_s]
    down = [end - begin for begin, end in one.calls if begin >= one.down_s and end <= one.up_s]
    after = [end - begin for begin, end in one.calls if begin >= one.up_s + within_s]
    return Course(max(0.0, max(since, default=0.0) - usual_s), rate(down), rate(after))


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
    least, after, within_s = (
        promise.at_least_fraction,
        promise.after_at_least_fraction,
        promise.within_s,
    )
    parts: tuple[tuple[str, str, str, float, Callable[[Course], float]], ...] = (
        (
            "longest pause when a port goes down or up",
            "s",
            "within",
            within_s,
            lambda one: one.pause_s,
        ),
        ("rate while a port is down", "", "at_least_fraction", least, lambda one: one.down),
        ("rate after it is up", "", "after_at_least_fraction", after, lambda one: one.after),
    )
    for name, unit, key, limit, of in parts:
        if not courses:
            continue
        up_to = unit == "s"
        bound = (at_most(limit) if up_to else at_least(limit)).of(f"criteria.{_KEY}.{key}", limit)
        bad = [(one, of(course)) for one, course in courses if not bound.holds(of(course))]
        port, course = (max if up_to else min)(courses, key=lambda pair: of(pair[1]))
        culprits = [
            Culprit.device(f"{one.node} {one.port} ({value:.3g}{unit})", one.node, one.port)
            for one, value in bad
        ]
        yield Measurement(
            name,
            of(course),
            unit,
            bound,
            f"{_KEY}.{key}" + ("" if up_to else " of the rate of before"),
            all_of(culprits),
            f"{port.node} {port.port}; {len(courses)} ports, each down for "
            f"{promise.down_for_s:g} s",
        )


def _carried(one: PortFailover) -> bool:
    """Whether its going down shows anything: not that of a spare port. True if nobody counted."""
    if not one.sent or one.port not in one.sent:
        return True
    before = {port: first for port, (first, _) in one.sent.items()}
    return before[one.port] >= max(1, _CARRIES * sum(before.values()))

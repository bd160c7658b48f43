"""Judges what became of traffic while ports of the fabric went down and up again, and what
InfiniBand's tools said of the switches. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from pytest_mnode.culprit import Culprit
from pytest_mnode.intervals import Interval, interval_of
from pytest_mnode.logs.subnet import PortLink
from pytest_mnode.measurement import (
    Bound,
    Measurement,
    all_of,
    at_least,
    at_most,
    equals,
    listed,
    with_suspects,
)

if TYPE_CHECKING:
    from pytest_mnode.measuring.failover import PortFailover
    from pytest_mnode.measuring.switches import Switches
    from pytest_mnode.spec.fields import OnOff
    from pytest_mnode.spec.traffic import FailoverPromise, SwitchesPromise


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
    culprits, undecided = (
        [
            Culprit.device(f"{one.node} {one.port} ({_middle(rate):.3g}{unit})", one.node, one.port)
            for one, rate in some
        ]
        for some in (bad, open_)
    )
    yield Measurement(
        name,
        _middle(kept),
        unit,
        bound,
        f"{_KEY}.{key}" + ("" if unit else " of the rate of before"),
        with_suspects(all_of(culprits), undecided),
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


_ERRORS = frozenset(
    (
        *("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors"),
        *("PortRcvRemotePhysicalErrors", "PortXmitDiscards", "LocalLinkIntegrityErrors"),
        "ExcessiveBufferOverrunErrors",
    )
)
"""Not waiting (PortXmitWait), and not relay errors, which multicast causes. Source:
infiniband-diags, ibqueryerrors(8)."""


def judge_switches(
    found: Switches, promise: SwitchesPromise, nodes: Sequence[str]
) -> Iterator[Measurement]:
    """One measurement for each promise. Culprits are ports of switches; a node at the other end of
    a cable is only suspected."""
    key = "fabric.switches"
    if promise.links is not None:
        name, source = "links of the subnet below their speed", f"{key}.links full"
        if isinstance(found.links, str) or found.links is None:
            yield Measurement.unknown(name, f"{found.node}: {found.links}", source=source)
        else:
            slow = {one.ends: one for one in reversed(found.links) if one.fault}
            culprits = [_end(f"{one.name} ({one.fault})", one, nodes) for one in slow.values()]
            total = len({one.ends for one in found.links if one.peer})
            note = f"{total} links, seen from {found.node}"
            yield Measurement.none_allowed(name, culprits, source, note=note)
    if promise.errors_at_most is not None:
        yield _errors(found, promise.errors_at_most, f"{key}.errors_at_most", nodes)
    if promise.subnet_manager is not None:
        yield _manager(found, f"{key}.subnet_manager stable")
    if promise.ibdiagnet is not None:
        yield _diagnosed(found, f"{key}.ibdiagnet clean")
    if promise.adaptive_routing is not None:
        yield _adaptive(found, f"{key}.adaptive_routing", promise.adaptive_routing)


def _diagnosed(found: Switches, source: str) -> Measurement:
    name, diagnosis = "errors that ibdiagnet found", found.diagnosis
    if isinstance(diagnosis, str) or diagnosis is None:
        return Measurement.unknown(name, f"{found.node}: {diagnosis}", source=source)
    stages = listed(f"{stage} {count}" for stage, count in diagnosis.errors.items() if count)
    value, culprit = sum(diagnosis.errors.values()), Culprit(listed(diagnosis.lines) or stages)
    return Measurement(name, value, "", equals(0), source, culprit, stages)


def _adaptive(found: Switches, source: str, wanted: OnOff) -> Measurement:
    name, diagnosis = "switches with adaptive routing", found.diagnosis
    bound, source = at_least(1) if wanted == "on" else equals(0), f"{source} {wanted}"
    known = None if isinstance(diagnosis, str) or diagnosis is None else diagnosis.adaptive
    if known is None:
        why = diagnosis if isinstance(diagnosis, str) else "ibdiagnet says nothing of it"
        return Measurement.unknown(name, f"{found.node}: {why}", expected=bound, source=source)
    culprit = Culprit("routing engine of the subnet manager")
    return Measurement(name, known, "", bound, source, culprit)


def _errors(found: Switches, most: int, source: str, nodes: Sequence[str]) -> Measurement:
    name = "errors of the subnet's ports while all nodes send"
    bound, (before, after) = at_most(most).of(f"criteria.{source}", most), found.errors
    why = next((one for one in (before, after) if isinstance(one, str) or one is None), None)
    if before is None or after is None or isinstance(before, str) or isinstance(after, str):
        why = f"{found.node}: {why}"
        return Measurement.unknown(name, why, expected=bound, source=source)
    rises = {
        key: count - before.get(key, 0)
        for key, count in after.items()
        if key[2] in _ERRORS and count > before.get(key, 0)
    }
    culprits = [
        _end(f"{node} port {port} ({counter} +{by})", PortLink(node, port), nodes)
        for (node, port, counter), by in rises.items()
    ]
    text = listed(culprits)
    culprit = Culprit.merged(text, culprits) if culprits else None
    return Measurement(name, sum(rises.values()), "", bound, f"{source} {most}", culprit)


def _manager(found: Switches, source: str) -> Measurement:
    name, (before, after) = "changes of the subnet manager", found.managers
    if before is None or after is None or isinstance(before, str) or isinstance(after, str):
        why = next(one for one in (before, after) if isinstance(one, str) or one is None)
        return Measurement.unknown(name, f"{found.node}: {why}", source=source)
    changed = (before.guid, before.lid) != (after.guid, after.lid)
    ends = [f"{one.guid} (LID {one.lid}, {one.state})" for one in (before, after)]
    bad = changed or after.state != "MASTER"
    note = " then ".join(dict.fromkeys(ends))
    return Measurement(
        name, int(bad), "", equals(0), source, Culprit(f"subnet manager {note}"), note
    )


def _end(words: str, link: PortLink, nodes: Sequence[str]) -> Culprit:
    """A link, with the nodes of this run that it ends at."""
    hosts = {one.partition(".")[0]: one for one in nodes}
    ends = [(text.split() or [""])[0] for text in (link.node, link.peer)]
    there = [hosts[end] for end in ends if end in hosts]
    return Culprit(words, either=[there]) if there else Culprit(words)

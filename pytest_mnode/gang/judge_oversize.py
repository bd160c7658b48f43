"""Judges of a gang larger than the cluster: refused, or waiting with a reason, blocking none."""

from __future__ import annotations

from pytest_mnode.culprit import Culprit
from pytest_mnode.gang.judge_turns import over_between
from pytest_mnode.gang.timeline import Gang, State
from pytest_mnode.gang.window import (
    Window,
    bound_of,
    counted,
    surely_within,
    unless_others,
    worst,
)
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.gang import GangCriterion

LARGE = "too large"
NO_REASON = "gangs larger than the cluster without a refusal or a reason"
BLOCKED = "jobs that a gang larger than the cluster keeps from running"
OTHERS = "longest time to the start of jobs beside a gang larger than the cluster"
REFUSED = "refused: "
_SOURCE = "a job that can never run is refused or waits with a reason, and blocks no other job"


def judged_oversize(window: Window, promise: GangCriterion) -> list[Measurement]:
    """Judgement of the gang, and of the other jobs."""
    others = [gang for gang in window.gangs if gang.name != LARGE]
    reason = _reason(window, others)
    if not others or window.problem:
        why = window.problem or "no other job was submitted"
        return [reason, Measurement.unknown(BLOCKED, why, source=_SOURCE)]
    late = worst([_time_to_start(window, gang, others, promise) for gang in others])
    return [reason, *unless_others(window, [_blocked(window, others, promise), late])]


def _reason(window: Window, others: list[Gang]) -> Measurement:
    """Whether the scheduler refused the gang, or gave a reason why it waits."""

    def unknown(why: str) -> Measurement:
        return counted(NO_REASON, [], _SOURCE, why)

    def known(note: str) -> Measurement:
        return counted(NO_REASON, [], _SOURCE, note=note)

    refused = [text.partition(REFUSED)[2] for _, text in window.notes if REFUSED in text]
    if refused and not others:
        return unknown(f"the other jobs were refused too: {refused[0]}")
    if refused:
        return known(f"refused: {refused[0]}")
    large = next((gang for gang in window.gangs if gang.name == LARGE), None)
    if large is None:
        return unknown(window.problem or "the gang was not submitted")
    # A state alone is no reason: schedulers give the reason in brackets after the state.
    waits = [one.status for one in window.seen(large) if one.state is State.WAITING]
    reasons = [status for status in waits if "(" in status]
    if why := _not_waiting(window, large, bool(reasons)):
        return unknown(why)
    if reasons:
        return known(f"waits: {reasons[-1]}")
    status = next(filter(None, reversed(waits)), "not shown")
    culprit = f"{window.who(large)}: {status}"
    return counted(NO_REASON, [culprit], _SOURCE, note=f"waits: {status}")


def _not_waiting(window: Window, large: Gang, has_reason: bool) -> str:
    """Why the gang proves nothing: it was not seen, it ran, or it was over; "" if it waited."""
    if not window.states(large):
        return f"{window.who(large)}: the scheduler never showed it"
    if window.first(large, State.WHOLE) or window.beats(large):
        return f"{window.who(large)}: it ran, so it was not larger than the cluster"
    last = [one for one in window.seen(large) if one.observation.answered_s <= window.over_s][-1:]
    if last and last[0].state is State.OVER and not has_reason:
        # The scheduler's words may mean a refusal, or the end of a job that began.
        return f"{window.who(large)}: over before it was cancelled: {last[0].status}"
    return ""


def _blocked(window: Window, others: list[Gang], promise: GangCriterion) -> Measurement:
    """Others that never ran; one that was never seen whole may still have had running ranks."""
    never = [
        gang
        for gang in others
        if window.first(gang, State.WHOLE) is None
        and not window.beats(gang)
        and _room_since(window, gang, others) is not None
    ]
    waited = min((window.known_until_s - gang.submitted_s for gang in never), default=0.0)
    if never and waited <= promise.next_within_s:
        why = f"{window.title}: watched for {waited:.1f} s only"
        return counted(BLOCKED, [], _SOURCE, why)
    guilty = [gang for gang in never if not window.blocked(gang)]
    unknown = window.blocked_note(never[0], window.blocked(never[0])) if never else ""
    culprits = [f"{window.who(gang)}: {window.status(gang)}" for gang in guilty]
    return counted(BLOCKED, culprits, _SOURCE, unknown)


def _room_since(window: Window, gang: Gang, others: list[Gang]) -> tuple[float, float] | None:
    """Earliest and latest time from which a gang could start; None if another never ended.

    If there is no room for all at once, the gang waits for those that started before it.
    """
    since = (gang.submitted_s, gang.submitted_s)
    if sum(one.size for one in others) <= len(window.arena) or not window.arena:
        return since
    own = window.first(gang, State.WHOLE)
    for other in others:
        whole = window.first(other, State.WHOLE)
        if other is gang or whole is None or (own and own.began_s <= whole.began_s):
            continue
        over = over_between(window, other)
        if over is None:
            return None
        since = max(since[0], over[0]), max(since[1], over[1])
    return since


def _time_to_start(
    window: Window, gang: Gang, others: list[Gang], promise: GangCriterion
) -> Measurement:
    limit, since = promise.next_within_s, _room_since(window, gang, others)
    whole = window.first(gang, State.WHOLE)
    value: float | None
    if since is None:
        value, note = None, f"{window.who(gang)}: no room, because another job did not end"
    elif whole is not None:
        value = surely_within(whole.before_s - since[1], whole.first.answered_s - since[0], limit)
        note = "" if value is not None else f"{window.who(gang)}: observations were too far apart"
    else:
        waited = window.known_until_s - since[1]
        value = waited if waited > limit and not window.beats(gang) else None
        note = f"{window.who(gang)} was never seen whole"
    if value is not None and value > limit and (why := window.blocked(gang)):
        value, note = None, window.blocked_note(gang, why)
    bound, source = bound_of(limit, "next_within")
    return Measurement(OTHERS, value, "s", bound, source, Culprit(gang.name), note)

"""Judges of a round: a gang that waited, one larger than the cluster, one that lost a node. Pure.

A gang that waited starts when there is room. One larger than the cluster is refused, or waits with
a reason, and blocks none. One that lost a node ends whole, and returns whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.culprit import Culprit
from pytest_mnode.gang.engine import Observation
from pytest_mnode.gang.heartbeats import clock_note
from pytest_mnode.gang.window import (
    KEY,
    Gang,
    Sighting,
    State,
    Window,
    bound_of,
    counted,
    only_blocked,
    surely_within,
    unless_others,
    worst,
)
from pytest_mnode.measurement import HeadlineMark, Measurement, equals, listed
from pytest_mnode.spec.gang import GangCriterion

NEVER = "gangs that never ran, though there was room"
NEXT = "longest time from room for a gang to its start"
NOT_TRIED = "rounds in which no gang had to wait"
_TURNS = "the next gang starts when there is room for it"
_CONTENTION = "a gang that finds room proves nothing"


@dataclass(frozen=True, slots=True)
class Turn:
    """A gang that waits, and the gangs that must be over before there is room for it.

    second: the waiting gang. not_tried: why no gang had to wait in this round, so that it proves
    nothing; "" if one had.
    """

    second: Gang
    before: tuple[Gang, ...]
    not_tried: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """A round as it was watched. turn: None if the round was cut short."""

    window: Window
    turn: Turn | None


def filled_turn(window: Window, second: str, holding: Sequence[str], freed: Sequence[str]) -> Turn:
    """The turn of a gang for which one node was missing.

    holding: jobs that held the other nodes. freed: jobs that must be over before there is room:
    some of `holding`, and jobs submitted in between. A job in between counts only if it had its
    nodes before the gang: one that had to wait took no room.
    """
    gang = window.gang(second)
    holders = [window.gang(name) for name in holding]
    freeing = [window.gang(name) for name in freed]
    before = tuple(one for one in freeing if one in holders or _ran_first(window, one, gang))
    held = [_whole_at(window, one) for one in holders]
    waited = [
        seen for seen in window.seen(gang) if all(id(seen.observation) in whole for whole in held)
    ]
    if not waited:
        why = f"{window.title}: {second} was never seen while the other jobs held their nodes"
    elif any(seen.state is State.WHOLE for seen in waited):
        why = (
            f"{window.title}: {second} was whole while the other jobs held their nodes: more nodes "
            "were free than the scheduler reported"
        )
    else:
        why = _blocked(window, gang, waited)
    return Turn(gang, before, why)


def _ran_first(window: Window, one: Gang, other: Gang) -> bool:
    """Whether `one` had nodes, or came and went unseen, before `other` was whole."""
    whole = window.first(other, State.WHOLE)
    until_s = window.over_s if whole is None else whole.first.requested_s
    return any(
        seen.observation.requested_s < until_s
        or (seen.observation.requested_s == until_s and seen.state is State.OVER)
        for seen in window.seen(one)
        if seen.state in (State.WHOLE, State.ENDING, State.OVER)
    )


def race_turn(window: Window, names: Sequence[str]) -> Turn:
    """The turn of the gang that started last of those submitted at once."""
    never = float("inf")
    starts = {}
    for name in names:
        whole = window.first(window.gang(name), State.WHOLE)
        starts[name] = never if whole is None else whole.began_s
    last = max(names, key=lambda name: starts[name])
    others = tuple(window.gang(name) for name in names if name != last)
    gang = window.gang(last)
    if all(start == never for start in starts.values()):
        return Turn(gang, ())
    whole_before = set.union(*(_whole_at(window, one) for one in others))
    overlap = [seen for seen in window.seen(gang) if id(seen.observation) in whole_before]
    if any(seen.state is State.WHOLE for seen in overlap):
        why = f"{window.title}: {' and '.join(names)} were whole at once: there was room for both"
    elif not overlap:
        why = f"{window.title}: {last} was never seen while another gang had its nodes"
    else:
        why = _blocked(window, gang, overlap)
    return Turn(gang, others, why)


def _blocked(window: Window, gang: Gang, waited: Sequence[Sighting]) -> str:
    """A note if a gang never waited for nodes while another had them; "" if it did."""
    why = only_blocked(waited)
    return window.blocked_note(gang, why) if why else ""


def _whole_at(window: Window, gang: Gang) -> set[int]:
    return {id(seen.observation) for seen in window.seen(gang) if seen.state is State.WHOLE}


def judged_turn(window: Window, turn: Turn, promise: GangCriterion) -> list[Measurement]:
    """Judgement of whether a gang had to wait, whether each ran in its turn, and how soon."""
    tried = counted(NOT_TRIED, [], _CONTENTION, turn.not_tried)
    second, room = turn.second, _room(window, turn)
    whole = {gang.name: window.first(gang, State.WHOLE) for gang in (second, *turn.before)}
    absent = [gang for gang in window.real if gang.name in whole and whole[gang.name] is None]
    # Gangs that were never seen whole but whose ranks ran: they came and went between two
    # observations.
    unseen = [g for g in absent if window.beats(g) and window.first(g, State.PART) is None]
    since_s = room[1] if room else 0.0
    blocked = {g.name: window.blocked(g, since_s if g == second else 0.0) for g in absent}
    guilty = [gang for gang in absent if gang not in unseen and not blocked[gang.name]]
    innocent = [f"{window.who(g)} was never seen whole, but its ranks ran" for g in unseen]
    innocent += [window.blocked_note(g, blocked[g.name]) for g in absent if blocked[g.name]]
    culprits = [_never_ran(window, gang) for gang in guilty]
    mark = HeadlineMark(
        after="gangs started whole", of=len(whole), right=sum(map(bool, whole.values()))
    )
    never = counted(NEVER, culprits, _TURNS, innocent[0] if innocent else "", headline=mark)
    value, note = _time_to_start(window, turn, room, promise)
    if second in unseen:
        value, note = None, never.note or f"{window.who(second)} was never seen whole"
    late = value is not None and value > promise.next_within_s
    if late and (why := window.blocked(second, since_s)):
        value, note = None, window.blocked_note(second, why)
    surely_never = room is None and not turn.before and _long_enough(window, promise)
    if absent and value is None and not surely_never:
        why = window.problem or never.note or note
        never = Measurement(NEVER, None, "", never.expected, _TURNS, never.culprit, why)
    bound, source = bound_of(promise.next_within_s, "next_within")
    start = Measurement(NEXT, value, "s", bound, source, Culprit(window.who(second)), note)
    return [tried, *unless_others(window, [never, start])]


def _time_to_start(
    window: Window, turn: Turn, room: tuple[float, float] | None, promise: GangCriterion
) -> tuple[float | None, str]:
    """Seconds from room for the waiting gang to its start, None if unknown; and a note."""
    second = turn.second
    whole = window.first(second, State.WHOLE)
    if room is None:
        return None, f"{window.who(second)}: there was never room for it"
    if whole is None:
        waited = window.known_until_s - room[1]
        value = waited if waited > promise.next_within_s else None
        return value, f"{window.who(second)} did not start in {waited:.1f} s"
    # At most, it lasted from the last observation without room to the first observation with the
    # gang whole.
    least, most = whole.before_s - room[1], whole.first.answered_s - room[0]
    value = surely_within(least, most, promise.next_within_s)
    note = f"{window.who(second)} started at {whole.began_s - window.began_s:+.1f} s"
    if value is None:
        note += f", {max(0.0, least):.1f} to {most:.1f} s after there was room"
    return value, note


def _long_enough(window: Window, promise: GangCriterion) -> bool:
    """Whether the window was long enough to conclude that a gang never starts."""
    last = [observation for observation in window.observations if observation.records is not None]
    return bool(last) and last[-1].answered_s - window.began_s > promise.next_within_s


def _never_ran(window: Window, gang: Gang) -> str:
    most = max((len(one.nodes) for one in window.states(gang)), default=0)
    return f"{window.who(gang)}: {most} of {gang.size} nodes at most, {window.status(gang)}"


def _room(window: Window, turn: Turn) -> tuple[float, float] | None:
    """Times of the last observation without room and of the first with room; None if there was
    none."""
    if not turn.before:
        return None
    over_at: list[tuple[float, float]] = []
    for gang in turn.before:
        span = over_between(window, gang)
        if span is None:
            return None
        over_at.append(span)
    return max(over_at)


def over_between(window: Window, gang: Gang) -> tuple[float, float] | None:
    """The two moments between which a gang ended; None if only clearing up ended it."""
    before: Observation | None = None
    span: tuple[float, float] | None = None
    for one in window.seen(gang):
        if one.observation.requested_s >= window.over_s:
            break
        if one.state is not State.OVER:
            span = None  # an answer had omitted the gang, which was not over
        elif span is None:
            span = (before or one.observation).requested_s, one.observation.answered_s
        before = one.observation
    return span


LARGE = "too large"
NO_REASON = "gangs larger than the cluster without a refusal or a reason"
BLOCKED = "jobs that a gang larger than the cluster keeps from running"
OTHERS = "longest time to the start of jobs beside a gang larger than the cluster"
_SOURCE = "a job that can never run is refused or waits with a reason, and blocks no other job"


def judged_oversize(window: Window, promise: GangCriterion) -> list[Measurement]:
    """Judgement of the gang, and of the other jobs."""
    others = [gang for gang in window.gangs if gang.name != LARGE]
    reason = _reason(window, others)
    if not others or window.problem:
        why = window.problem or "no other job was submitted"
        return [reason, Measurement.unknown(BLOCKED, why, source=_SOURCE)]
    late = worst([_start_of_other(window, gang, others, promise) for gang in others])
    return [reason, *unless_others(window, [_blocked_others(window, others, promise), late])]


def _reason(window: Window, others: list[Gang]) -> Measurement:
    """Whether the scheduler refused the gang, or gave a reason why it waits."""

    def unknown(why: str) -> Measurement:
        return counted(NO_REASON, [], _SOURCE, why)

    def known(note: str) -> Measurement:
        return counted(NO_REASON, [], _SOURCE, note=note)

    if window.refused and not others:
        return unknown(f"the other jobs were refused too: {window.refused}")
    if window.refused:
        return known(f"refused: {window.refused}")
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


def _blocked_others(window: Window, others: list[Gang], promise: GangCriterion) -> Measurement:
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


def _start_of_other(
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


OFF = "time from the death of a node until its gang is off all nodes"
FATE = "gangs neither requeued nor cancelled whole when a node had died"
AGAIN = "time until the requeued gang runs whole again"
OLD = "ranks still running after their gang lost a node"


@dataclass(frozen=True, slots=True)
class Lost:
    """A round that lost a node. at_s: when `node` was switched off; None if it was not."""

    window: Window
    node: str = ""
    at_s: float | None = None


def judged_loss(lost: Lost, promise: GangCriterion, off: Mapping[str, float]) -> list[Measurement]:
    """How the gang was terminated, and its fate afterwards. off: see `clocks_off`."""
    # A node that the experiment switched off is no culprit: it is named in brackets.
    window, source = lost.window, f"{KEY}.node_loss {promise.node_loss}"
    if lost.at_s is None:
        why = window.problem or "no node was switched off"
        return [Measurement.unknown(FATE, why, source=source)]
    gang, limit = window.gang("B"), promise.lost_within_s
    bound, within = bound_of(limit, "lost_within")
    who = window.who(gang)
    # Later changes are the effect of clearing up.
    seen = [one for one in window.seen(gang) if one.observation.answered_s <= window.over_s]
    restarts = _restarts_at(seen, lost.at_s)
    first = next((n for n, one in enumerate(seen) if _is_off(one, lost.at_s, restarts)), None)
    if first is None:
        waited = seen[-1].observation.answered_s - lost.at_s if seen else 0.0
        late = waited > limit
        state = seen[-1].state.value if seen else "not seen"
        note = f"{who}: still {state} {waited:.1f} s (after {lost.node} died)"
        culprit = Culprit(f"{who} (after {lost.node} died)")
        return [
            Measurement(OFF, waited if late else None, "s", bound, within, culprit, note),
            Measurement(FATE, 1 if late else None, "", equals(0), source, culprit, note),
        ]
    # It left its nodes between these two, which are far apart if the scheduler was silent.
    on, left = _between(seen, first, lost.at_s)
    beats = [beat for beat in window.beats(gang, restarts) if beat.at_s > lost.at_s]
    unknown = clock_note(off, (b.node for b in beats), promise)
    beats = [beat for beat in beats if beat.node not in off]
    last_beat = max((beat.at_s for beat in beats), default=lost.at_s)
    last_beat = min(last_beat, left + promise.clock_skew_s)
    least_s, most_s = (max(one, last_beat) - lost.at_s for one in (on, left))
    off_s = surely_within(least_s, most_s, limit)
    apart = "" if off_s is not None else _apart(least_s, most_s)
    late_ranks = dict.fromkeys(
        Culprit.rank(f"{who}: rank {b.rank} on {b.node}", b.node, b.rank)
        for b in beats
        if b.at_s > left + promise.clock_skew_s
    )
    whole = "all ranks of a gang are terminated"
    outlived = counted(OLD, late_ranks, whole, unknown and f"{window.title}: {unknown}")
    judged = [
        Measurement(OFF, off_s, "s", bound, within, Culprit(f"{who} (on {lost.node})"), apart),
        outlived,
    ]
    fate, known = _fate(window, gang, restarts, window.known_until_s - left > limit)
    note = f"{who} ({lost.node} dead: {fate})"
    accepted = ("requeued", "cancelled") if promise.node_loss == "either" else (promise.node_loss,)
    wrong = [note] if known and fate not in accepted else []
    judged.append(counted(FATE, wrong, source, "" if known else note, note=note))
    if fate != "cancelled" and promise.node_loss != "cancelled":
        again = next(
            (
                n
                for n, one in enumerate(seen)
                if n >= first and one.state is State.WHOLE and one.restarts > restarts
            ),
            None,
        )
        value = None
        if again is None:
            waited = window.known_until_s - left
            value = waited if waited > limit else None
        elif fate == "requeued":
            began, whole_s = _between(seen, again, lost.at_s)
            least_s, most_s = began - left, whole_s - on
            value = surely_within(least_s, most_s, limit)
            note += "" if value is not None else f"; {_apart(least_s, most_s)}"
        back = Measurement(AGAIN, value, "s", bound, within, Culprit(who), note)
        judged += unless_others(window, [back])
    return judged


def _between(seen: Sequence[Sighting], number: int, since_s: float) -> tuple[float, float]:
    """The request before this sighting, or `since_s`, and its answer: it changed in between."""
    before_s = seen[number - 1].observation.requested_s if number else since_s
    return max(since_s, before_s), seen[number].observation.answered_s


def _apart(least_s: float, most_s: float) -> str:
    least_s = max(0.0, least_s)
    return f"between {least_s:.1f} and {most_s:.1f} s: observations were too far apart"


def starts_that_lost_a_node(lost: Lost) -> dict[int, float]:
    """The start of the gang that lost its node, and when; {} if none did."""
    if lost.at_s is None:
        return {}
    return {_restarts_at(lost.window.seen(lost.window.gang("B")), lost.at_s): lost.at_s}


def _restarts_at(seen: Sequence[Sighting], at_s: float) -> int:
    """Number of restarts at this time, by the last observation before it. It may be above 0
    already, because a prolog may have ended the first start."""
    return next((one.restarts for one in reversed(seen) if one.observation.answered_s <= at_s), 0)


def _is_off(one: Sighting, at_s: float, restarts: int) -> bool:
    """Whether an observation after the loss shows the gang off its nodes, or with nodes for a new
    start.

    A gang that is being terminated may already have the number of the next start.
    """
    if one.observation.requested_s < at_s:
        return False
    anew = one.restarts > restarts and one.state is not State.ENDING
    return anew or one.state in (State.WAITING, State.OVER)


def _fate(window: Window, gang: Gang, restarts: int, late: bool) -> tuple[str, bool]:
    """The fate of a gang in words, and whether it is certain. late: whether it was seen for longer
    than it may take.

    "requeued" if it was whole again, with a heartbeat of every rank, before clearing up began.
    """
    seen = [one for one in window.seen(gang) if one.observation.answered_s <= window.over_s]
    if not seen:
        return "not shown any more", True
    last = seen[-1]
    shown = f"{last.state.value}, {last.status}"
    if window.problem and last.state in (State.WAITING, State.ENDING):
        return f"{shown}; {window.problem}", False
    if last.restarts == restarts:
        return ("cancelled", True) if last.state is State.OVER else (shown, late)
    if last.state is not State.WHOLE:
        others = listed(window.others) if last.state is State.WAITING else ""
        why = f"; others use its nodes: {others}" if others else ""
        sure = last.state is State.OVER or (late and not others)
        return f"requeued and then {shown}{why}", sure
    heard = {(beat.job, beat.rank) for beat in window.beats(gang, last.restarts)}
    if len(heard) < gang.size:
        return f"requeued, but {len(heard)} of {gang.size} ranks sent heartbeats", False
    return "requeued", True

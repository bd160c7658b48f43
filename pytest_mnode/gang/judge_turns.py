"""Judges of the gang that waited in a round, and of its time to start. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mnode.culprit import Culprit
from pytest_mnode.gang.engine import Observation
from pytest_mnode.gang.timeline import Gang, Sighting, State
from pytest_mnode.gang.window import (
    Window,
    bound_of,
    counted,
    only_blocked,
    surely_within,
    unless_others,
)
from pytest_mnode.measurement import HeadlineMark, Measurement
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

"""Whose turn it was: who had to wait, and how soon it started when there was room. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mnode.criteria.restart.findings import Figure, Finding
from pytest_mnode.gang.engine import Look
from pytest_mnode.gang.terms import KEY, Terms, Window, surely_within, unless_others
from pytest_mnode.gang.timeline import Gang, Seen, State
from pytest_mnode.wrong import Wrong, found

NEVER = "gangs that never ran, though there was room"
NEXT = "longest time from room for a gang to its start"
NOT_TRIED = "rounds in which no gang had to wait"
_TURNS = "the next gang starts when there is room for it"


@dataclass(frozen=True, slots=True)
class Turn:
    """A gang that waits, and those that have to be over before there is room for it.

    refused: why nobody had to wait in this round, so that it says nothing; "" where somebody had.
    """

    second: Gang
    before: tuple[Gang, ...]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """A round that was watched, and whose turn it was; None where it did not get that far."""

    window: Window
    turn: Turn | None


def filled_turn(window: Window, second: str, holding: Sequence[str], freed: Sequence[str]) -> Turn:
    """The gang for which one node too few was left. holding: jobs that held the others; freed:
    those of them, and jobs that came in between, that have to be over before there is room.

    One that came in between counts only where it had its nodes first: had it to wait as well, for
    the gang or with it, it took no room.
    """
    gang = window.gang(second)
    holders = [window.gang(name) for name in holding]
    freeing = [window.gang(name) for name in freed]
    before = tuple(one for one in freeing if one in holders or _ran_first(window, one, gang))
    held = [_whole_at(window, one) for one in holders]
    waited = [seen for seen in window.seen(gang) if all(id(seen.look) in whole for whole in held)]
    if not waited:
        return Turn(
            gang, before, f"{window.title}: {second} was never seen beside what filled the room"
        )
    if any(seen.state is State.WHOLE for seen in waited):
        return Turn(
            gang,
            before,
            f"{window.title}: {second} was whole while the room was to be filled: there was more "
            "room than the scheduler said",
        )
    return Turn(gang, before, _barred(window, gang, waited))


def _ran_first(window: Window, one: Gang, other: Gang) -> bool:
    """Whether it had nodes, or had had them between two looks, before the other was whole."""
    whole = window.first(other, State.WHOLE)
    until_s = window.over_s if whole is None else whole.first.asked_s
    return any(
        seen.look.asked_s < until_s or (seen.look.asked_s == until_s and seen.state is State.OVER)
        for seen in window.seen(one)
        if seen.state in (State.WHOLE, State.ENDING, State.OVER)
    )


def race_turn(window: Window, names: Sequence[str]) -> Turn:
    """Of gangs submitted at once the one that came last, and those before it."""
    far = float("inf")
    starts = {}
    for name in names:
        whole = window.first(window.gang(name), State.WHOLE)
        starts[name] = far if whole is None else whole.began_s
    last = max(names, key=lambda name: starts[name])
    others = tuple(window.gang(name) for name in names if name != last)
    gang = window.gang(last)
    if all(start == far for start in starts.values()):
        return Turn(gang, ())
    whole_before = set.union(*(_whole_at(window, one) for one in others))
    overlap = [seen for seen in window.seen(gang) if id(seen.look) in whole_before]
    if any(seen.state is State.WHOLE for seen in overlap):
        both = f"{window.title}: {' and '.join(names)} were whole at once: there was room for both"
        return Turn(gang, others, both)
    if not overlap:
        return Turn(
            gang, others, f"{window.title}: {last} was never seen while another had its nodes"
        )
    return Turn(gang, others, _barred(window, gang, overlap))


def _barred(window: Window, gang: Gang, waited: Sequence[Seen]) -> str:
    """That a gang, while another had its nodes, never waited for those; "" where it did."""
    if not all(seen.barred for seen in waited):
        return ""
    return window.kept_by(gang, waited[-1].said)


def _whole_at(window: Window, gang: Gang) -> set[int]:
    return {id(seen.look) for seen in window.seen(gang) if seen.state is State.WHOLE}


def judged_turn(window: Window, turn: Turn, terms: Terms) -> list[Finding]:
    """Whether somebody had to wait, whether each gang had its turn, and how soon."""
    tried, never, late = _judged_turn(window, turn, terms)
    return [tried, *unless_others(window, [never, late])]


def _judged_turn(window: Window, turn: Turn, terms: Terms) -> tuple[Wrong, Wrong, Figure]:
    tried = Wrong(
        NOT_TRIED,
        None if turn.refused else 0,
        "a gang that finds room proves nothing",
        note=turn.refused,
    )
    whole = {gang.name: window.first(gang, State.WHOLE) for gang in (turn.second, *turn.before)}
    absent = [gang for gang in window.real if gang.name in whole and whole[gang.name] is None]
    # Ranks of one that was never seen whole ran: it came and went between two looks.
    unseen = [gang for gang in absent if window.beats(gang) and not window.held_a_part(gang)]
    room = _room(window, turn)
    since_s = room[1] if room else 0.0
    kept = {g.name: window.barred(g, since_s if g == turn.second else 0.0) for g in absent}
    guilty = [gang for gang in absent if gang not in unseen and not kept[gang.name]]
    never = found(NEVER, _TURNS, [_never(window, gang) for gang in guilty])
    if absent and not never.count:
        notes = [f"{window.who(g)} was never seen whole, and its ranks ran" for g in unseen]
        notes += [window.kept_by(g, kept[g.name]) for g in absent if kept[g.name]]
        never = Wrong(NEVER, None, _TURNS, note=notes[0])
    source = f"{KEY}.next_within"
    second = whole[turn.second.name]
    value: float | None
    if second is not None and room is not None:
        # At most from the last look at which there was no room to the first at which it was whole.
        least, most = second.before_s - room[1], second.first.answered_s - room[0]
        value = surely_within(least, most, terms.next_within_s)
        note = f"{window.who(turn.second)} started at {second.began_s - window.began_s:+.1f} s"
        if value is None:
            note += f", {max(0.0, least):.1f} to {most:.1f} s after there was room, by looks"
    elif turn.second in unseen:
        value, note = None, never.note or f"{window.who(turn.second)} was never seen whole"
    elif second is None and room is not None:
        waited = window.known_until_s - room[1]
        value = waited if waited > terms.next_within_s else None
        note = f"{window.who(turn.second)} did not start in {waited:.1f} s"
    else:
        value, note = None, f"{window.title}: there never was room again"
    late = value is not None and value > terms.next_within_s
    if late and (why := window.barred(turn.second, since_s)):
        value, note = None, window.kept_by(turn.second, why)
    if (
        absent
        and value is None
        and not (room is None and not turn.before and _surely(window, terms))
    ):
        never = Wrong(NEVER, None, _TURNS, never.culprit, window.problem or never.note or note)
    culprit = window.who(turn.second)
    limit = terms.next_within_s
    return tried, never, Figure(NEXT, value, "s", limit, source=source, culprit=culprit, note=note)


def _surely(window: Window, terms: Terms) -> bool:
    """Whether the window was long enough to say that a gang never starts."""
    last = [look for look in window.looks if look.records is not None]
    return bool(last) and last[-1].answered_s - window.began_s > terms.next_within_s


def _never(window: Window, gang: Gang) -> str:
    states = window.states(gang)
    most = max((len(one.nodes) for one in states), default=0)
    return f"{window.who(gang)}: {most} of {gang.size} nodes at most, {window.words(gang)}"


def _room(window: Window, turn: Turn) -> tuple[float, float] | None:
    """When there was room: between the last look at which there was none, and the first at which
    there was. None: never."""
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
    """Between which two moments a gang was over; None where only clearing up ended it."""
    before: Look | None = None
    span: tuple[float, float] | None = None
    until_s = window.over_s
    for one in window.seen(gang):
        if one.look.asked_s >= until_s:
            break
        if one.state is not State.OVER:
            span = None  # what is there again was not over: an answer left it out
        elif span is None:
            span = (before or one.look).asked_s, one.look.answered_s
        before = one.look
    return span

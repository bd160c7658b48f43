"""A gang larger than the cluster: refused, or waiting with a reason, and in nobody's way. Pure."""

from __future__ import annotations

from pytest_mnode.criteria.restart.findings import Figure, Finding
from pytest_mnode.gang.terms import KEY, Terms, Window, surely_within, unless_others, worst
from pytest_mnode.gang.timeline import Gang, State
from pytest_mnode.gang.turns import over_between
from pytest_mnode.wrong import Wrong, found

LARGE = "too large"
UNTOLD = "gangs larger than the cluster without a refusal or a reason"
BLOCKED = "jobs that a gang larger than the cluster keeps from running"
OTHERS = "longest time to the start of others beside it"
REFUSED = "refused: "


def judged_oversize(window: Window, terms: Terms) -> list[Finding]:
    """What became of it, and of the others."""
    source = "nobody waits for what cannot be, and is not told"
    refused = [text.partition(REFUSED)[2] for _, text in window.notes if REFUSED in text]
    large = [gang for gang in window.gangs if gang.name == LARGE]
    others = [gang for gang in window.gangs if gang.name != LARGE]
    if refused and not others:
        why = f"others were not taken either: {refused[0]}"
        told = Wrong(UNTOLD, None, source, note=why)
    elif refused:
        told = Wrong(UNTOLD, 0, source, note=f"refused: {refused[0]}")
    elif large:
        told = _told(window, large[0], source)
    else:
        told = Wrong(UNTOLD, None, source, note=window.problem or "it was not submitted")
    if not others or window.problem:
        why = window.problem or "nothing else was submitted"
        return [told, Wrong(BLOCKED, None, source, note=why)]
    blocked, late = _blocked(window, others, terms, source), _starts(window, others, terms)
    return [told, *unless_others(window, [blocked, late])]


def _blocked(window: Window, others: list[Gang], terms: Terms, source: str) -> Wrong:
    """Those that never ran; of one that was never seen whole, ranks may have run all the same."""
    never = [
        gang
        for gang in others
        if window.first(gang, State.WHOLE) is None
        and not window.beats(gang)
        and _since(window, gang, others) is not None
    ]
    waited = min((window.known_until_s - gang.asked_s for gang in never), default=0.0)
    if never and waited <= terms.next_within_s:
        return Wrong(BLOCKED, None, source, note=f"{window.title}: watched for {waited:.1f} s only")
    guilty = [gang for gang in never if not window.barred(gang)]
    if never and not guilty:
        return Wrong(BLOCKED, None, source, note=window.kept_by(never[0], window.barred(never[0])))
    return found(BLOCKED, source, [f"{window.who(g)}: {window.words(g)}" for g in guilty])


def _starts(window: Window, others: list[Gang], terms: Terms) -> Figure:
    """The longest time to the start of one of them."""
    return worst([_start(window, gang, others, terms) for gang in others])


def _since(window: Window, gang: Gang, others: list[Gang]) -> tuple[float, float] | None:
    """Since when it could start, at the earliest and at the latest: where there is no room for all
    at once, since those were over that started before it. None: never, for one of them ran on."""
    since = (gang.asked_s, gang.asked_s)
    if sum(one.size for one in others) <= len(window.arena) or not window.arena:
        return since
    mine = window.first(gang, State.WHOLE)
    for other in others:
        whole = window.first(other, State.WHOLE)
        if other is gang or whole is None or (mine and mine.began_s <= whole.began_s):
            continue
        over = over_between(window, other)
        if over is None:
            return None
        since = max(since[0], over[0]), max(since[1], over[1])
    return since


def _start(window: Window, gang: Gang, others: list[Gang], terms: Terms) -> Figure:
    limit, since = terms.next_within_s, _since(window, gang, others)
    whole = window.first(gang, State.WHOLE)
    value: float | None
    if since is None:
        value, note = None, f"{window.who(gang)}: there never was room, for another ran on"
    elif whole is not None:
        value = surely_within(whole.before_s - since[1], whole.first.answered_s - since[0], limit)
        note = "" if value is not None else f"{window.who(gang)}: looks were too far apart"
    else:
        waited = window.known_until_s - since[1]
        value = waited if waited > limit and not window.beats(gang) else None
        note = f"{window.who(gang)} was never seen whole"
    if value is not None and value > limit and (why := window.barred(gang)):
        value, note = None, window.kept_by(gang, why)
    source = f"{KEY}.next_within"
    return Figure(OTHERS, value, "s", limit, source=source, culprit=gang.name, note=note)


def _told(window: Window, large: Gang, source: str) -> Wrong:
    states = window.states(large)
    if not states:
        return Wrong(UNTOLD, None, source, note=f"{window.title}: it was never seen")
    if window.first(large, State.WHOLE) or window.beats(large):
        why = "it ran, so that it was not larger than the cluster"
        return Wrong(UNTOLD, None, source, note=f"{window.who(large)}: {why}")
    # A state alone is no reason: schedulers give that in brackets behind it.
    waits = [one.said for one in window.seen(large) if one.state is State.WAITING]
    reasons = [said for said in waits if "(" in said]
    if reasons:
        return Wrong(UNTOLD, 0, source, note=f"waits: {reasons[-1]}")
    last = [one for one in window.seen(large) if one.look.answered_s <= window.over_s][-1:]
    if last and last[0].state is State.OVER:
        # In words that may be a refusal, or the end of what began.
        why = f"over before it was cancelled: {last[0].said}"
        return Wrong(UNTOLD, None, source, note=f"{window.who(large)}: {why}")
    words = next(filter(None, reversed(waits)), "not shown")
    return Wrong(UNTOLD, 1, source, f"{window.who(large)}: {words}", f"waits: {words}")

"""A gang larger than the cluster: refused, or waiting with a reason, and in nobody's way. Pure."""

from __future__ import annotations

from pytest_mnode.gang.terms import KEY, Terms, Window
from pytest_mnode.gang.timeline import Gang, State
from pytest_mnode.restart.findings import Figure, Finding
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
    if refused:
        told = Wrong(UNTOLD, 0, source, note=f"refused: {refused[0]}")
    elif large:
        told = _told(window, large[0], source)
    else:
        told = Wrong(UNTOLD, None, source, note=window.problem or "it was not submitted")
    if not others or window.problem:
        why = window.problem or "nothing else was submitted"
        return [told, Wrong(BLOCKED, None, source, note=why)]
    starts = {gang.name: window.first(gang, State.WHOLE) for gang in others}
    last = max(look.answered_s for look in window.looks)
    waited = {
        gang.name: (last if (one := starts[gang.name]) is None else one.first.answered_s)
        - gang.asked_s
        for gang in others
    }
    never = [
        f"{window.who(gang)}: {_words(window, gang)}"
        for gang in others
        if starts[gang.name] is None
    ]
    surely = max(waited.values()) > terms.next_within_s
    blocked = found(BLOCKED, source, never)
    if never and not surely:
        blocked = Wrong(
            BLOCKED, None, source, note=f"watched for {max(waited.values()):.1f} s only"
        )
    name = max(waited, key=lambda one: waited[one])
    longest = waited[name] if not never or surely else None
    limit, key = terms.next_within_s, f"{KEY}.next_within"
    return [told, blocked, Figure(OTHERS, longest, "s", limit, source=key, culprit=name)]


def _told(window: Window, large: Gang, source: str) -> Wrong:
    states = window.states(large)
    if not states:
        return Wrong(UNTOLD, None, source, note=f"{window.title}: it was never seen")
    words = _words(window, large)
    # A state alone is no reason: schedulers give that in brackets behind it.
    reasons = [seen for seen in window.seen(large) if "(" in seen.said]
    untold = [] if reasons else [f"{window.who(large)}: {words}"]
    return Wrong(UNTOLD, len(untold), source, "; ".join(untold) or None, f"waits: {words}")


def _words(window: Window, gang: Gang) -> str:
    """What the scheduler said of it last, before it was over or cancelled."""
    told = (one.said for one in reversed(window.seen(gang)) if one.state is not State.OVER)
    return next(filter(None, told), "not shown")

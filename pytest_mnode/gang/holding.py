"""What gangs held, by the scheduler's own records: whole or nothing, and each node once. Pure."""

from __future__ import annotations

from pytest_mnode.criteria.restart.findings import Figure
from pytest_mnode.gang.engine import Phase
from pytest_mnode.gang.terms import KEY, Terms, Window
from pytest_mnode.gang.timeline import BLIND_S, Gang, State, Stretch, by_words, stretches
from pytest_mnode.wrong import Wrong, found, listed

PARTS = "longest time that a gang held a part of its nodes"
TWICE = "nodes held by two jobs at once"
NOT_BACK = "nodes not given back"
_ALL_OR_NONE = "a gang has all of its nodes or none"


def parts_held(window: Window, terms: Terms) -> Figure:
    """The longest time that any gang had some of its nodes, and not all.

    Told apart: surely too long; surely short enough; and what looks too far apart leave open.
    """
    source = f"{KEY}.settle" if terms.settle_s else f"{_ALL_OR_NONE} ({KEY}.settle left out)"
    parts = [
        (one, gang)
        for gang in window.real
        for one in window.states(gang)
        if one.state is State.PART
    ]
    note = _blind(window)
    if not parts:
        value = None if note else 0.0
        return Figure(PARTS, value, "s", terms.settle_s, source=source, note=note)
    one, _ = max(parts, key=lambda pair: pair[0].at_most_s)
    surely = max(one.at_least_s for one, _ in parts)
    too_long = not terms.settle_s or surely > terms.settle_s
    if one.at_most_s <= terms.settle_s or too_long:
        value = surely if terms.settle_s and too_long else one.at_most_s
    else:
        value, note = None, f"between {one.at_least_s:.2f} and {one.at_most_s:.2f} s, by looks"
    if note and not too_long:
        value = None
    over = [pair for pair in parts if pair[0].at_least_s > terms.settle_s > 0]
    blamed = sorted(over or parts, key=lambda pair: pair[0].shown_s, reverse=True)
    culprit = listed(_part(window, gang, one) for one, gang in blamed)
    return Figure(PARTS, value, "s", terms.settle_s, source=source, culprit=culprit, note=note)


def _part(window: Window, gang: Gang, one: Stretch) -> str:
    what = f"held {len(one.nodes)} of {gang.size} nodes ({' '.join(one.nodes)})"
    said = f", {one.said}" if one.said else ""
    return f"{window.who(gang)} {what} for {one.shown_s:.1f} s{said}"


def held_twice(window: Window) -> Wrong:
    """Nodes that two jobs of the experiment held at one look, though each asked for whole ones."""
    names = {job: gang.name for gang in window.gangs for job in gang.jobs}
    twice = []
    for look in window.looks:
        holders: dict[str, list[str]] = {}
        for record in (look.records or {}).values():
            if record.phase is Phase.HOLDING:
                for node in record.nodes:
                    holders.setdefault(node, []).append(names.get(record.job, record.job))
        twice += [
            f"{window.title}: {node} by {' and '.join(sorted(who))}"
            for node, who in holders.items()
            if len(who) > 1
        ]
    made = found(TWICE, "each job has its nodes to itself", dict.fromkeys(twice))
    note = _blind(window)
    return made if made.count or not note else Wrong(TWICE, None, made.source, note=note)


def left_in_the_queue(window: Window) -> list[Wrong]:
    """Jobs that were there after all had been cancelled, and nodes that were not given back."""
    jobs, nodes = "jobs left in the queue", NOT_BACK
    source = f"all of it is gone {KEY}.next_within after it was cancelled"
    last = window.looks[-1] if window.looks else None
    if last is None or last.records is None:
        why = f"{window.title}: the scheduler did not answer in the end"
        queue = Wrong(jobs, None, source, note=f"{why}: {last.why}" if last else why)
    else:
        names = {job: gang.name for gang in window.gangs for job in gang.jobs}
        left = [
            f"{window.title}: {names.get(r.job, 'a job that nobody submitted knowingly')} "
            f"({r.job}), {r.said}"
            for r in last.records.values()
            if r.phase is not Phase.OVER
        ]
        queue = found(jobs, source, left)
    if window.not_free is None:
        return [queue, Wrong(nodes, None, source, note=f"{window.title}: the nodes were not shown")]
    if window.taken and not window.not_free:
        why = f"{window.title}: somebody else has {listed(window.taken)}"
        return [queue, Wrong(nodes, None, source, note=why)]
    return [queue, found(nodes, source, [f"{window.title}: {n}" for n in window.not_free])]


def states(window: Window) -> list[Figure]:
    """Every state that a gang went through, and for how long: recorded, not judged."""
    told = []
    for gang in window.real:
        for one in window.states(gang):
            if one.state is State.OVER:
                continue
            held = f"{len(one.nodes)} of {gang.size}: {' '.join(one.nodes)}; " if one.nodes else ""
            began = f"from {one.began_s - window.began_s:+.1f} s"
            said = _all_said(window, gang, one)
            told.append(
                Figure(
                    f"{window.who(gang)}{_again(one)}: {one.state.value}",
                    max(0.0, one.shown_s),
                    "s",
                    note=f"{held}{said}; {began}",
                )
            )
    return told


def _all_said(window: Window, gang: Gang, one: Stretch) -> str:
    """The scheduler's words in a state: each with its time, where there were several."""
    within = [seen for seen in window.seen(gang) if one.began_s <= seen.look.answered_s]
    parts = [
        part
        for part in stretches(within, one.before_s, by_words)
        if part.state is one.state and part.began_s < one.latest_s and part.said
    ]
    if len(parts) < 2:
        return parts[0].said if parts else one.said
    return ", ".join(f"{part.said} {max(0.0, part.shown_s):.1f} s" for part in parts)


def _again(one: Stretch) -> str:
    return f", start {one.life + 1}" if one.life else ""


def unseen(window: Window) -> Figure:
    """The longest time without an answer of the scheduler: recorded."""
    longest = window.longest_unseen_s
    return Figure("longest time between two looks", longest, "s")


def _blind(window: Window) -> str:
    """Why a gang may have come and gone unseen; "" where it may not."""
    longest = window.longest_unseen_s
    if longest is None:
        whys = [look.why for look in window.looks if look.why]
        said = f": {whys[-1]}" if whys else ""
        return f"{window.title}: the scheduler did not answer twice{said}"
    if longest > BLIND_S:
        whys = [look.why for look in window.looks if look.why]
        said = f": {whys[-1]}" if whys else ""
        return f"{window.title}: nothing was seen for {longest:.1f} s (at most {BLIND_S:g}){said}"
    return ""

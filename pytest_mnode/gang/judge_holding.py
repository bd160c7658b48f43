"""Judges of the nodes that gangs held, by the scheduler's records: all or none, each once. Pure."""

from __future__ import annotations

from pytest_mnode.culprit import Culprit
from pytest_mnode.gang.engine import Phase
from pytest_mnode.gang.timeline import BLIND_S, Gang, State, Stretch, by_status, stretches
from pytest_mnode.gang.window import KEY, Window, counted
from pytest_mnode.measurement import Measurement, at_most, listed
from pytest_mnode.spec.gang import GangCriterion

PARTS = "longest time that a gang held a part of its nodes"
TWICE = "nodes held by two jobs at once"
NOT_BACK = "nodes not given back"
_LEFT = "jobs left in the queue"
_UNANSWERED = "a job whose submission was not answered"
_ALL_OR_NONE = "a gang has all of its nodes or none"


def parts_held(window: Window, promise: GangCriterion) -> Measurement:
    """The longest time that any gang held some but not all of its nodes.

    Inconclusive if observations are too far apart to tell whether that was longer than `settle`.
    """
    settle_s = promise.settle_s or 0.0
    source = f"{KEY}.settle" if settle_s else f"{_ALL_OR_NONE} ({KEY}.settle left out)"
    parts = [
        (one, gang)
        for gang in window.real
        for one in window.states(gang)
        if one.state is State.PART
    ]
    note = _blind(window)
    value: float | None
    culprit = None
    if not parts:
        value = None if note else 0.0
    else:
        longest, _ = max(parts, key=lambda pair: pair[0].at_most_s)
        surely = max(one.at_least_s for one, _ in parts)
        too_long = not settle_s or surely > settle_s
        if longest.at_most_s <= settle_s or too_long:
            value = surely if settle_s and too_long else longest.at_most_s
        else:
            value = None
            least, most = longest.at_least_s, longest.at_most_s
            note = f"between {least:.2f} and {most:.2f} s: observations were too far apart"
        if note and not too_long:
            value = None
        over = [pair for pair in parts if pair[0].at_least_s > settle_s > 0]
        blamed = sorted(over or parts, key=lambda pair: pair[0].shown_s, reverse=True)
        culprit = Culprit(listed(_part(window, gang, one) for one, gang in blamed))
    bound = at_most(settle_s).of(f"{KEY}.settle", settle_s)
    return Measurement(PARTS, value, "s", bound, source, culprit, note)


def _part(window: Window, gang: Gang, one: Stretch) -> str:
    what = f"held {len(one.nodes)} of {gang.size} nodes ({' '.join(one.nodes)})"
    status = f", {one.status}" if one.status else ""
    return f"{window.who(gang)} {what} for {one.shown_s:.1f} s{status}"


def held_twice(window: Window) -> Measurement:
    """Nodes that two jobs of the experiment held at the same observation, although each job
    requests whole nodes."""
    names = window.names_of_jobs
    twice = []
    for observation in window.observations:
        holders: dict[str, list[str]] = {}
        for record in (observation.records or {}).values():
            if record.phase is Phase.HOLDING:
                for node in record.nodes:
                    holders.setdefault(node, []).append(names.get(record.job, record.job))
        twice += [
            f"{window.title}: {' and '.join(sorted(who))} (on {node})"
            for node, who in holders.items()
            if len(who) > 1
        ]
    return counted(TWICE, dict.fromkeys(twice), "each job has its nodes to itself", _blind(window))


def left_in_the_queue(window: Window) -> list[Measurement]:
    """Jobs that were still there after all jobs had been cancelled, and nodes that were not
    released."""
    source = f"no job is left {KEY}.next_within after all were cancelled"
    last = window.observations[-1] if window.observations else None
    silent = ""
    if last is None or last.records is None:
        reason = f": {last.why}" if last else ""
        silent = f"{window.title}: the scheduler did not answer at the end{reason}"
    names = window.names_of_jobs
    left = [
        f"{window.title}: {names.get(record.job, _UNANSWERED)} ({record.job}), {record.status}"
        for record in ((last.records if last else None) or {}).values()
        if record.phase is not Phase.OVER
    ]
    unknown = ""
    if window.not_free is None:
        unknown = f"{window.title}: the scheduler did not list its nodes"
    elif window.taken:
        unknown = f"{window.title}: others use {listed(window.taken)}"
    nodes = [Culprit(f"{window.title}: {node}", node) for node in window.not_free or ()]
    return [counted(_LEFT, left, source, silent), counted(NOT_BACK, nodes, source, unknown)]


def states(window: Window) -> list[Measurement]:
    """Every state of every gang with its duration; recorded, not judged."""
    recorded = []
    for gang in window.real:
        for one in window.states(gang):
            if one.state is State.OVER:
                continue
            held = f"{len(one.nodes)} of {gang.size}: {' '.join(one.nodes)}; " if one.nodes else ""
            began = f"from {one.began_s - window.began_s:+.1f} s"
            again = f", start {one.restarts + 1}" if one.restarts else ""
            name = f"{window.who(gang)}{again}: {one.state.value}"
            note = f"{held}{_statuses(window, gang, one)}; {began}"
            recorded.append(Measurement(name, max(0.0, one.shown_s), "s", note=note))
    return recorded


def _statuses(window: Window, gang: Gang, one: Stretch) -> str:
    """The scheduler's words during a state, each with its duration if there were several."""
    within = [seen for seen in window.seen(gang) if one.began_s <= seen.observation.answered_s]
    parts = [
        part
        for part in stretches(within, one.before_s, by_status)
        if part.state is one.state and part.began_s < one.latest_s and part.status
    ]
    if len(parts) < 2:
        return parts[0].status if parts else one.status
    return ", ".join(f"{part.status} {max(0.0, part.shown_s):.1f} s" for part in parts)


def longest_unseen(window: Window) -> Measurement:
    """The longest time without an answer of the scheduler; recorded, not judged."""
    return Measurement("longest time between two observations", window.longest_unseen_s, "s")


def _blind(window: Window) -> str:
    """Why a gang may have come and gone unseen; "" if that is impossible."""
    longest = window.longest_unseen_s
    if longest is not None and longest <= BLIND_S:
        return ""
    whys = [observation.why for observation in window.observations if observation.why]
    reason = f": {whys[-1]}" if whys else ""
    if longest is None:
        return f"{window.title}: the scheduler answered fewer than two requests{reason}"
    limit = f"(at most {BLIND_S:g} s)"
    return f"{window.title}: the scheduler gave no answer for {longest:.1f} s {limit}{reason}"

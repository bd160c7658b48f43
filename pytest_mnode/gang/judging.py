"""The measurements of an experiment, over all of its rounds, and of the nodes that gangs held: by
the scheduler's records all or none, each once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_mnode.culprit import Culprit
from pytest_mnode.gang import judge_ranks, judge_rounds
from pytest_mnode.gang.engine import Phase
from pytest_mnode.gang.heartbeats import clocks_off
from pytest_mnode.gang.judge_rounds import (
    Lost,
    Round,
    judged_loss,
    judged_oversize,
    starts_that_lost_a_node,
)
from pytest_mnode.gang.window import (
    BLIND_S,
    KEY,
    SMALL,
    Gang,
    State,
    Stretch,
    Window,
    bound_of,
    by_status,
    counted,
    longest_unseen_s,
    stretches,
    worst,
)
from pytest_mnode.measurement import (
    HeadlineMark,
    Measurement,
    Relation,
    Verdict,
    all_of,
    listed,
)
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
    bound, _ = bound_of(settle_s, "settle")
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
        unknown = f"{window.title}: the scheduler did not list its nodes or their users"
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


def _blind(window: Window) -> str:
    """Why a gang may have come and gone unseen; "" if that is impossible."""
    longest = longest_unseen_s(window.observations, window.began_s)
    if longest is not None and longest <= BLIND_S:
        return ""
    whys = [observation.why for observation in window.observations if observation.why]
    reason = f": {whys[-1]}" if whys else ""
    if longest is None:
        return f"{window.title}: the scheduler answered fewer than two requests{reason}"
    limit = f"(at most {BLIND_S:g} s)"
    return f"{window.title}: the scheduler gave no answer for {longest:.1f} s {limit}{reason}"


_NO_START = "it did not start in this round"


def judged_rounds(rounds: Sequence[Round], promise: GangCriterion) -> list[Measurement]:
    """Measurements of rounds in which gangs had to wait for each other, or for room."""
    each = []
    off = clocks_off((one.window for one in rounds), promise)
    for one in rounds:
        window = one.window
        judged = _of_any_window(window, promise, off, {})
        if one.turn is None:
            why = window.problem or f"{window.title}: cut short"
            source = "each round runs to its end"
            judged.append(Measurement.unknown(judge_rounds.NOT_TRIED, why, source=source))
        else:
            judged += judge_rounds.judged_turn(window, one.turn, promise)
        each.append(judged)
    return [*_over_all_rounds(each), *_recorded([one.window for one in rounds])]


def judged_size(window: Window, promise: GangCriterion) -> list[Measurement]:
    off = clocks_off([window], promise)
    judged = [*judged_oversize(window, promise), *_of_any_window(window, promise, off, {})]
    return [*judged, *_recorded([window])]


def judged_lost(lost: Lost, promise: GangCriterion) -> list[Measurement]:
    window, off = lost.window, clocks_off([lost.window], promise)
    judged = [
        *judged_loss(lost, promise, off),
        *_of_any_window(window, promise, off, starts_that_lost_a_node(lost)),
    ]
    if window.problem and window.not_free == (lost.node,):
        # If the switched-off node did not return, that is not the scheduler's fault.
        judged = [
            replace(one, value=None, culprit=None, note=window.problem)
            if one.name == NOT_BACK
            else one
            for one in judged
        ]
    return [*judged, *_recorded([window])]


def _of_any_window(
    window: Window,
    promise: GangCriterion,
    off: Mapping[str, float],
    lost_at: Mapping[int, float],
) -> list[Measurement]:
    """Measurements common to all experiments: all nodes or none, and nothing left over.

    off: see `clocks_off`. lost_at: starts that lost a node, and when.
    """
    return [
        parts_held(window, promise),
        held_twice(window),
        *judge_ranks.ranks_out_of_time(window, promise, off),
        judge_ranks.ranks_elsewhere(window),
        judge_ranks.ranks_alone(window, promise, lost_at, off),
        judge_ranks.ranks_to_their_end(window, promise, lost_at, off),
        *left_in_the_queue(window),
    ]


def _over_all_rounds(each: Iterable[Sequence[Measurement]]) -> list[Measurement]:
    """One measurement per name: the sum of counts, or the worst of other values."""
    by_name: dict[str, list[Measurement]] = {}
    for judged in each:
        for one in judged:
            by_name.setdefault(one.name, []).append(one)
    return [
        _sum(some)
        if some[0].expected is not None and some[0].expected.relation is Relation.EQUALS
        else worst(some)
        for some in by_name.values()
    ]


def _sum(some: Sequence[Measurement]) -> Measurement:
    """The sum of counts; a failure in one round outweighs an unknown count in another."""
    total = sum(one.value or 0 for one in some)
    unknown = not total and any(one.verdict is Verdict.INCONCLUSIVE for one in some)
    culprit = all_of(one.culprit for one in some)
    notes = listed(one.note for one in some if one.note)
    value = None if unknown else total
    mark = HeadlineMark.summed(one.headline for one in some)
    return replace(some[0], value=value, culprit=culprit, note=notes, headline=mark)


def _recorded(windows: Sequence[Window]) -> list[Measurement]:
    """Measurements not judged: states with durations, small jobs, and times between
    observations."""
    unseen = [longest_unseen_s(one.observations, one.began_s) for one in windows]
    longest = max(unseen, key=lambda seconds: seconds or 0.0)
    recorded = [Measurement("longest time between two observations", longest, "s")]
    small = [(w, gang) for w in windows for gang in w.gangs if gang.name == SMALL]
    for window, gang in small:
        start = window.first(gang, State.WHOLE)
        waited = None if start is None else start.began_s - gang.submitted_s
        note = "" if start is not None else _why_no_start(window, gang)
        name = f"{window.who(gang)}: time to its start"
        recorded.append(Measurement(name, waited, "s", note=note))
    for window in windows:
        recorded += [*states(window), *judge_ranks.presence(window)]
    return recorded


def _why_no_start(window: Window, gang: Gang) -> str:
    over = (one for one in window.seen(gang) if one.state is State.OVER)
    ended = next((one for one in over if one.observation.answered_s <= window.over_s), None)
    if ended is not None:
        return f"it started and ended between two observations: {ended.status}"
    return (
        "its start was not seen, but its ranks sent heartbeats" if window.beats(gang) else _NO_START
    )

"""The measurements of an experiment, over all of its rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_mnode.gang import judge_holding, judge_ranks, judge_turns
from pytest_mnode.gang.heartbeats import clocks_off
from pytest_mnode.gang.judge_loss import Lost, judged_loss, starts_that_lost_a_node
from pytest_mnode.gang.judge_oversize import judged_oversize
from pytest_mnode.gang.judge_turns import Round
from pytest_mnode.gang.timeline import Gang, State
from pytest_mnode.gang.window import SMALL, Window, worst
from pytest_mnode.measurement import HeadlineMark, Measurement, Relation, Verdict, all_of, listed
from pytest_mnode.spec.gang import GangCriterion

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
            judged.append(Measurement.unknown(judge_turns.NOT_TRIED, why, source=source))
        else:
            judged += judge_turns.judged_turn(window, one.turn, promise)
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
            if one.name == judge_holding.NOT_BACK
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
        judge_holding.parts_held(window, promise),
        judge_holding.held_twice(window),
        *judge_ranks.ranks_out_of_time(window, promise, off),
        judge_ranks.ranks_elsewhere(window),
        judge_ranks.ranks_alone(window, promise, lost_at, off),
        judge_ranks.ranks_to_their_end(window, promise, lost_at, off),
        *judge_holding.left_in_the_queue(window),
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
    unseen = [judge_holding.longest_unseen(window) for window in windows]
    recorded = [max(unseen, key=lambda one: one.value or 0.0)]
    small = [(w, gang) for w in windows for gang in w.gangs if gang.name == SMALL]
    for window, gang in small:
        start = window.first(gang, State.WHOLE)
        waited = None if start is None else start.began_s - gang.submitted_s
        note = "" if start is not None else _why_no_start(window, gang)
        name = f"{window.who(gang)}: time to its start"
        recorded.append(Measurement(name, waited, "s", note=note))
    for window in windows:
        recorded += [*judge_holding.states(window), *judge_ranks.presence(window)]
    return recorded


def _why_no_start(window: Window, gang: Gang) -> str:
    over = (one for one in window.seen(gang) if one.state is State.OVER)
    ended = next((one for one in over if one.observation.answered_s <= window.over_s), None)
    if ended is not None:
        return f"it started and ended between two observations: {ended.status}"
    return (
        "its start was not seen, but its ranks sent heartbeats" if window.beats(gang) else _NO_START
    )

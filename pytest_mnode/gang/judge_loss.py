"""Judges of a gang that lost a node: it must end whole, and return whole or not at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.culprit import Culprit
from pytest_mnode.gang.heartbeats import clock_note
from pytest_mnode.gang.timeline import Gang, Sighting, State
from pytest_mnode.gang.window import KEY, Window, bound_of, counted, unless_others
from pytest_mnode.measurement import Measurement, equals, listed
from pytest_mnode.spec.gang import GangCriterion

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
    left = next(
        (one.observation.answered_s for one in seen if _is_off(one, lost.at_s, restarts)), None
    )
    if left is None:
        waited = seen[-1].observation.answered_s - lost.at_s if seen else 0.0
        late = waited > limit
        state = seen[-1].state.value if seen else "not seen"
        note = f"{who}: still {state} {waited:.1f} s (after {lost.node} died)"
        culprit = Culprit(f"{who} (after {lost.node} died)")
        return [
            Measurement(OFF, waited if late else None, "s", bound, within, culprit, note),
            Measurement(FATE, 1 if late else None, "", equals(0), source, culprit, note),
        ]
    beats = [beat for beat in window.beats(gang, restarts) if beat.at_s > lost.at_s]
    unknown = clock_note(off, (b.node for b in beats), promise)
    beats = [beat for beat in beats if beat.node not in off]
    last_beat = max((beat.at_s for beat in beats), default=lost.at_s)
    off_s = max(left, min(last_beat, left + promise.clock_skew_s)) - lost.at_s
    late_ranks = dict.fromkeys(
        Culprit.rank(f"{who}: rank {b.rank} on {b.node}", b.node, b.rank)
        for b in beats
        if b.at_s > left + promise.clock_skew_s
    )
    whole = "all ranks of a gang are terminated"
    outlived = counted(OLD, late_ranks, whole, unknown and f"{window.title}: {unknown}")
    judged = [
        Measurement(OFF, off_s, "s", bound, within, Culprit(f"{who} (on {lost.node})")),
        outlived,
    ]
    fate, known = _fate(window, gang, restarts)
    note = f"{who} ({lost.node} dead: {fate})"
    accepted = ("requeued", "cancelled") if promise.node_loss == "either" else (promise.node_loss,)
    wrong = [note] if known and fate not in accepted else []
    judged.append(counted(FATE, wrong, source, "" if known else note, note=note))
    if fate != "cancelled" and promise.node_loss != "cancelled":
        again_s = next(
            (
                one.observation.answered_s
                for one in seen
                if one.state is State.WHOLE
                and one.restarts > restarts
                and one.observation.answered_s >= left
            ),
            None,
        )
        if again_s is None:
            waited = window.known_until_s - left
            value = waited if waited > limit else None
        else:
            value = again_s - left if fate == "requeued" else None
        back = Measurement(AGAIN, value, "s", bound, within, Culprit(who), note)
        judged += unless_others(window, [back])
    return judged


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


def _fate(window: Window, gang: Gang, restarts: int) -> tuple[str, bool]:
    """The fate of a gang in words, and whether it is certain.

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
        return ("cancelled" if last.state is State.OVER else shown), True
    if last.state is not State.WHOLE:
        others = listed(window.others) if last.state is State.WAITING else ""
        why = f"; others use its nodes: {others}" if others else ""
        return f"requeued and then {shown}{why}", not others
    heard = {(beat.job, beat.rank) for beat in window.beats(gang, last.restarts)}
    if len(heard) < gang.size:
        return f"requeued, but {len(heard)} of {gang.size} ranks sent heartbeats", False
    return "requeued", True

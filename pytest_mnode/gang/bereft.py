"""A gang whose node died: it goes whole, and comes back whole or not at all. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.criteria.restart.findings import Figure, Finding
from pytest_mnode.gang import clocks
from pytest_mnode.gang.terms import KEY, Terms, Window, unless_others
from pytest_mnode.gang.timeline import Gang, Seen, State
from pytest_mnode.spec.gang import GangCriterion
from pytest_mnode.wrong import Wrong, found, listed

OFF = "time from the death of a node until its gang is off all nodes"
FATE = "gangs neither requeued nor cancelled whole when a node had died"
AGAIN = "time from there until it runs again, whole"
OLD = "ranks of the start that lost a node that ran on"


@dataclass(frozen=True, slots=True)
class Lost:
    """What was done: which node was switched off and when; None where it did not come to that."""

    window: Window
    node: str = ""
    at_s: float | None = None


def judged_loss(
    lost: Lost, promise: GangCriterion, terms: Terms, off: Mapping[str, float]
) -> list[Finding]:
    """How the gang went, and what became of it. off: clocks, see `clocks_off`."""
    window, source = lost.window, f"{KEY}.node_loss {promise.node_loss}"
    if lost.at_s is None:
        return [Wrong(FATE, None, source, note=window.problem or "no node was switched off")]
    gang, limit = window.gang("B"), promise.lost_within_s
    # What comes after that, clearing up did.
    seen = [one for one in window.seen(gang) if one.look.answered_s <= window.over_s]
    life = _life_at(seen, lost.at_s)
    left = next(
        (
            one.look.answered_s
            for one in seen
            if one.look.asked_s >= lost.at_s
            and (one.state in (State.WAITING, State.OVER) or _anew(one, life))
        ),
        None,
    )
    beats = [b for b in window.beats(gang) if b.life == life and b.at_s > lost.at_s]
    who = window.who(gang)
    if left is None:
        waited = seen[-1].look.answered_s - lost.at_s if seen else 0.0
        value = waited if waited > limit else None
        state = seen[-1].state.value if seen else "not seen"
        note = f"{who}: still {state} {waited:.1f} s after {lost.node} died"
        return [
            Figure(OFF, value, "s", limit, source=f"{KEY}.lost_within", culprit=note, note=note),
            Wrong(
                FATE, None if value is None else 1, source, f"{who} after {lost.node} died", note
            ),
        ]
    why = clocks.told(off, (b.node for b in beats), terms)
    beats = [b for b in beats if b.node not in off]
    last_beat = max((b.at_s for b in beats), default=lost.at_s)
    off_s = max(left, min(last_beat, left + terms.clock_skew_s)) - lost.at_s
    late = [b for b in beats if b.at_s > left + terms.clock_skew_s]
    outlived = found(
        OLD,
        "a gang is taken down whole",
        dict.fromkeys(f"{who}: rank {b.rank} on {b.node}" for b in late),
    )
    if why and not outlived.count:
        outlived = Wrong(OLD, None, outlived.source, note=f"{window.title}: {why}")
    findings: list[Finding] = [
        Figure(
            OFF, off_s, "s", limit, source=f"{KEY}.lost_within", culprit=f"{who} on {lost.node}"
        ),
        outlived,
    ]
    again = next(
        (
            one
            for one in seen
            if one.state is State.WHOLE and one.life > life and one.look.answered_s >= left
        ),
        None,
    )
    came_to, known = _came_to(window, gang, life)
    wrong = came_to not in (
        {"requeued", "cancelled"} if promise.node_loss == "either" else {promise.node_loss}
    )
    fate = f"{who}, {lost.node} dead: {came_to}"
    if known:
        findings.append(Wrong(FATE, int(wrong), source, fate if wrong else None, fate))
    else:
        findings.append(Wrong(FATE, None, source, note=fate))
    if came_to != "cancelled" and promise.node_loss != "cancelled":
        stayed = again is not None and came_to == "requeued"
        value = again.look.answered_s - left if again is not None and stayed else None
        if again is None:
            waited = window.known_until_s - left
            value = waited if waited > limit else None
        back = Figure(AGAIN, value, "s", limit, source=f"{KEY}.lost_within", culprit=who, note=fate)
        findings += unless_others(window, [back])
    return findings


def bereft_lives(lost: Lost) -> dict[int, float]:
    """The life that lost its node, and when; none where it did not come to that."""
    if lost.at_s is None:
        return {}
    return {_life_at(lost.window.seen(lost.window.gang("B")), lost.at_s): lost.at_s}


def _life_at(seen: Sequence[Seen], at_s: float) -> int:
    """Which start ran when the node was lost: by the last look before. It need not be the first:
    one that a prolog ended is over."""
    return next((one.life for one in reversed(seen) if one.look.answered_s <= at_s), 0)


def _anew(one: Seen, life: int) -> bool:
    """Whether it has nodes for another start; what ends may count as the next one already."""
    return one.life > life and one.state is not State.ENDING


def _came_to(window: Window, gang: Gang, life: int) -> tuple[str, bool]:
    """What became of a gang, and whether that is known.

    It is requeued where it is whole again, with every rank, until clearing up begins.
    """
    until_s = window.over_s
    seen = [one for one in window.seen(gang) if one.look.answered_s <= until_s]
    last = seen[-1] if seen else None
    if last is None:
        return "not seen any more", True
    said = f"{last.state.value}, {last.said}"
    anew = last.life != life
    if window.problem and last.state in (State.WAITING, State.ENDING):
        came_to = f"{said}; {window.problem}", False
    elif not anew:
        came_to = ("cancelled" if last.state is State.OVER else said), True
    elif last.state is State.WAITING and window.others:
        who = listed(window.others)
        came_to = f"requeued and then {said}; somebody else uses its nodes: {who}", False
    elif last.state is not State.WHOLE:
        came_to = f"requeued and then {said}", True
    else:
        heard = {(b.job, b.rank) for b in window.beats(gang) if b.life == last.life}
        few = len(heard) < gang.size
        told = f"requeued, and {len(heard)} of {gang.size} ranks heard of that start"
        came_to = (told if few else "requeued"), not few
    return came_to

"""What rounds of an experiment show, taken together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_mnode.criteria.restart.findings import Figure, Finding
from pytest_mnode.gang import holding, running, turns
from pytest_mnode.gang.bereft import Lost, bereft_lives, judged_loss
from pytest_mnode.gang.clocks import clocks_off
from pytest_mnode.gang.heard import ranks_to_their_end
from pytest_mnode.gang.terms import SMALL, Terms, Window, worst
from pytest_mnode.gang.timeline import Gang, State
from pytest_mnode.gang.toolarge import judged_oversize
from pytest_mnode.gang.turns import Round
from pytest_mnode.spec.gang import GangCriterion
from pytest_mnode.wrong import Wrong, listed

_NO_START = "it did not start in this round"


def judged_rounds(rounds: Sequence[Round], terms: Terms) -> list[Finding]:
    """Findings on gangs that had to wait for each other, or for room."""
    each = []
    off = clocks_off((one.window for one in rounds), terms)
    for one in rounds:
        window = one.window
        found = of_a_window(window, terms, off)
        if one.turn is None:
            why = window.problem or f"{window.title}: cut short"
            found.append(
                Wrong(turns.NOT_TRIED, None, "each round is conducted to its end", note=why)
            )
        else:
            found += turns.judged_turn(window, one.turn, terms)
        each.append(found)
    return [*together(each), *_recorded([one.window for one in rounds])]


def judged_size(window: Window, terms: Terms) -> list[Finding]:
    """Findings on a gang that is larger than the cluster."""
    off = clocks_off([window], terms)
    found = [*judged_oversize(window, terms), *of_a_window(window, terms, off)]
    return [*found, *_recorded([window])]


def judged_lost(lost: Lost, promise: GangCriterion, terms: Terms) -> list[Finding]:
    """Findings on a gang that lost a node."""
    window, off = lost.window, clocks_off([lost.window], terms)
    found = [
        *judged_loss(lost, promise, terms, off),
        *of_a_window(window, terms, off, bereft_lives(lost)),
    ]
    if window.problem and window.not_free == (lost.node,):
        # The node that was switched off is not there for a reason that is not the scheduler's.
        found = [
            replace(one, count=None, culprit=None, note=window.problem)
            if isinstance(one, Wrong) and one.name == holding.NOT_BACK
            else one
            for one in found
        ]
    return [*found, *_recorded([window])]


def of_a_window(
    window: Window,
    terms: Terms,
    off: Mapping[str, float],
    bereft: Mapping[int, float] | None = None,
) -> list[Finding]:
    """What holds at any time: all or nothing, and nothing left.

    off: clocks, see `clocks_off`. bereft: lives that lost a node, and when.
    """
    bereft = bereft or {}
    return [
        holding.parts_held(window, terms),
        holding.held_twice(window),
        *running.ranks_out_of_time(window, terms, off),
        running.ranks_elsewhere(window),
        running.ranks_alone(window, terms, bereft, off),
        ranks_to_their_end(window, terms, bereft, off),
        *holding.left_in_the_queue(window),
    ]


def together(each: Iterable[Sequence[Finding]]) -> list[Finding]:
    """Findings of several rounds, one for each name: counts added up, of figures the worst."""
    by_name: dict[str, list[Finding]] = {}
    for findings in each:
        for finding in findings:
            by_name.setdefault(finding.name, []).append(finding)
    made: list[Finding] = []
    for some in by_name.values():
        wrongs = [one for one in some if isinstance(one, Wrong)]
        figures = [one for one in some if isinstance(one, Figure)]
        made.append(_summed(wrongs) if wrongs else worst(figures))
    return made


def _summed(some: Sequence[Wrong]) -> Wrong:
    """Something that is surely wrong outweighs what is not known."""
    counts = [one.count for one in some]
    total = sum(count or 0 for count in counts)
    unknown = None in counts and not total
    culprits = listed(one.culprit for one in some if one.culprit)
    notes = listed(one.note for one in some if one.note)
    return Wrong(some[0].name, None if unknown else total, some[0].source, culprits or None, notes)


def _recorded(windows: Sequence[Window]) -> list[Finding]:
    """What is told and not judged: states and their durations, small jobs, how well was looked."""
    told: list[Finding] = [max((holding.unseen(w) for w in windows), key=lambda f: f.value or 0.0)]
    small = [(w, gang) for w in windows for gang in w.gangs if gang.name == SMALL]
    for window, gang in small:
        start = window.first(gang, State.WHOLE)
        waited = None if start is None else start.began_s - gang.asked_s
        note = "" if start is not None else _why_no_start(window, gang)
        told.append(Figure(f"{window.who(gang)}: time to its start", waited, "s", note=note))
    for window in windows:
        told += [*holding.states(window), *running.presence(window)]
    return told


def _why_no_start(window: Window, gang: Gang) -> str:
    over = (one for one in window.seen(gang) if one.state is State.OVER)
    ended = next((one for one in over if one.look.answered_s <= window.over_s), None)
    if ended is not None:
        return f"it came and went between two looks: {ended.said}"
    return "it was not seen to start, and was heard" if window.beats(gang) else _NO_START

"""Whether gangs ran at all: every rank heard, beside all others, to its end. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping

from pytest_mnode.gang import clocks
from pytest_mnode.gang.beats import presences, spans
from pytest_mnode.gang.engine import Beat
from pytest_mnode.gang.terms import Terms, Window
from pytest_mnode.gang.timeline import Gang, State
from pytest_mnode.wrong import Wrong, listed

UNHEARD = "gangs of which not all ranks ran at once, and to their end"
_TO_THE_END = "a gang that was whole, and that nobody cancelled, ran"


def ranks_to_their_end(
    window: Window, terms: Terms, bereft: Container[int], off: Mapping[str, float]
) -> Wrong:
    """Gangs that were whole and ended by themselves, of which not every rank did its time.

    A record alone proves nothing: a job that is dead on arrival has one as well. Where a rank was
    not heard, the scheduler's word decides: a failure is one, and else nothing is known.
    bereft: lives of gangs that lost a node. off: clocks, see `clocks_off`.
    """
    wrong: list[str] = []
    unknown: list[str] = []
    for gang in window.real:
        for life in lives_ended(window, gang):
            if life in bereft:
                continue
            beats = [beat for beat in window.beats(gang) if beat.life == life]
            heard = {(beat.job, beat.rank) for beat in beats}
            ended = {(beat.job, beat.rank) for beat in beats if beat.what == "end"}
            if len(ended) < gang.size:
                failed = failure(window, gang, life)
                text = (
                    f"{window.who(gang)}: {len(heard)} of {gang.size} ranks heard, "
                    f"{len(ended)} of them to their end"
                )
                (wrong if failed else unknown).append(f"{text}; {failed}" if failed else text)
            elif why := clocks.told(off, (beat.node for beat in beats), terms):
                unknown.append(f"{window.title}: {why}")
            elif not any(
                len({(one.job, one.rank) for one in some.ranks}) >= gang.size
                for some in presences(spans(beats))
            ):
                wrong.append(f"{window.who(gang)}: its {gang.size} ranks never ran at once")
    count = None if unknown and not wrong else len(wrong)
    return Wrong(UNHEARD, count, _TO_THE_END, listed(wrong) or None, listed(unknown))


def lives_ended(window: Window, gang: Gang) -> list[int]:
    """Lives that were whole, and over before clearing up began: nobody of ours ended them."""
    until_s = window.over_s
    seen = [one for one in window.seen(gang) if one.look.answered_s <= until_s]
    whole = sorted({one.life for one in seen if one.state is State.WHOLE})
    over = bool(seen) and seen[-1].state is State.OVER
    return [life for life in whole if over or seen[-1].life > life]


def failure(window: Window, gang: Gang, life: int) -> str:
    """The scheduler's words for a life that failed; "" where it does not say so."""
    return next((s.said for s in window.seen(gang) if s.life == life and s.failed), "")


def on_one_node(window: Window, gang: Gang) -> list[str]:
    """Ranks of a gang that shared a node at any time: by one clock, so that none explains it."""
    shared: dict[tuple[int, str], set[int]] = {}
    of: dict[tuple[int, str], list[Beat]] = {}
    for beat in window.beats(gang):
        of.setdefault((beat.life, beat.node), []).append(beat)
    for key, beats in of.items():
        for some in presences(spans(beats)):
            if len({(one.job, one.rank) for one in some.ranks}) > 1:
                shared.setdefault(key, set()).update(one.rank for one in some.ranks)
    told = []
    for (_, node), ranks in shared.items():
        *first, last = map(str, sorted(ranks))
        told.append(f"ranks {', '.join(first)} and {last} on {node}, one of {gang.size} nodes")
    return told

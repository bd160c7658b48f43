"""What ranks did, by their heartbeats: none of a gang that waits, all of one together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.criteria.restart.findings import Figure
from pytest_mnode.gang import clocks
from pytest_mnode.gang.beats import Presence, Span, presences, spans
from pytest_mnode.gang.engine import Beat
from pytest_mnode.gang.heard import lives_ended, on_one_node
from pytest_mnode.gang.terms import KEY, Terms, Window
from pytest_mnode.gang.timeline import Gang, State, Stretch, blind_gaps
from pytest_mnode.wrong import Wrong, found

WAITING = "ranks of waiting gangs that ran"
AFTER = "ranks that ran on after their gang"
ELSEWHERE = "ranks on nodes that their gang did not hold"
ALONE = "longest time that ranks of a gang ran without all others"
_WHOLE_ONLY = "ranks of a gang run while it is whole"
_NONE: Mapping[str, float] = {}
_NEVER: Mapping[int, float] = {}


def ranks_out_of_time(
    window: Window, terms: Terms, off: Mapping[str, float] = _NONE
) -> list[Wrong]:
    """Ranks that ran before their gang was whole, while it waited again, or after it was over.

    Heartbeats are by the clocks of nodes, records by that of the controller: what may be explained
    by clocks that differ as far as promised, or by the time between two looks, counts for nothing,
    and of a node whose clock is `off` by more (see `clocks_off`) nothing is known.
    """
    early: list[str] = []
    late: list[str] = []
    unknown = _lost(window)
    dark = blind_gaps(window.looks, window.began_s)
    for gang in window.gangs:
        states = window.states(gang)
        times = _whole_times(states, terms)
        for one in _each(window.beats(gang)):
            outside = [b for b in one.beats if not _within(b, times)]
            if outside and one.node in off:
                unknown = unknown or f"{window.title}: {clocks.told(off, [one.node], terms)}"
                continue
            if any(_within(b, dark) for b in outside):
                unknown = unknown or f"{window.who(gang)}: ranks ran while nothing was seen"
                outside = [b for b in outside if not _within(b, dark)]
            if not outside:
                continue
            at = outside[0].at_s
            now = next((s for s in reversed(states) if s.before_s <= at), None)
            over = now is not None and now.state is State.OVER
            how = f"{len(outside)} heartbeats" if len(outside) > 1 else "1 heartbeat"
            was = "before it was submitted" if now is None else f"while it was {_was(now, gang)}"
            text = f"{window.who(gang)}: rank {one.rank} on {one.node}, {how} {was}"
            (late if over else early).append(text)
    source = f"{_WHOLE_ONLY} (give or take {KEY}.clock_skew {terms.clock_skew_s:g} s)"
    both = [found(WAITING, source, early), found(AFTER, source, late)]
    return [
        w if w.count or not unknown else Wrong(w.name, None, source, note=unknown) for w in both
    ]


def _was(one: Stretch, gang: Gang) -> str:
    if one.state is State.PART:
        return f"holding {len(one.nodes)} of {gang.size} nodes"
    return one.state.value


def _whole_times(states: Sequence[Stretch], terms: Terms) -> list[tuple[float, float]]:
    """When a gang may have been whole: as seen, and where it came and went between two looks."""
    mine = [State.WHOLE, State.ENDING, *([State.PART] if terms.settle_s else [])]
    skew = terms.clock_skew_s
    times = [(s.before_s - skew, s.latest_s + skew) for s in states if s.state in mine]
    for index, one in enumerate(states):
        before = states[index - 1].state if index else State.WAITING
        if one.state is State.OVER and before is State.WAITING:
            times.append((one.before_s - skew, one.first.answered_s + skew))
    return times


def _within(beat: Beat, times: Iterable[tuple[float, float]]) -> bool:
    return any(began <= beat.at_s <= ended for began, ended in times)


@dataclass(frozen=True, slots=True)
class _Rank:
    job: str
    life: int
    rank: int
    node: str
    beats: tuple[Beat, ...]


def _each(beats: Iterable[Beat]) -> list[_Rank]:
    of: dict[tuple[str, int, int, str], list[Beat]] = {}
    for beat in beats:
        of.setdefault((beat.job, beat.life, beat.rank, beat.node), []).append(beat)
    return [_Rank(*key, tuple(sorted(some, key=lambda b: b.at_s))) for key, some in of.items()]


def ranks_elsewhere(window: Window) -> Wrong:
    """Ranks on nodes that their gang was never shown to hold in that life, or several on one."""
    wrong = []
    for gang in window.gangs:
        held = {(seen.life, node) for seen in window.seen(gang) for node in seen.nodes}
        known = {life for life, _ in held}
        wrong += [
            f"{window.who(gang)}: rank {one.rank} on {one.node}"
            for one in _each(window.beats(gang))
            if one.life in known and (one.life, one.node) not in held
        ]
        wrong += [f"{window.who(gang)}: {text}" for text in on_one_node(window, gang)]
    return found(ELSEWHERE, "ranks run where their gang holds nodes, one on each", wrong)


def ranks_alone(
    window: Window,
    terms: Terms,
    bereft: Mapping[int, float] = _NEVER,
    off: Mapping[str, float] = _NONE,
) -> Figure:
    """The longest time that some ranks of a gang ran, and others of it did not.

    A rank that was never heard of, of a gang that the scheduler shows whole, is no proof: it may
    not run, or its heartbeats may be lost. Then nothing is known. bereft: lives that lost a node,
    and when; what came later of these is left out. off: clocks, as above.
    """
    source = f"{KEY}.together"
    worst, culprit = 0.0, None
    unknown = _lost(window)
    for gang in window.real:
        lives = {beat.life for beat in window.beats(gang)} | {
            one.life for one in window.states(gang) if one.state is State.WHOLE
        }
        for life in sorted(lives):
            until_s = bereft.get(life)
            ranks = _cut(spans(b for b in window.beats(gang) if b.life == life), until_s)
            heard = {(one.job, one.rank) for one in ranks}
            whole = _long_enough(window, gang, life, until_s, terms)
            if len(heard) < gang.size and whole is not None:
                unknown = unknown or _unheard(window, gang, ranks, whole)
                continue
            if why := clocks.told(off, (one.node for one in ranks), terms):
                unknown = unknown or f"{window.title}: {why}"
                continue
            for some in _partial(ranks, gang.size):
                if some.seconds > worst:
                    worst = some.seconds
                    who = ", ".join(f"{one.rank} on {one.node}" for one in some.ranks)
                    culprit = (
                        f"{window.who(gang)}: {len(some.ranks)} of {gang.size} ranks ({who}) "
                        f"for {some.seconds:.1f} s"
                    )
    if worst > terms.together_s:
        return Figure(ALONE, worst, "s", terms.together_s, source=source, culprit=culprit)
    value = None if unknown else worst
    return Figure(ALONE, value, "s", terms.together_s, source=source, note=unknown or culprit or "")


def _partial(ranks: Sequence[Span], size: int) -> list[Presence]:
    """Times in a row when some were there and others not, the same ones or not, as one each."""
    found_: list[Presence] = []
    for one in presences(ranks):
        if len({(r.job, r.rank) for r in one.ranks}) >= size:
            continue
        if found_ and found_[-1].ended_s == one.began_s:
            found_[-1] = Presence(one.ranks, found_[-1].began_s, one.ended_s)
        else:
            found_.append(one)
    return found_


def _cut(ranks: Iterable[Span], until_s: float | None) -> list[Span]:
    if until_s is None:
        return list(ranks)
    return [
        Span(r.job, r.life, r.rank, r.node, r.began_s, min(r.ended_s, until_s))
        for r in ranks
        if r.began_s < until_s
    ]


def _long_enough(
    window: Window, gang: Gang, life: int, until_s: float | None, terms: Terms
) -> Stretch | None:
    """When the scheduler shows a life of the gang whole, so long that each rank had to be heard, or
    to its own end."""
    itself = until_s is None and life in lives_ended(window, gang)
    for one in window.states(gang):
        if one.state is State.WHOLE and one.life == life:
            end = one.latest_s if until_s is None else min(one.latest_s, until_s)
            if itself or end - one.began_s > min(gang.runs_s / 2, terms.together_s):
                return one
    return None


def _unheard(window: Window, gang: Gang, ranks: Sequence[Span], whole: Stretch) -> str:
    heard = {one.node for one in ranks}
    silent = [node for node in whole.nodes if node not in heard] or list(whole.nodes)
    return (
        f"{window.who(gang)}: no heartbeat from {', '.join(silent)} in {whole.shown_s:.1f} s in "
        f"which the scheduler shows all {gang.size} nodes held: no rank was started there, or its "
        "heartbeats do not reach this machine (--mnode-shared-dir names a directory all nodes see)"
    )


def _lost(window: Window) -> str:
    if window.unreadable:
        return f"{window.title}: {window.unreadable} heartbeats could not be read"
    return ""


def presence(window: Window) -> list[Figure]:
    """How many ranks of each gang ran, and for how long: recorded, not judged."""
    told = []
    for gang in window.real:
        by_life: dict[int, list[Beat]] = {}
        for beat in window.beats(gang):
            by_life.setdefault(beat.life, []).append(beat)
        for life, beats in sorted(by_life.items()):
            seconds: dict[int, float] = {}
            began: dict[int, float] = {}
            for some in presences(spans(beats)):
                count = len({(r.job, r.rank) for r in some.ranks})
                seconds[count] = seconds.get(count, 0.0) + some.seconds
                began.setdefault(count, some.began_s)
            again = f", start {life + 1}" if life else ""
            told += [
                Figure(
                    f"{window.who(gang)}{again}: {count} of {gang.size} ranks ran",
                    total,
                    "s",
                    note=f"from {began[count] - window.began_s:+.1f} s, by their own clocks",
                )
                for count, total in sorted(seconds.items())
            ]
    return told

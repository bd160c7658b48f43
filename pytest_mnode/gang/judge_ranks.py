"""Judges of ranks by heartbeats: none runs while its gang waits, all while it is whole. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from pytest_mnode.culprit import Culprit
from pytest_mnode.gang.engine import Heartbeat
from pytest_mnode.gang.heartbeats import (
    Presence,
    RankSpan,
    by_rank,
    clock_note,
    distinct,
    presences,
    spans,
)
from pytest_mnode.gang.window import (
    KEY,
    Gang,
    State,
    Stretch,
    Window,
    blind_gaps,
    bound_of,
    counted,
)
from pytest_mnode.measurement import Measurement, listed
from pytest_mnode.spec.gang import GangCriterion

WAITING = "ranks of waiting gangs that ran"
AFTER = "ranks still running after their gang was over"
ELSEWHERE = "ranks on nodes that their gang did not hold"
ALONE = "longest time that ranks of a gang ran without all others"
UNHEARD = "gangs whose ranks did not all run concurrently to completion"
_TO_THE_END = "a whole gang that nobody cancels runs to completion"
_WHOLE_ONLY = "ranks of a gang run while it is whole"


def ranks_out_of_time(
    window: Window, promise: GangCriterion, off: Mapping[str, float]
) -> list[Measurement]:
    """Ranks that ran before their gang was whole, while it waited again, or after it was over.

    Heartbeats have the times of their node's clock, records those of the controller's. A difference
    that `clock_skew` or the time between two observations explains does not count. A rank on a node
    in `off`, whose clock differs by more (see `clocks_off`), is inconclusive.
    """
    early: list[Culprit] = []
    late: list[Culprit] = []
    unknown = _unreadable(window)
    dark = blind_gaps(window.observations, window.began_s)
    for gang in window.gangs:
        states = window.states(gang)
        times = _whole_times(states, promise)
        for (_, _, rank, node), beats in by_rank(window.beats(gang)).items():
            outside = [b for b in beats if not _within(b, times)]
            if outside and node in off:
                unknown = unknown or f"{window.title}: {clock_note(off, [node], promise)}"
                continue
            if any(_within(b, dark) for b in outside):
                why = f"{window.who(gang)}: ranks ran while the scheduler did not answer"
                unknown = unknown or why
                outside = [b for b in outside if not _within(b, dark)]
            if not outside:
                continue
            at = outside[0].at_s
            now = next((s for s in reversed(states) if s.before_s <= at), None)
            over = now is not None and now.state is State.OVER
            how = f"{len(outside)} heartbeats" if len(outside) > 1 else "1 heartbeat"
            when = "before it was submitted" if now is None else f"while it was {_was(now, gang)}"
            text = f"{window.who(gang)}: rank {rank} on {node}, {how} {when}"
            named = Culprit(text, node)  # it is the scheduler that starts a rank too early
            late.append(named) if over else early.append(named.suspected)
    source = f"{_WHOLE_ONLY} (tolerance: {KEY}.clock_skew {promise.clock_skew_s:g} s)"
    return [counted(WAITING, early, source, unknown), counted(AFTER, late, source, unknown)]


def _was(one: Stretch, gang: Gang) -> str:
    if one.state is State.PART:
        return f"holding {len(one.nodes)} of {gang.size} nodes"
    return one.state.value


def _whole_times(states: Sequence[Stretch], promise: GangCriterion) -> list[tuple[float, float]]:
    """Times when a gang may have been whole: as seen, or unseen between two observations."""
    allowed = [State.WHOLE, State.ENDING, *([State.PART] if promise.settle_s else [])]
    skew = promise.clock_skew_s
    times = [(s.before_s - skew, s.latest_s + skew) for s in states if s.state in allowed]
    for index, one in enumerate(states):
        before = states[index - 1].state if index else State.WAITING
        if one.state is State.OVER and before is State.WAITING:
            times.append((one.before_s - skew, one.first.answered_s + skew))
    return times


def _within(beat: Heartbeat, times: Iterable[tuple[float, float]]) -> bool:
    return any(began <= beat.at_s <= ended for began, ended in times)


def ranks_elsewhere(window: Window) -> Measurement:
    """Ranks on nodes that their gang never held in their start, and ranks that shared a node."""
    wrong, unknown = [], _unreadable(window)
    for gang in window.gangs:
        held = {(seen.restarts, node) for seen in window.seen(gang) for node in seen.nodes}
        known = {restarts for restarts, _ in held}
        if gang.size > 1 and {beat.restarts for beat in window.beats(gang)} - known:
            unknown = (
                unknown or f"{window.who(gang)}: its ranks ran, and it was not seen with nodes"
            )
        wrong += [
            Culprit(f"{window.who(gang)}: rank {rank} on {node}", either=[[node]])
            for _, restarts, rank, node in by_rank(window.beats(gang))
            if restarts in known and (restarts, node) not in held
        ]
        wrong += [Culprit(f"{window.who(gang)}: {text}") for text in _on_one_node(window, gang)]
    return counted(
        ELSEWHERE, wrong, "each rank has a node of its own, which its gang holds", unknown
    )


def _on_one_node(window: Window, gang: Gang) -> list[str]:
    """Ranks that shared a node at any time. They share a clock, so skew cannot explain it."""
    shared: dict[tuple[int, str], set[int]] = {}
    of: dict[tuple[int, str], list[Heartbeat]] = {}
    for beat in window.beats(gang):
        of.setdefault((beat.restarts, beat.node), []).append(beat)
    for key, beats in of.items():
        for some in presences(spans(beats)):
            if distinct(some.ranks) > 1:
                shared.setdefault(key, set()).update(one.rank for one in some.ranks)
    texts = []
    for (_, node), ranks in shared.items():
        *first, last = map(str, sorted(ranks))
        texts.append(f"ranks {', '.join(first)} and {last} on {node}, one of {gang.size} nodes")
    return texts


def ranks_alone(
    window: Window,
    promise: GangCriterion,
    lost_at: Mapping[int, float],
    off: Mapping[str, float],
) -> Measurement:
    """The longest time that some but not all ranks of a gang ran.

    If the scheduler shows a gang whole, a rank without heartbeats proves nothing: it may not run,
    or its heartbeats may be lost. lost_at: starts that lost a node, and when; later times of these
    are left out. off: see `clocks_off`.
    """
    worst, culprit = 0.0, ""
    unknown = _unreadable(window)
    for gang in window.real:
        starts = {beat.restarts for beat in window.beats(gang)} | {
            one.restarts for one in window.states(gang) if one.state is State.WHOLE
        }
        for restarts in sorted(starts):
            until_s = lost_at.get(restarts)
            ranks = _cut(spans(window.beats(gang, restarts)), until_s)
            whole = _long_enough(window, gang, restarts, until_s, promise)
            if distinct(ranks) < gang.size and whole is not None:
                unknown = unknown or _unheard(window, gang, ranks, whole)
                continue
            if why := clock_note(off, (one.node for one in ranks), promise):
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
    bound, source = bound_of(promise.together_s, "together")
    if worst > promise.together_s:
        return Measurement(ALONE, worst, "s", bound, source, Culprit(culprit))
    value = None if unknown else worst
    return Measurement(ALONE, value, "s", bound, source, note=unknown or culprit)


def _partial(ranks: Sequence[RankSpan], size: int) -> list[Presence]:
    """Times when some but not all ranks ran; adjacent ones are joined."""
    found: list[Presence] = []
    for one in presences(ranks):
        if distinct(one.ranks) >= size:
            continue
        if found and found[-1].ended_s == one.began_s:
            found[-1] = Presence(one.ranks, found[-1].began_s, one.ended_s)
        else:
            found.append(one)
    return found


def _cut(ranks: Iterable[RankSpan], until_s: float | None) -> list[RankSpan]:
    if until_s is None:
        return list(ranks)
    return [
        RankSpan(r.job, r.restarts, r.rank, r.node, r.began_s, min(r.ended_s, until_s))
        for r in ranks
        if r.began_s < until_s
    ]


def _long_enough(
    window: Window, gang: Gang, restarts: int, until_s: float | None, promise: GangCriterion
) -> Stretch | None:
    """When a start was whole long enough, or to its own end, for a heartbeat of every rank."""
    itself = until_s is None and restarts in starts_ended(window, gang)
    for one in window.states(gang):
        if one.state is State.WHOLE and one.restarts == restarts:
            end = one.latest_s if until_s is None else min(one.latest_s, until_s)
            if itself or end - one.began_s > min(gang.runs_s / 2, promise.together_s):
                return one
    return None


def _unheard(window: Window, gang: Gang, ranks: Sequence[RankSpan], whole: Stretch) -> str:
    heard = {one.node for one in ranks}
    silent = [node for node in whole.nodes if node not in heard] or list(whole.nodes)
    return (
        f"{window.who(gang)}: no heartbeat from {', '.join(silent)} in {whole.shown_s:.1f} s in "
        f"which the scheduler shows all {gang.size} nodes held: no rank was started there, or its "
        "heartbeats do not reach this machine (--mnode-shared-dir names a directory all nodes see)"
    )


def _unreadable(window: Window) -> str:
    if window.unreadable:
        return f"{window.title}: {window.unreadable} heartbeats could not be read"
    return ""


def ranks_to_their_end(
    window: Window, promise: GangCriterion, lost_at: Container[int], off: Mapping[str, float]
) -> Measurement:
    """Gangs that were whole and ended by themselves although not every rank ran to its end.

    A record alone proves nothing, because a job that dies at once has one too. If a rank sent no
    "end", the scheduler decides: a failed job is a failure, otherwise the gang is inconclusive.
    """
    wrong: list[str] = []
    unknown: list[str] = []
    for gang in window.real:
        for restarts in starts_ended(window, gang):
            if restarts in lost_at:
                continue
            beats = window.beats(gang, restarts)
            heard = {(beat.job, beat.rank) for beat in beats}
            ended = {(beat.job, beat.rank) for beat in beats if beat.what == "end"}
            if len(ended) < gang.size:
                failed = next(
                    (s.status for s in window.seen(gang) if s.restarts == restarts and s.failed), ""
                )
                text = (
                    f"{window.who(gang)}: {len(heard)} of {gang.size} ranks sent heartbeats, "
                    f"{len(ended)} of them to completion"
                )
                (wrong if failed else unknown).append(f"{text}; {failed}" if failed else text)
            elif why := clock_note(off, (beat.node for beat in beats), promise):
                unknown.append(f"{window.title}: {why}")
            elif not any(distinct(some.ranks) >= gang.size for some in presences(spans(beats))):
                wrong.append(f"{window.who(gang)}: its {gang.size} ranks never ran concurrently")
    return counted(UNHEARD, wrong, _TO_THE_END, listed(unknown), note=listed(unknown))


def starts_ended(window: Window, gang: Gang) -> list[int]:
    """Starts that were whole and ended before clearing up began, not by the experiment."""
    seen = [one for one in window.seen(gang) if one.observation.answered_s <= window.over_s]
    whole = sorted({one.restarts for one in seen if one.state is State.WHOLE})
    over = bool(seen) and seen[-1].state is State.OVER
    return [restarts for restarts in whole if over or seen[-1].restarts > restarts]


def presence(window: Window) -> list[Measurement]:
    """Number of ranks of each gang that ran at once, and for how long; recorded, not judged."""
    recorded = []
    for gang in window.real:
        for restarts in sorted({beat.restarts for beat in window.beats(gang)}):
            seconds: dict[int, float] = {}
            began: dict[int, float] = {}
            for some in presences(spans(window.beats(gang, restarts))):
                count = distinct(some.ranks)
                seconds[count] = seconds.get(count, 0.0) + some.seconds
                began.setdefault(count, some.began_s)
            again = f", start {restarts + 1}" if restarts else ""
            recorded += [
                Measurement(
                    f"{window.who(gang)}{again}: {count} of {gang.size} ranks ran",
                    total,
                    "s",
                    note=f"from {began[count] - window.began_s:+.1f} s, by their own clocks",
                )
                for count, total in sorted(seconds.items())
            ]
    return recorded

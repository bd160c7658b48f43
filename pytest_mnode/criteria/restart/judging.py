"""Judges the kill of a run and its return, compared with a run that was not killed. Pure.

A question that cannot be answered is a measurement without a value, which is inconclusive. What
only the reference job's own code can do wrong (samples, learning rates, random and optimiser
states) is no question to a cluster; the tests of this package compare it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from pytest_mnode.criteria.restart.comparing import Tolerance, compared_ends, compared_losses
from pytest_mnode.criteria.restart.history import History, Incarnation
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import (
    Bound,
    HeadlineMark,
    Measurement,
    all_of,
    at_most,
    equals,
    listed,
)
from pytest_mnode.reference_job.records import CheckpointRecord

EVERY_STEP = "a resumed run does each step once, from the newest complete checkpoint on"
_CLOCK_TOLERANCE_S = 5.0
"""Clocks of nodes may differ by this much, and a shared file system may show a step this late."""
_STANDS_OUT = 2.0
"""Multiple of the median time: a rank that wrote longer made the others wait."""
_SAME_SEED = "compared with an uninterrupted run with the same seed"


@dataclass(frozen=True, slots=True)
class StoreListing:
    """The store after the kill and before anything was loaded, newest first.

    complete: steps of complete checkpoints. unfinished: steps of the others, with the reason.
    """

    complete: tuple[int, ...]
    unfinished: tuple[tuple[int, str], ...] = ()

    @property
    def newest(self) -> int:
        """The newest complete step; 0 if there is none: a restart from step 0 loses nothing."""
        return max(self.complete, default=0)


@dataclass(frozen=True, slots=True)
class KillReport:
    """One kill and what followed.

    what: the kill in words, such as "SIGKILL of rank 1 on node1". at: wall-clock time of the kill,
    s; clock: whose clock that is. incarnation: number of the incarnation that it ended, from 0.
    incarnations: how many there were at the next kill; None if this was the last kill of the run.
    listing: None if the store could not be listed between the kill and the next incarnation.
    alive: "pid on node" of processes of the killed incarnation that ran while the next one
    trained; None if not known.
    came_back: whether the job trained again, and after the last kill to its end; None if that could
    not be seen; ended_how: how the job ended instead, or why it was not seen.
    preempted: the job was asked to end, and may lose nothing; late: nodes on which it had to be
    killed when the time to save was over. in_writing: the step whose checkpoint was being written.
    missed: why there was no kill; then only `stalled` counts too: the job did not get as far, so
    that it gets to no later kill either.
    queued_s: time from the kill until the job was started again, if it was requeued.
    between_s: shortest and longest time from the kill until all ranks had done a step again, by
    the controller's monotonic clock; None if it did not see that step.
    """

    what: str
    at: float
    clock: str
    incarnation: int = 0
    incarnations: int | None = None
    listing: StoreListing | None = None
    alive: Sequence[Culprit] | None = None
    came_back: bool | None = False
    ended_how: str = ""
    preempted: bool = False
    late: Sequence[str] = ()
    in_writing: int | None = None
    notes: Sequence[str] = ()
    missed: str = ""
    stalled: bool = False
    queued_s: float = 0.0
    between_s: tuple[float, float] | None = None


def came_back(cut: History, kill: KillReport, not_comparable: str = "") -> Measurement:
    """Whether the job trained again by itself. not_comparable: why that cannot be judged."""
    name = "kills that the job did not come back from"
    source = "torchrun restarts ranks, the launcher requeues jobs"
    started = len(cut.incarnations)
    if not_comparable or kill.came_back is None:
        return Measurement.unknown(name, not_comparable or kill.ended_how, source=source)
    culprits = list[Culprit]()
    if started < 2:
        words = f"no rank trained again after {kill.what}; {kill.ended_how}".rstrip("; ")
        culprits = [Culprit(words)]
    elif not kill.came_back:
        words = f"started again after {kill.what}, and did not continue: {kill.ended_how}"
        culprits = [Culprit(words)]
    more = f", at the start number {started - 1} after it" if started > 2 else ""
    note = "" if culprits else "; ".join([f"after {kill.what}{more}", *kill.notes])
    return Measurement.none_allowed(name, culprits, source, note=note)


def judge_kill(cut: History, kill: KillReport) -> Iterator[Measurement]:
    """Whether the kill was complete, and hit what it was meant to hit."""
    name = "processes that outlived the kill"
    source = "a process left from a killed run may overwrite files of the next run"
    if kill.alive is None:
        yield Measurement.unknown(name, "the processes could not be listed", source=source)
    else:
        note = f"of {sum(map(len, cut.incarnations[0].processes.values()))} ranks"
        yield Measurement.none_allowed(name, kill.alive, source, note=note)
    if kill.preempted:
        source = "a job that is asked to end saves and ends within the grace time"
        name = "nodes where the job was killed after the grace time"
        yield Measurement.none_allowed(name, [Culprit(node, node) for node in kill.late], source)
    if kill.in_writing is not None:
        unfinished = kill.listing.unfinished if kill.listing is not None else ()
        hit = any(step == kill.in_writing for step, _ in unfinished)
        seen = (
            "its directory existed and was not complete"
            if hit
            else "no unfinished checkpoint was found"
        )
        yield Measurement(
            "kills that missed the writing of a checkpoint",
            0 if hit else None,
            "",
            equals(0),
            "only a kill in the middle of writing shows that an unfinished checkpoint is not used",
            note=f"checkpoint of step {kill.in_writing}: {seen}",
        )


def judge_loading(cut: History, kill: KillReport) -> Iterator[Measurement]:
    """Whether all ranks loaded the newest complete checkpoint."""
    killed, resumed = cut.incarnations[0], cut.incarnations[1]
    yield _lost_steps(killed, resumed, kill)
    loaded = {rank: own.start.loaded for rank, own in resumed.by_rank.items()}
    rank_0 = resumed.by_rank.get(0)
    others = [
        Culprit(
            f"rank {rank} on {own.start.node} loaded {_shown(own.start.loaded)}, "
            f"rank 0 {_shown(loaded.get(0))}",
            either=[{own.start.node, *((rank_0.start.node,) if rank_0 else ())}],
        )
        for rank, own in resumed.by_rank.items()
        if own.start.loaded != loaded.get(0)
    ]
    name = "ranks that loaded another checkpoint than rank 0"
    yield Measurement.none_allowed(name, others, EVERY_STEP)


def _lost_steps(killed: Incarnation, resumed: Incarnation, kill: KillReport) -> Measurement:
    if kill.preempted:
        name, newest = "steps lost although the job was asked to end", killed.last_step
    else:
        name = "steps lost beyond the newest complete checkpoint"
        if kill.listing is None:
            why = "the checkpoints were not listed between the kill and the next start"
            return Measurement.unknown(name, why, source=EVERY_STEP)
        newest = max([kill.listing.newest, *completed(killed)])
    lost = newest - resumed.loaded
    refused = listed(text for own in resumed.by_rank.values() for text in own.start.refused)
    loaded = _shown(resumed.loaded or None)
    culprit = (
        f"the resume: it continued from {loaded}, and step {newest} was "
        + ("finished" if kill.preempted else "saved")
        + (f"; refused {refused}" if refused else "")
    )
    again = max(0, killed.last_step - resumed.loaded)
    note = f"loaded {loaded}; {again} steps done again"
    lead = HeadlineMark(after="steps lost")
    return Measurement.none_allowed(
        name, [Culprit(culprit)], EVERY_STEP, count=abs(lost), note=note, headline=lead
    )


def completed(incarnation: Incarnation) -> set[int]:
    """Steps of the checkpoints that some rank recorded as complete."""
    return {c.step for own in incarnation.by_rank.values() for c in own.checkpoints}


def first_new_step(cut: History, kill: KillReport, within_s: float | None) -> Measurement:
    """Seconds from the kill until all ranks had done a step again, by the clocks of both events.

    If the controller saw that step, its own clock has to agree with these clocks: a wrong clock
    decides nothing, and one that is a little off makes the time no longer than the controller saw.
    """
    back = [one for one in cut.incarnations[1:] if one.first_step_ended() is not None]
    ended = back[0].first_step_ended() if back else None
    seconds = None if ended is None else ended - kill.at
    note = f"kill by the clock of {kill.clock}, step by that of the slowest rank"
    least, most = kill.between_s or (0.0, math.inf)
    if seconds is not None and kill.between_s is None and seconds < 0:
        note += (
            f", which is {-seconds:.3g} s before the kill: these clocks differ, synchronise them"
        )
        seconds = None
    elif (
        seconds is not None
        and not least - _CLOCK_TOLERANCE_S <= seconds <= most + _CLOCK_TOLERANCE_S
    ):
        stepped = (own for own in back[0].by_rank.values() if own.steps)
        slowest = max(stepped, key=lambda own: own.steps[0].ended)
        note += (
            f"; these clocks give {seconds:.3g} s, the controller's {least:.1f} to {most:.1f} s: "
            f"{slowest.start.node}'s clock, or that of {kill.clock}, is wrong: synchronise it"
        )
        seconds = None
    elif seconds is not None and seconds > most:
        note += f"; these clocks give {seconds:.3g} s, and the controller had seen it by then"
        seconds = most
    culprit = f"the recovery from {kill.what}"
    if kill.queued_s:
        started = f"started again after {kill.queued_s:.3g} s"
        note += f"; {started}"
        if seconds is not None and within_s is not None and seconds - kill.queued_s <= within_s:
            culprit = f"the scheduler or launcher: {started} in the queue"
    return Measurement(
        "time from the kill to the first new step",
        seconds,
        "s",
        None if within_s is None else at_most(within_s).of("criteria.restart.within", within_s),
        "" if within_s is None else "criteria.restart.within",
        Culprit(culprit),
        note,
        headline=HeadlineMark(after="to the first new step"),
    )


def _shown(step: int | None) -> str:
    """A loaded checkpoint, in words."""
    return "no checkpoint" if step is None else f"the checkpoint of step {step}"


@dataclass(frozen=True, slots=True)
class Terms:
    """What the runs had to do, and what is promised for them.

    steps: in total. within_s: from the kill to the first new step; None if not promised.
    """

    steps: int
    tolerance: Tolerance
    within_s: float | None = None


def judge(whole: History, cut: History, kill: KillReport, terms: Terms) -> list[Measurement]:
    """All measurements of one kill of the run `cut`. whole: the uninterrupted run."""
    until = History(cut.incarnations[: kill.incarnations], cut.stray)
    since = History(until.incarnations[kill.incarnation :], cut.stray)
    # A job that came back on only some of its ranks, and then failed, did not come back.
    not_comparable = kill.missed or _not_comparable(
        whole, since, terms, to_its_end=kill.came_back is not False
    )
    if not not_comparable and _over_before(since, kill, terms.steps):
        not_comparable = "the run ended before the kill: increase criteria.restart.steps or pause"
    if not_comparable:
        return [came_back(since, kill, not_comparable)]
    found = [came_back(since, kill), *judge_kill(since, kill)]
    if len(since.incarnations) > 1:
        found += judge_loading(since, kill)
        found.append(first_new_step(since, kill, terms.within_s))
        found += _judge_course(whole, since, kill, terms)
    return found


def judge_resume(whole: History, cut: History, terms: Terms) -> list[Measurement]:
    """Measurements of a run that was ended, resumed and finished, but not of how it was ended."""
    not_comparable = _not_comparable(whole, cut, terms)
    if not_comparable:
        name = "comparisons that could not be made"
        return [Measurement.unknown(name, not_comparable, source=_SAME_SEED)]
    return [
        *_steps_and_losses(whole, cut, terms.steps, terms.tolerance),
        *compared_ends(whole.incarnations[-1], cut.incarnations[-1], terms.tolerance),
    ]


def checkpoint_bound(within_s: float | None) -> Bound | None:
    """Bound of the time of a checkpoint; None if none is promised."""
    key = "criteria.restart.checkpoint_within"
    return None if within_s is None else at_most(within_s).of(key, within_s)


def checkpoint_costs(whole: History, expected: int, within_s: float | None) -> list[Measurement]:
    """The longest time of a checkpoint over all ranks, and the size of all its files.

    expected: number of checkpoints that the run saves.
    """
    name, source = "time of a checkpoint, the longest", "criteria.restart.checkpoint_within"
    bound = checkpoint_bound(within_s)
    written = [
        (record, own.start.node)
        for incarnation in whole.incarnations
        for own in incarnation.by_rank.values()
        for record in own.checkpoints
    ]
    steps = {record.step for record, _ in written}
    if len(steps) < expected:
        why = f"{len(steps)} of {expected} checkpoints were written"
        return [Measurement.unknown(name, why, unit="s", expected=bound, source=source)]
    longest, _ = max(written, key=lambda pair: pair[0].seconds)
    largest = max(record.bytes for record, _ in written)
    note = f"{len(steps)} checkpoints, the longest of step {longest.step}"
    late = [record for record, _ in written if within_s is not None and record.seconds > within_s]
    late.sort(key=lambda record: record.seconds, reverse=True)
    culprit = all_of(
        who
        for step in dict.fromkeys(record.step for record in late or [longest])
        for who in _slow_writers([pair for pair in written if pair[0].step == step])
    )
    return [
        Measurement(name, longest.seconds, "s", bound, source if bound else "", culprit, note),
        Measurement("size of a checkpoint", largest / 1e6, "MB", note="all files of all ranks"),
    ]


def _slow_writers(written: Sequence[tuple[CheckpointRecord, str]]) -> Iterator[Culprit]:
    """Nodes that the others waited for in one checkpoint, the slowest first, each by its rank."""
    slowest: dict[str, CheckpointRecord] = {}
    for record, node in sorted(written, key=lambda pair: pair[0].write_s, reverse=True):
        slowest.setdefault(node, record)
    least_s = _STANDS_OUT * median_low(record.write_s for record, _ in written)
    alone = {node: one for node, one in slowest.items() if one.write_s > least_s}
    for node, one in alone.items():
        words = f"rank {one.rank} on {node} wrote for {one.write_s:.3g} s, step {one.step}"
        yield Culprit(words, node)
    if not alone:
        one = next(iter(slowest.values()))
        yield Culprit(f"all ranks alike: they wrote for {one.write_s:.3g} s, step {one.step}")


def _judge_course(
    whole: History, since: History, kill: KillReport, terms: Terms
) -> list[Measurement]:
    """Measurements of the run after it came back, up to its end or to the next kill."""
    over = kill.incarnations is None
    last = terms.steps if over else since.incarnations[-1].last_common_step
    # An incarnation that was itself a resume was judged with the kill before it.
    judged_before = since.incarnations[1].loaded if kill.incarnation else 0
    found = _steps_and_losses(whole, since, last, terms.tolerance, judged_before)
    if over:
        found += compared_ends(whole.incarnations[-1], since.incarnations[-1], terms.tolerance)
    return found


def _steps_and_losses(
    whole: History, cut: History, last: int, tolerance: Tolerance, judged_before: int = 0
) -> list[Measurement]:
    """Whether each step up to `last` was done once, with the loss of the uninterrupted run.

    judged_before: the step up to which losses are not compared again.
    """
    curve = {step: found for step, found in cut.curve().items() if judged_before < step <= last}
    return [
        _steps_not_done_once(cut, last),
        compared_losses(whole.curve(), curve, tolerance),
        _redone_differently(cut, tolerance),
    ]


def _steps_not_done_once(cut: History, last: int) -> Measurement:
    """Steps that are missing among those that count, or done more than once."""
    first, loaded = cut.incarnations[0].loaded + 1, cut.incarnations[-1].loaded
    sizes = {one.number: one.size for one in cut.incarnations}
    times: dict[int, int] = {}
    lacking = []
    for one in cut.effective():
        times[one.step] = times.get(one.step, 0) + 1
        if one.step <= last:
            lacking += [
                f"step {one.step} of rank {rank}: nothing written"
                for rank in range(sizes[one.incarnation])
                if rank not in one.by_rank
            ]
    missing = [
        f"step {step}: not done" + f", though step {loaded} was loaded" * (step > loaded)
        for step in range(first, last + 1)
        if step not in times
    ]
    double = [f"step {step}: done {n} times" for step, n in sorted(times.items()) if n > 1]
    wrong = [*missing, *double, *lacking]
    note = f"steps {first} to {last} over {len(cut.incarnations)} starts"
    return Measurement.none_allowed(
        "steps missing or done twice", map(Culprit, wrong), EVERY_STEP, note=note
    )


def _redone_differently(cut: History, tolerance: Tolerance) -> Measurement:
    """Steps that were done again with another result than the first time."""
    curve, redone = cut.curve(), cut.redone()
    differ, values = list[Culprit](), list[str]()
    for one in redone:
        again = curve.get(one.step, {})
        found = [*tolerance.differences(one.by_rank, again)]
        alike = len(found) == len(one.by_rank) and len(again) > 1  # the loss is of all ranks
        for who, shown in found:
            words = f"step {one.step}: {who}"
            differ.append(Culprit(words) if alike else Culprit.merged(words, [who]))
            values.append(f"step {one.step}, {shown}")
    source = "a step done again replaces the lost step and must equal it"
    note = f"{len({one.step for one in redone})} steps were done again"
    note = "; ".join(filter(None, [note, listed(values)]))
    name = "steps done again with another result"
    return Measurement.none_allowed(name, differ, source, note=note)


def _over_before(since: History, kill: KillReport, steps: int) -> bool:
    """Whether the kill had no effect: all steps were done before it, or in spite of it."""
    first = since.incarnations[0]
    if first.last_step_until(kill.at) >= steps:
        return True
    ends = [own.end for own in first.by_rank.values()]
    alone = len(since.incarnations) == 1 and not first.silent
    return alone and all(end is not None and end.steps >= steps for end in ends)


def _not_comparable(whole: History, cut: History, terms: Terms, *, to_its_end: bool = True) -> str:
    """Why these runs cannot be compared; "" if they can. to_its_end: `cut` ran to its end."""
    if not whole.incarnations:
        return f"the uninterrupted run wrote no records{_stray(whole)}"
    last = whole.incarnations[-1]
    expected = list(range(1, terms.steps + 1))
    done = {rank: [s.step for s in own.steps] for rank, own in last.by_rank.items()}
    silent = last.silent or [rank for rank, own in last.by_rank.items() if own.end is None]
    lacking = [rank for rank, steps in done.items() if steps != expected]
    if len(whole.incarnations) > 1 or silent or lacking:
        fewest = min(len(set(steps) & set(expected)) for steps in done.values())
        whose = f", ranks {silent} did not end" if silent else ""
        whose += f", ranks {lacking} do not have each step once" if lacking else ""
        return (
            f"the uninterrupted run did {fewest} of {terms.steps} steps in "
            f"{len(whole.incarnations)} starts{whose}{_stray(whole)}"
        )
    if not cut.incarnations:
        return f"the run that was killed wrote no records{_stray(cut)}"
    ends = (cut.incarnations[0], *cut.incarnations[-1:] * to_its_end)
    silent = sorted({rank for one in ends for rank in one.silent})
    return f"nothing written by ranks {silent}{_stray(cut)}" if silent else ""


def _stray(history: History) -> str:
    return f"; {listed(history.stray)}" if history.stray else ""

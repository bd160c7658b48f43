"""Judges the kill of a run and its return: complete, from the right checkpoint, in time. Pure.

The histories here begin with the incarnation that was killed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_mnode.criteria.restart.history import History, Incarnation
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import HeadlineMark, Measurement, at_most, equals, listed

EVERY_STEP = "a resumed run does each step once, from the newest complete checkpoint on"
_CLOCK_TOLERANCE_S = 5.0
"""Clocks of nodes may differ by this much, and a shared file system may show a step this late."""


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
    return Measurement(
        "time from the kill to the first new step",
        seconds,
        "s",
        None if within_s is None else at_most(within_s).of("criteria.restart.within", within_s),
        "" if within_s is None else "criteria.restart.within",
        Culprit(f"the recovery from {kill.what}"),
        note,
        headline=HeadlineMark(after="to the first new step"),
    )


def _shown(step: int | None) -> str:
    """A loaded checkpoint, in words."""
    return "no checkpoint" if step is None else f"the checkpoint of step {step}"

"""How a run died and came back: wholly, from the right checkpoint, in time. Pure.

The histories here begin with the life that was killed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_mnode.criteria.restart.evidence import Struck
from pytest_mnode.criteria.restart.findings import EVERY_STEP, Figure, Finding
from pytest_mnode.criteria.restart.lives import History, Life
from pytest_mnode.wrong import Wrong, found, listed

_CLOCKS_S = 5.0
"""By so much clocks of nodes may differ, and a step be seen late over a shared file system."""


def came_back(cut: History, struck: Struck, unfit: str = "") -> Wrong:
    """Whether the job trained again without anybody's hands. unfit: why nobody can tell."""
    name = "kills that the job did not come back from"
    source = "torchrun restarts ranks, the launcher requeues jobs"
    lives = len(cut.lives)
    if unfit:
        return Wrong(name, None, source, note=unfit)
    if struck.came_back is None:
        return Wrong(name, None, source, note=struck.ended_how)
    if lives < 2:
        why = f"no rank trained again after {struck.what}; {struck.ended_how}".rstrip("; ")
        return Wrong(name, 1, source, culprit=why)
    if not struck.came_back:
        why = f"started again after {struck.what}, and did not go on: {struck.ended_how}"
        return Wrong(name, 1, source, culprit=why)
    more = f", at the start number {lives - 1} after it" if lives > 2 else ""
    return Wrong(name, 0, source, note="; ".join([f"after {struck.what}{more}", *struck.notes]))


def of_the_kill(cut: History, struck: Struck) -> Iterator[Finding]:
    """Whether the kill was one, and all of it."""
    alive = struck.alive
    yield Wrong(
        "processes that outlived the kill",
        None if alive is None else len(alive),
        "what is left of a killed run writes over the one that follows",
        listed(alive) or None if alive is not None else None,
        f"of {sum(map(len, cut.lives[0].processes.values()))} ranks"
        if alive is not None
        else "not found out whether there were any",
    )
    if struck.gently:
        source = "a job that is told to end saves and ends in the time it is given"
        yield found("nodes killed when the time to save was over", source, struck.late)
    if struck.in_writing is not None:
        unfinished = struck.shelf.unfinished if struck.shelf is not None else ()
        hit = any(step == struck.in_writing for step, _ in unfinished)
        yield Wrong(
            "kills that missed the writing of a checkpoint",
            0 if hit else None,
            "only a kill in the middle of writing shows that half a checkpoint is not used",
            note=f"checkpoint of step {struck.in_writing}: "
            + ("its directory was there, not complete" if hit else "no unfinished one was found"),
        )


def of_the_resume(cut: History, struck: Struck, began: float | None) -> Iterator[Finding]:
    """Whether the newest complete checkpoint was loaded, by all ranks, and was of this run.

    began: when the run was started first, by the wall clock of rank 0, which also dates
    checkpoints; None where that is not known.
    """
    killed, resumed = cut.lives[0], cut.lives[1]
    yield _lost(killed, resumed, struck)
    loaded = {rank: own.start.loaded for rank, own in resumed.by_rank.items()}
    yield found(
        "ranks that loaded another checkpoint than rank 0",
        EVERY_STEP,
        [
            f"rank {rank} on {own.start.node} loaded {shown(own.start.loaded)}, "
            f"rank 0 {shown(loaded.get(0))}"
            for rank, own in resumed.by_rank.items()
            if own.start.loaded != loaded.get(0)
        ],
    )
    yield _newer(resumed, began)


def _lost(killed: Life, resumed: Life, struck: Struck) -> Wrong:
    if struck.gently:
        name, newest = "steps lost though it was told to end", killed.last_step
    else:
        name = "steps lost beyond the newest complete checkpoint"
        if struck.shelf is None:
            why = "the store was not seen between the kill and the next start"
            return Wrong(name, None, EVERY_STEP, note=why)
        newest = max([struck.shelf.newest, *completed(killed)])
    lost = newest - resumed.loaded
    refused = listed(text for own in resumed.by_rank.values() for text in own.start.refused)
    again = max(0, killed.last_step - resumed.loaded)
    note = f"loaded {shown(resumed.loaded or None)}; {again} steps done again"
    culprit = (
        f"the resume: it went on from {shown(resumed.loaded or None)}, and step {newest} was "
        + ("finished" if struck.gently else "saved")
        + (f"; refused {refused}" if refused else "")
    )
    return Wrong(name, abs(lost), EVERY_STEP, culprit if lost else None, note)


def completed(life: Life) -> set[int]:
    """Steps of the checkpoints that some rank wrote down as complete."""
    return {c.step for own in life.by_rank.values() for c in own.checkpoints}


def _newer(resumed: Life, began: float | None) -> Figure:
    """How much later than the start of the run the loaded checkpoint was saved."""
    name, source = "loaded checkpoint saved after the start", "it is of this run, and not left over"
    saved = [own.start.saved_at for own in resumed.by_rank.values()]
    times = [time for time in saved if time is not None]
    if len(times) < len(saved) or began is None:
        why = "nothing was loaded" if began is not None else "rank 0 did not say when it started"
        return Figure(name, None, "s", at_least=0, source=source, note=why)
    return Figure(
        name,
        min(times) - began,
        "s",
        at_least=0,
        source=source,
        culprit=f"{shown(resumed.loaded)}, which is older than the run",
    )


def first_new_step(cut: History, struck: Struck, within_s: float | None) -> Figure:
    """Seconds from the kill until all ranks had done a step again, by the clocks of both.

    Where the controller saw it come to be, these have to agree with its own clock: no answer hangs
    on a clock that is wrong.
    """
    lives = [life for life in cut.lives[1:] if life.first_step_ended() is not None]
    ended = lives[0].first_step_ended() if lives else None
    seconds = None if ended is None else ended - struck.at
    note = f"kill by the clock of {struck.clock}, step by that of the slowest rank"
    least, most = struck.between_s or (0.0, math.inf)
    if seconds is not None and struck.between_s is None and seconds < 0:
        note += f", which is {-seconds:.3g} s before the kill: these clocks differ, set them right"
        seconds = None
    elif seconds is not None and not least - _CLOCKS_S <= seconds <= most + _CLOCKS_S:
        whose = f"{_last_of(lives[0])}'s clock, or that of {struck.clock}, is wrong: set it right"
        note += f"; by these {seconds:.3g} s, by the controller's own {least:.1f} to {most:.1f} s: "
        note += whose
        seconds = None
    return Figure(
        "time from the kill to the first new step",
        seconds,
        "s",
        at_most=within_s,
        source="criteria.restart.within" if within_s is not None else "",
        culprit=f"the way back from {struck.what}",
        note=note,
    )


def _last_of(life: Life) -> str:
    """The node whose first step ended last, by its own clock."""
    last = max((own for own in life.by_rank.values() if own.steps), key=lambda o: o.steps[0].ended)
    return last.start.node


def shown(step: int | None) -> str:
    """A loaded checkpoint, in words."""
    return "no checkpoint" if step is None else f"the checkpoint of step {step}"

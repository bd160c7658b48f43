"""A run that was killed beside one that was not: what is wrong with how it came back. Pure.

Each question is one function from histories to a finding; `judge` asks all of them. A question
that cannot be answered is a finding without a value, which is inconclusive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.restart.comparing import Like, differing, differing_ends
from pytest_mnode.restart.evidence import Struck
from pytest_mnode.restart.lives import History, Life
from pytest_mnode.restart.sampling import samples_not_seen_once
from pytest_mnode.wrong import Wrong, found, listed

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

EVERY_STEP = "a resumed run does each step once, from the newest complete checkpoint on"
SAME_SEED = "the same seed as the run that was never killed"


@dataclass(frozen=True, slots=True)
class Terms:
    """What the runs were to do, and what is promised of them.

    steps: in all; samples: of one epoch; batch: samples a step over all ranks. like: how equal
    losses have to be. within_s: from the kill to the first new step, None: not promised.
    """

    steps: int
    samples: int
    batch: int
    like: Like
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value with at most one bound."""

    name: str
    value: float | None
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    source: str = ""
    culprit: str | None = None
    note: str = ""

    def record(self, measure: Measure) -> None:
        """Have it judged with the test."""
        measure(
            self.name,
            self.value,
            self.unit,
            at_most=self.at_most,
            at_least=self.at_least,
            source=self.source,
            culprit=self.culprit,
            note=self.note,
        )


Finding = Wrong | Figure


def judge(whole: History, cut: History, struck: Struck, terms: Terms) -> list[Finding]:
    """All findings on a run that was killed once. whole: of the run that was never killed."""
    unfit = _unfit(whole, cut, terms)
    findings: list[Finding] = [came_back(cut, struck)]
    if unfit is not None:
        return [*findings, Wrong("comparisons that could not be made", None, SAME_SEED, note=unfit)]
    findings += [*_of_the_kill(cut, struck), *_of_the_resume(cut, struck)]
    if len(cut.lives) > 1:
        findings.append(first_new_step(cut, struck, terms))
        findings += compared(whole, cut, terms)
    return findings


def compared(whole: History, cut: History, terms: Terms) -> list[Finding]:
    """What the run that came back did, step by step, beside the one that was never killed."""
    return [
        steps_not_done_once(cut, terms),
        samples_not_seen_once(cut.effective(), terms.samples, terms.steps * terms.batch),
        *differing(whole.curve(), cut.curve(), terms.like),
        again_differently(cut, terms.like),
        *differing_ends(whole.lives[-1], cut.lives[-1], terms.like),
    ]


def came_back(cut: History, struck: Struck) -> Wrong:
    """Whether the job trained again, and to its end, without anybody's hands."""
    name = "kills that the job did not come back from"
    source = "torchrun restarts ranks, the launcher requeues jobs"
    lives = len(cut.lives)
    if lives < 2:
        why = f"no rank trained again after {struck.what}; {struck.ended_how}".rstrip("; ")
        return Wrong(name, 1, source, culprit=why)
    if not struck.came_back:
        why = f"trained again after {struck.what}, but not to the end: {struck.ended_how}"
        return Wrong(name, 1, source, culprit=why)
    note = f"after {struck.what}" + (f", in start {lives} of it" if lives > 2 else "")
    return Wrong(name, 0, source, note="; ".join([note, *struck.notes]))


def _unfit(whole: History, cut: History, terms: Terms) -> str | None:
    """Why these runs cannot be compared; None where they can."""
    if not whole.lives:
        return f"the run that was not to be killed wrote no records{_stray(whole)}"
    life = whole.lives[-1]
    done = {s.step for own in life.by_rank.values() for s in own.steps}
    silent = life.silent or [r for r, own in life.by_rank.items() if own.end is None]
    if len(whole.lives) > 1 or silent or done != set(range(1, terms.steps + 1)):
        lacking = f", ranks {silent} did not end" if silent else ""
        return (
            f"the run that was not to be killed did {len(done)} of {terms.steps} steps in "
            f"{len(whole.lives)} starts{lacking}{_stray(whole)}"
        )
    if not cut.lives:
        return f"the run that was killed wrote no records{_stray(cut)}"
    if cut.lives[0].last_step >= terms.steps:
        return "the run was over before the kill: more steps, or a pause in each, are needed"
    silent = [rank for one in (cut.lives[0], cut.lives[-1]) for rank in one.silent]
    return f"nothing written by ranks {silent}{_stray(cut)}" if silent else None


def _stray(history: History) -> str:
    return f"; {listed(history.stray)}" if history.stray else ""


def _of_the_kill(cut: History, struck: Struck) -> Iterator[Finding]:
    """Whether the kill was one, and all of it."""
    alive = struck.alive
    yield Wrong(
        "processes that outlived the kill",
        None if alive is None else len(alive),
        "what is left of a killed run writes over the one that follows",
        listed(alive) or None if alive is not None else None,
        f"life of {sum(map(len, cut.lives[0].processes.values()))} ranks, after {struck.what}",
    )
    if struck.gently:
        late = list(struck.late)
        source = "a job that is told to end saves and ends in the time it is given"
        yield found("nodes that were killed when the time to save was over", source, late)
    if struck.in_writing is not None:
        hit = struck.shelf is not None and any(
            step == struck.in_writing for step, _ in struck.shelf.unfinished
        )
        yield Wrong(
            "kills that missed the writing of a checkpoint",
            0 if hit else None,
            "only a kill in the middle of writing shows that half a checkpoint is not used",
            note=f"checkpoint of step {struck.in_writing}: "
            + ("its directory was there, not complete" if hit else "no unfinished one was found"),
        )


def _of_the_resume(cut: History, struck: Struck) -> Iterator[Finding]:
    """Whether the newest complete checkpoint was loaded, by all ranks, and was of this run."""
    if len(cut.lives) < 2:
        return
    killed, resumed = cut.lives[0], cut.lives[1]
    yield _lost(killed, resumed, struck)
    loaded = {rank: own.start.loaded for rank, own in resumed.by_rank.items()}
    others = [
        f"rank {rank} on {own.start.node} loaded {_shown(own.start.loaded)}, "
        f"rank 0 {_shown(loaded.get(0))}"
        for rank, own in resumed.by_rank.items()
        if own.start.loaded != loaded.get(0)
    ]
    yield found("ranks that loaded another checkpoint than rank 0", EVERY_STEP, others)
    yield _newer(killed, resumed)


def _lost(killed: Life, resumed: Life, struck: Struck) -> Wrong:
    if struck.gently:
        lost = killed.last_step - resumed.loaded
        name, newest = "steps lost though it was told to end", killed.last_step
    else:
        name = "steps lost beyond the newest complete checkpoint"
        if struck.shelf is None:
            return Wrong(name, None, EVERY_STEP, note="the store was not seen after the kill")
        newest = max([struck.shelf.newest, *_completed(killed)])
        lost = newest - resumed.loaded
    refused = listed(text for own in resumed.by_rank.values() for text in own.start.refused)
    again = killed.last_step - resumed.loaded
    note = f"loaded {_shown(resumed.loaded or None)}; {max(0, again)} steps done again"
    culprit = (
        f"the resume: went on from {_shown(resumed.loaded or None)}, and step {newest} "
        + ("was finished" if struck.gently else "was complete")
        + (f"; refused {refused}" if refused else "")
    )
    return Wrong(name, abs(lost), EVERY_STEP, culprit if lost else None, note)


def _completed(life: Life) -> set[int]:
    return {c.step for own in life.by_rank.values() for c in own.checkpoints}


def _newer(killed: Life, resumed: Life) -> Figure:
    """How much later than the first start the loaded checkpoint was saved."""
    name, source = "loaded checkpoint saved after the start", "it is of this run, and not left over"
    saved = [own.start.saved_at for own in resumed.by_rank.values()]
    times = [time for time in saved if time is not None]
    if len(times) < len(saved):
        return Figure(name, None, "s", at_least=0, source=source, note="nothing was loaded")
    began = max(own.start.time for own in killed.by_rank.values())
    return Figure(
        name,
        min(times) - began,
        "s",
        at_least=0,
        source=source,
        culprit=f"the checkpoint of step {resumed.loaded}, which is older than the run",
    )


def first_new_step(cut: History, struck: Struck, terms: Terms) -> Figure:
    """Seconds from the kill until all ranks had done a step again."""
    ended = next((e for life in cut.lives[1:] if (e := life.first_step_ended()) is not None), None)
    return Figure(
        "time from the kill to the first new step",
        None if ended is None else ended - struck.at,
        "s",
        at_most=terms.within_s,
        source="criteria.restart.within" if terms.within_s is not None else "",
        culprit=struck.what,
        note=f"kill by the clock of {struck.clock}, step by that of the slowest rank",
    )


def steps_not_done_once(cut: History, terms: Terms) -> Wrong:
    """Steps that are missing from what counts, or there more than once."""
    times: dict[int, list[int]] = {}
    lacking = []
    for one in cut.effective():
        times.setdefault(one.step, []).append(one.life)
        life = cut.lives[one.life]
        lacking += [
            f"step {one.step} of rank {rank}: nothing written"
            for rank in range(life.size)
            if rank not in one.by_rank
        ]
    missing = [
        f"step {s}: not done after step {cut.lives[-1].loaded} was loaded"
        if s > cut.lives[-1].loaded
        else f"step {s}: not done"
        for s in range(1, terms.steps + 1)
        if s not in times
    ]
    double = [f"step {s}: done {len(n)} times" for s, n in sorted(times.items()) if len(n) > 1]
    beyond = [f"step {s}: beyond the last, {terms.steps}" for s in times if s > terms.steps]
    return found("steps missing or done twice", EVERY_STEP, [*missing, *double, *beyond, *lacking])


def again_differently(cut: History, like: Like) -> Wrong:
    """Steps that were done again, and came out otherwise than the first time."""
    curve, differ = cut.curve(), []
    again = cut.taken_back()
    for one in again:
        if one.step in curve:
            differ += [
                f"step {one.step}: {text}"
                for text in like.differences(one.by_rank, curve[one.step])
            ]
    name = "steps done again with another result"
    made = found(name, "what is redone replaces what was lost, and is equal to it", differ)
    steps = sorted({one.step for one in again})
    return Wrong(made.name, made.count, made.source, made.culprit, f"{len(steps)} done again")


def _shown(step: int | None) -> str:
    return "no checkpoint" if step is None else f"the checkpoint of step {step}"

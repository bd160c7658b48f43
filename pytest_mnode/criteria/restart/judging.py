"""A run that was killed beside one that was not: what is wrong with how it came back. Pure.

Each question is one function from histories to a finding; `judge` asks all of them. A question
that cannot be answered is a finding without a value, which is inconclusive.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mnode.criteria.restart.comparing import Like, differing, differing_ends
from pytest_mnode.criteria.restart.evidence import Struck
from pytest_mnode.criteria.restart.findings import EVERY_STEP, Finding
from pytest_mnode.criteria.restart.lives import History
from pytest_mnode.criteria.restart.resuming import (
    came_back,
    first_new_step,
    of_the_kill,
    of_the_resume,
)
from pytest_mnode.criteria.restart.sampling import samples_not_seen_once
from pytest_mnode.wrong import Wrong, found, listed

SAME_SEED = "beside a run with the same seed that was never killed"


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


def judge(whole: History, cut: History, struck: Struck, terms: Terms) -> list[Finding]:
    """All findings on one kill of a run. whole: of the run that was never killed."""
    until = History(cut.lives[: struck.lives], cut.stray)
    since = History(until.lives[struck.killed :], cut.stray)
    unfit = struck.missed or _unfit(whole, since, terms)
    if not unfit and _over_before(since, struck, terms.steps):
        unfit = "the run was over before the kill: more steps, or a longer pause, are needed"
    if unfit:
        return [came_back(since, struck, unfit)]
    findings: list[Finding] = [came_back(since, struck), *of_the_kill(since, struck)]
    if len(since.lives) > 1:
        findings += of_the_resume(since, struck, until.lives[0].began_by_rank_0)
        findings.append(first_new_step(since, struck, terms.within_s))
        findings += _compared(whole, since, until, struck, terms)
    return findings


def judge_resume(whole: History, cut: History, terms: Terms) -> list[Finding]:
    """Findings on a run that was ended and resumed, and is over: what it did, not how it died."""
    unfit = _unfit(whole, cut, terms)
    if unfit:
        return [Wrong("comparisons that could not be made", None, SAME_SEED, note=unfit)]
    return [
        *steps_and_numbers(whole, cut, terms.steps, terms.like),
        steps_too_many(cut, terms.steps),
        samples_not_seen_once(cut.effective(), terms.samples, terms.steps * terms.batch),
        *differing_ends(whole.lives[-1], cut.lives[-1], terms.like),
    ]


def _compared(
    whole: History, since: History, until: History, struck: Struck, terms: Terms
) -> list[Finding]:
    """What the run that came back did, up to its end or to the kill that followed."""
    over = struck.lives is None
    last = terms.steps if over else since.lives[-1].last_common_step
    # What a life did that was resumed itself was judged with the kill before it.
    known = since.lives[1].loaded if struck.killed else 0
    findings = steps_and_numbers(whole, since, last, terms.like, known)
    if over:
        findings.append(steps_too_many(since, terms.steps))
    counted = [one for one in until.effective() if one.step <= last]
    findings.append(samples_not_seen_once(counted, terms.samples, last * terms.batch))
    if over:
        findings += differing_ends(whole.lives[-1], since.lives[-1], terms.like)
    return findings


def steps_and_numbers(
    whole: History, cut: History, last: int, like: Like, known: int = 0
) -> list[Finding]:
    """Each step once, up to `last`, and with the numbers of the run that was never killed.

    known: step up to which numbers are not compared.
    """
    curve = {step: found for step, found in cut.curve().items() if known < step <= last}
    return [
        steps_not_done_once(cut, last),
        *differing(whole.curve(), curve, like),
        again_differently(cut, like),
    ]


def steps_not_done_once(cut: History, last: int) -> Wrong:
    """Steps that are missing from what counts, or there more than once."""
    first, loaded = cut.lives[0].loaded + 1, cut.lives[-1].loaded
    sizes = {life.number: life.size for life in cut.lives}
    times: dict[int, int] = {}
    lacking = []
    for one in cut.effective():
        times[one.step] = times.get(one.step, 0) + 1
        if one.step <= last:
            lacking += [
                f"step {one.step} of rank {rank}: nothing written"
                for rank in range(sizes[one.life])
                if rank not in one.by_rank
            ]
    missing = [
        f"step {step}: not done" + f", though step {loaded} was loaded" * (step > loaded)
        for step in range(first, last + 1)
        if step not in times
    ]
    double = [f"step {step}: done {n} times" for step, n in sorted(times.items()) if n > 1]
    made = found("steps missing or done twice", EVERY_STEP, [*missing, *double, *lacking])
    note = f"steps {first} to {last} over {len(cut.lives)} starts"
    return Wrong(made.name, made.count, made.source, made.culprit, note)


def steps_too_many(cut: History, steps: int) -> Wrong:
    """Steps done beyond those that there are, and ranks that ended with another number."""
    beyond = [f"step {one.step} of {steps}" for one in cut.effective() if one.step > steps]
    ends = {rank: own.end for rank, own in cut.lives[-1].by_rank.items()}
    others = [
        f"rank {rank} on {end.node} ended with {end.steps} of {steps} steps"
        for rank, end in ends.items()
        if end is not None and not end.preempted and end.steps != steps
    ]
    return found("ends at another step", "a run ends after the steps it has", [*beyond, *others])


def again_differently(cut: History, like: Like) -> Wrong:
    """Steps that were done again, and came out otherwise than the first time."""
    curve, differ = cut.curve(), []
    again = cut.taken_back()
    for one in again:
        if one.step in curve:
            texts = like.differences(one.by_rank, curve[one.step])
            differ += [f"step {one.step}: {text}" for text in texts]
    source = "what is redone replaces what was lost, and is equal to it"
    made = found("steps done again with another result", source, differ)
    note = f"{len({one.step for one in again})} steps were done again"
    return Wrong(made.name, made.count, made.source, made.culprit, note)


def _over_before(since: History, struck: Struck, steps: int) -> bool:
    """Whether the kill found nothing to do: all steps were done, or were in spite of it."""
    life = since.lives[0]
    if life.last_step_until(struck.at) >= steps:
        return True
    ends = [own.end for own in life.by_rank.values()]
    alone = len(since.lives) == 1 and not life.silent
    return alone and all(end is not None and end.steps >= steps for end in ends)


def _unfit(whole: History, cut: History, terms: Terms) -> str:
    """Why these runs cannot be compared; "" where they can."""
    if not whole.lives:
        return f"the run that was not to be killed wrote no records{_stray(whole)}"
    life = whole.lives[-1]
    expected = list(range(1, terms.steps + 1))
    done = {rank: [s.step for s in own.steps] for rank, own in life.by_rank.items()}
    silent = life.silent or [r for r, own in life.by_rank.items() if own.end is None]
    lacking = [rank for rank, steps in done.items() if steps != expected]
    if len(whole.lives) > 1 or silent or lacking:
        fewest = min(len(set(steps) & set(expected)) for steps in done.values())
        whose = f", ranks {silent} did not end" if silent else ""
        whose += f", ranks {lacking} have not each step once" if lacking else ""
        return (
            f"the run that was not to be killed did {fewest} of {terms.steps} steps in "
            f"{len(whole.lives)} starts{whose}{_stray(whole)}"
        )
    if not cut.lives:
        return f"the run that was killed wrote no records{_stray(cut)}"
    silent = sorted({rank for one in (cut.lives[0], cut.lives[-1]) for rank in one.silent})
    return f"nothing written by ranks {silent}{_stray(cut)}" if silent else ""


def _stray(history: History) -> str:
    return f"; {listed(history.stray)}" if history.stray else ""

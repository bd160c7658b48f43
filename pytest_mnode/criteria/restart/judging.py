"""Judges how a killed run came back, compared with a run that was not killed. Pure.

A question that cannot be answered is a measurement without a value, which is inconclusive. What
only the reference job's own code can do wrong (samples, learning rates, random and optimiser
states) is no question to a cluster; the tests of this package compare it.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low

from pytest_mnode.criteria.restart.comparing import (
    Tolerance,
    compared_ends,
    compared_losses,
)
from pytest_mnode.criteria.restart.history import History
from pytest_mnode.criteria.restart.resuming import (
    EVERY_STEP,
    KillReport,
    came_back,
    first_new_step,
    judge_kill,
    judge_loading,
)
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Bound, Measurement, at_most, listed

_STANDS_OUT = 2.0
"""Multiple of the median time: a rank that wrote longer made the others wait."""
_SAME_SEED = "compared with an uninterrupted run with the same seed"


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
    alike = [pair for pair in written if pair[0].step == longest.step]
    slowest, node = max(alike, key=lambda pair: pair[0].write_s)
    usual_s = median_low(record.write_s for record, _ in alike)
    alone = slowest.write_s > _STANDS_OUT * usual_s
    who = f"rank {slowest.rank} on {node} wrote for" if alone else "all ranks alike: they wrote for"
    words = f"{who} {slowest.write_s:.3g} s, step {longest.step}"
    culprit = Culprit(words, [node] if alone else [])
    return [
        Measurement(name, longest.seconds, "s", bound, source if bound else "", culprit, note),
        Measurement("size of a checkpoint", largest / 1e6, "MB", note="all files of all ranks"),
    ]


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
        found = tolerance.differences(one.by_rank, curve[one.step]) if one.step in curve else ()
        for who, shown in found:
            differ.append(Culprit.merged(f"step {one.step}: {who}", [who]))
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

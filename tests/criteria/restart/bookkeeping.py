"""What only the reference job's own code can do wrong after a resume: samples, schedule, states.

No fault of a cluster turns these red, so that no certificate has them. Tests of the job compare
them.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_mnode.criteria.restart.comparing import (
    LossCurve,
    Tolerance,
    ends_that_differ,
    steps_that_differ,
)
from pytest_mnode.criteria.restart.history import Effective, History, Incarnation
from pytest_mnode.criteria.restart.judging import Terms
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least


def bookkeeping(
    whole: History, cut: History, terms: Terms, *, samples: int, batch: int
) -> list[Measurement]:
    """All measurements of a run that came back and ended, compared with an uninterrupted one.

    samples: of one epoch. batch: samples of a step over all ranks.
    """
    steps, tolerance = terms.steps, terms.tolerance
    pair = whole.curve(), cut.curve()
    last = whole.incarnations[-1], cut.incarnations[-1]
    began = cut.incarnations[0].by_rank.get(0)
    found = [
        steps_that_differ(
            *("learning rates that differ", *pair, tolerance),
            lambda a, b: a.lr == b.lr,
            lambda record: record.lr,
        ),
        _other_samples(*pair, tolerance),
        _wrong_ends(cut, steps),
        samples_not_seen_once(cut.effective(), samples, steps * batch),
        _age_of_checkpoint(last[1], began.start.time if began else None),
    ]
    if tolerance.same_ranks:
        found.append(
            steps_that_differ(
                *("random states that differ", *pair, tolerance),
                lambda a, b: a.rng == b.rng,
                lambda record: record.rng,
            )
        )
    if tolerance.exact:
        source = tolerance.source
        name = "final optimiser states that differ"
        found.append(ends_that_differ(name, *last, source, lambda end: end.optimiser))
        name = "final learning rates that differ"
        found.append(ends_that_differ(name, *last, source, lambda end: end.lr))
    return found


def _other_samples(whole: LossCurve, cut: LossCurve, tolerance: Tolerance) -> Measurement:
    """Steps whose samples, over all ranks, are not those of the uninterrupted run."""
    wrong = []
    for step in sorted(whole.keys() & cut.keys()):
        one, other = (
            sorted(sample for record in curve[step].values() for sample in record.samples)
            for curve in (whole, cut)
        )
        if one != other:
            new = sorted(set(other) - set(one))
            words = f"step {step}: samples {new[:4] or 'missing'} that the other run did not use"
            wrong.append(Culprit(words))
    return Measurement.none_allowed("steps with other samples", wrong, tolerance.source)


def _wrong_ends(cut: History, steps: int) -> Measurement:
    """Steps beyond the last one, and ranks that ended with another number of steps."""
    beyond = [Culprit(f"step {one.step} of {steps}") for one in cut.effective() if one.step > steps]
    ends = {rank: own.end for rank, own in cut.incarnations[-1].by_rank.items()}
    others = [
        Culprit.rank(
            f"rank {rank} on {end.node} ended with {end.steps} of {steps} steps", end.node, rank
        )
        for rank, end in ends.items()
        if end is not None and not end.preempted and end.steps != steps
    ]
    source = "a run ends after its configured number of steps"
    return Measurement.none_allowed("ends at another step", [*beyond, *others], source)


def samples_not_seen_once(
    effective: Iterable[Effective], samples: int, consumed: int
) -> Measurement:
    """Samples that an epoch did not see exactly once, over all ranks.

    samples: of one epoch. consumed: by the whole run. An unfinished epoch may lack the samples that
    it did not reach, but none may occur twice.
    """
    seen: dict[int, dict[int, list[str]]] = {}
    for one in effective:
        for rank, record in one.by_rank.items():
            for sample in record.samples:
                where = f"step {one.step} on rank {rank}"
                seen.setdefault(record.epoch, {}).setdefault(sample, []).append(where)
    finished, left = divmod(consumed, samples)
    wrong = []
    for epoch in range(finished + bool(left)):
        in_epoch = seen.pop(epoch, {})
        for sample, places in sorted(in_epoch.items()):
            if not 0 <= sample < samples:
                wrong.append(f"sample {sample} of epoch {epoch}: no such sample")
            elif len(places) > 1:
                times = f"{len(places)} times, {', '.join(places)}"
                wrong.append(f"sample {sample} of epoch {epoch}: {times}")
        if epoch < finished:
            missing = sorted(set(range(samples)) - in_epoch.keys())
            wrong += [f"sample {sample} of epoch {epoch}: not seen" for sample in missing]
        elif len(in_epoch) != left:
            wrong.append(f"epoch {epoch}: {len(in_epoch)} samples instead of {left}")
    wrong += [f"epoch {epoch}: beyond the end of the run" for epoch in sorted(seen)]
    return Measurement.none_allowed(
        "samples not seen exactly once",
        map(Culprit, wrong),
        f"{finished} whole epochs of {samples} samples and {left} more, over all ranks",
    )


def _age_of_checkpoint(resumed: Incarnation, began: float | None) -> Measurement:
    """Seconds from the start of the run until the loaded checkpoint was saved."""
    name, source = (
        "loaded checkpoint saved after the start",
        "the checkpoint is of this run, not of an earlier one",
    )
    saved = [own.start.saved_at for own in resumed.by_rank.values()]
    times = [time for time in saved if time is not None]
    if len(times) < len(saved) or began is None:
        why = "nothing was loaded" if began is not None else "rank 0 recorded no start time"
        return Measurement.unknown(name, why, unit="s", expected=at_least(0), source=source)
    culprit = f"the checkpoint of step {resumed.loaded}, which is older than the run"
    return Measurement(name, min(times) - began, "s", at_least(0), source, Culprit(culprit))

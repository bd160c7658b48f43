"""Compares two runs number by number, and checks the samples that a run saw. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from pytest_mnode.criteria.restart.history import Effective, Incarnation
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_most, listed
from pytest_mnode.reference_job.records import EndRecord, StepRecord

LossCurve = Mapping[int, Mapping[int, StepRecord]]
"""Records by step and rank."""
Parameters = Mapping[str, Any]
"""Arrays by name."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest allowed difference between two runs.

    relative: of losses; 0 requires losses and parameters equal bit by bit. source: where the
    tolerance comes from. same_ranks: both have as many ranks, so state per rank can be compared.
    """

    relative: float
    source: str
    same_ranks: bool = True

    @property
    def exact(self) -> bool:
        """Whether parameters and optimiser state have to be equal bit by bit."""
        return self.relative == 0 and self.same_ranks

    def accepts(self, one: float, other: float) -> bool:
        """Whether two losses agree; NaN equals nothing, and infinity equals only itself."""
        if self.relative == 0 or not (isfinite(one) and isfinite(other)):
            return one == other
        return abs(one - other) <= self.relative * max(abs(one), abs(other))

    def differences(
        self, one: Mapping[int, StepRecord], other: Mapping[int, StepRecord]
    ) -> Iterator[tuple[Culprit, str]]:
        """Differences in one step of two runs: the rank with what differs, and the values; "" for
        what is no number."""
        for rank in sorted(one.keys() & other.keys()):
            a, b = one[rank], other[rank]

            def differs(what: str, values: str = "", at: StepRecord = b) -> tuple[Culprit, str]:
                where = f"rank {at.rank} on {at.node}"
                return Culprit(f"{where}: another {what}", at.node), values and f"{where}: {values}"

            if not self.accepts(a.loss, b.loss):
                yield differs("loss", f"loss {b.loss!r} instead of {a.loss!r}")
            if a.lr != b.lr:
                yield differs("learning rate", f"learning rate {b.lr!r} instead of {a.lr!r}")
            if self.same_ranks and a.world_size == b.world_size:
                if a.samples != b.samples:
                    yield differs("set of samples")
                if a.rng != b.rng:
                    yield differs("random state")


def compared_steps(whole: LossCurve, cut: LossCurve, tolerance: Tolerance) -> list[Measurement]:
    """Numbers that differ from the uninterrupted run, over the steps of both runs."""
    pairs = list(_pairs(whole, cut, tolerance.same_ranks))

    def differing(
        name: str,
        equal: Callable[[StepRecord, StepRecord], bool],
        shown: Callable[[StepRecord], object] | None = None,
        distance: str = "",
    ) -> Measurement:
        first: dict[int, Culprit] = {}
        values = list[str]()
        count = 0
        for rank, a, b in pairs:
            if not equal(a, b):
                count += 1
                who = f"rank {rank} on {b.node}"
                if shown and rank not in first:
                    values.append(f"{who}, step {b.step}: {shown(b)!r} instead of {shown(a)!r}")
                first.setdefault(rank, Culprit(f"{who} from step {b.step} on", b.node))
        note = f"of {len(pairs)} steps and ranks{distance}" if pairs else ""
        note = "; ".join(filter(None, [note, listed(values)]))
        unsure = "" if pairs else "no step that both runs did"
        return Measurement.none_allowed(
            name,
            unless_all(first, {rank for rank, *_ in pairs}),
            tolerance.source,
            count=count,
            unsure=unsure,
            note=note,
        )

    farthest = max((_relative_distance(a.loss, b.loss) for _, a, b in pairs), default=0.0)
    distance = f", by {farthest:.2g} at most, relative" if farthest else ""
    found = [
        differing(
            "losses that differ",
            lambda a, b: tolerance.accepts(a.loss, b.loss),
            lambda record: record.loss,
            distance,
        ),
        differing(
            "learning rates that differ", lambda a, b: a.lr == b.lr, lambda record: record.lr
        ),
    ]
    if tolerance.same_ranks:
        found.append(differing("random states that differ", lambda a, b: a.rng == b.rng))
    return [*found, _other_samples(whole, cut, tolerance)]


def _relative_distance(one: float, other: float) -> float:
    return abs(one - other) / (max(abs(one), abs(other)) or 1.0)


def _pairs(
    whole: LossCurve, cut: LossCurve, same_ranks: bool
) -> Iterator[tuple[int, StepRecord, StepRecord]]:
    """Records of the same step and rank; of any rank if sizes differ: losses are of all ranks."""
    for step in sorted(whole.keys() & cut.keys()):
        for rank in sorted(cut[step]):
            other = whole[step].get(rank) if same_ranks else whole[step][min(whole[step])]
            if other is not None:
                yield rank, other, cut[step][rank]


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


def compared_ends(whole: Incarnation, cut: Incarnation, tolerance: Tolerance) -> list[Measurement]:
    """Final parameters, optimiser state and learning rate of each rank, compared bit by bit.

    With a tolerance, or another number of ranks, digests say nothing: only ends are counted.
    """
    missing = {rank: Culprit(f"rank {rank}") for rank in range(cut.size) if not _end(cut, rank)}
    source = tolerance.source
    found = [Measurement.none_allowed("ranks that did not finish", missing.values(), source)]
    if not tolerance.exact:
        return found
    ends = [(rank, _end(whole, rank), _end(cut, rank)) for rank in range(cut.size)]
    both = [(rank, a, b) for rank, a, b in ends if a is not None and b is not None]
    for field, name in (
        ("parameters", "final parameters that differ"),
        ("optimiser", "final optimiser states that differ"),
        ("lr", "final learning rates that differ"),
    ):
        if not both:
            why = "no rank finished in both runs"
            found.append(Measurement.unknown(name, why, source=source))
            continue
        wrong = {
            rank: Culprit.rank(f"rank {rank} on {b.node}", b.node, rank)
            for rank, a, b in both
            if getattr(a, field) != getattr(b, field)
        }
        found.append(Measurement.none_allowed(name, unless_all(wrong, range(cut.size)), source))
    return found


def unless_all(wrong: Mapping[int, Culprit], ranks: Collection[int]) -> list[Culprit]:
    """Ranks whose numbers are wrong; if those of all ranks are, nobody knows whose came first."""
    if len(wrong) == len(ranks) > 1:
        return [Culprit(str(one)) for one in wrong.values()]
    return list(wrong.values())


def _end(incarnation: Incarnation, rank: int) -> EndRecord | None:
    own = incarnation.by_rank.get(rank)
    return None if own is None or own.end is None or own.end.preempted else own.end


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


def compared_parameters(one: Parameters, other: Parameters, tolerance: Tolerance) -> Measurement:
    """The largest difference of final parameters, relative to the largest parameter."""
    import numpy as np

    name, bound = "final parameters, largest difference", at_most(tolerance.relative)
    source = tolerance.source

    def unknown(why: str) -> Measurement:
        return Measurement.unknown(name, why, expected=bound, source=source)

    if one.keys() != other.keys() or not one:
        return unknown(f"parameters of only one run: {sorted(one.keys() ^ other.keys())}")
    if any(one[key].shape != other[key].shape for key in one):
        return unknown("the parameters of both runs differ in shape")
    odd = [
        key for key in one if not (np.isfinite(one[key]).all() and np.isfinite(other[key]).all())
    ]
    if odd:
        # A difference from NaN or infinity has no size: it counts as 1.0, the whole value.
        note = f"not finite: {listed(odd)}"
        return Measurement(name, 1.0, "", bound, source, Culprit(odd[0]), note)
    largest = max((float(np.abs(value).max(initial=0.0)) for value in one.values()), default=0.0)
    distance = {key: float(np.abs(one[key] - other[key]).max(initial=0.0)) for key in one}
    worst = max(distance, key=lambda key: distance[key])
    note = f"relative to {largest:.4g}, the largest of all; in {worst}"
    return Measurement(
        name, distance[worst] / (largest or 1.0), "", bound, source, Culprit(worst), note
    )

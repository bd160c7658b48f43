"""Compares the losses and the final parameters of two runs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from pytest_mnode.criteria.restart.history import Incarnation
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
        """Losses that differ in one step of two runs: the rank, and the values."""
        for rank in sorted(one.keys() & other.keys()):
            a, b = one[rank], other[rank]

            if not self.accepts(a.loss, b.loss):
                where = f"rank {b.rank} on {b.node}"
                text = f"{where}: loss {b.loss!r} instead of {a.loss!r}"
                yield Culprit.rank(f"{where}: another loss", b.node, b.rank), text


def compared_losses(whole: LossCurve, cut: LossCurve, tolerance: Tolerance) -> Measurement:
    """Losses that differ from the uninterrupted run, over the steps of both runs."""

    def equal(a: StepRecord, b: StepRecord) -> bool:
        return tolerance.accepts(a.loss, b.loss)

    return steps_that_differ(
        "losses that differ", whole, cut, tolerance, equal, lambda record: record.loss
    )


def steps_that_differ(  # noqa: PLR0917  two runs, and what is compared of them
    name: str,
    whole: LossCurve,
    cut: LossCurve,
    tolerance: Tolerance,
    equal: Callable[[StepRecord, StepRecord], bool],
    shown: Callable[[StepRecord], float | str],
) -> Measurement:
    """Numbers of steps and ranks that are not equal in both runs. shown: the number compared."""
    pairs = list(_pairs(whole, cut, tolerance.same_ranks))
    first: dict[int, Culprit] = {}
    values = list[str]()
    count = 0
    for rank, a, b in pairs:
        if not equal(a, b):
            count += 1
            who = f"rank {rank} on {b.node}"
            if rank not in first:
                values.append(f"{who}, step {b.step}: {shown(b)!r} instead of {shown(a)!r}")
            first.setdefault(rank, Culprit.rank(f"{who} from step {b.step} on", b.node, rank))
    farthest = max((_relative_distance(shown(a), shown(b)) for _, a, b in pairs), default=0.0)
    distance = f", by {farthest:.2g} at most, relative" if farthest else ""
    note = f"of {len(pairs)} steps and ranks{distance}" if pairs else ""
    return Measurement.none_allowed(
        name,
        unless_all(first, {rank for rank, *_ in pairs}),
        tolerance.source,
        count=count,
        unsure="" if pairs else "no step that both runs did",
        note="; ".join(filter(None, [note, listed(values)])),
    )


def _relative_distance(one: float | str, other: float | str) -> float:
    if isinstance(one, str) or isinstance(other, str):
        return 0.0
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


def compared_ends(whole: Incarnation, cut: Incarnation, tolerance: Tolerance) -> list[Measurement]:
    """Whether all ranks finished, and their final parameters, compared bit by bit.

    With a tolerance, or another number of ranks, digests say nothing: only ends are counted.
    """
    missing = {rank: Culprit(f"rank {rank}") for rank in range(cut.size) if not _end(cut, rank)}
    source = tolerance.source
    found = [Measurement.none_allowed("ranks that did not finish", missing.values(), source)]
    if tolerance.exact:
        name = "final parameters that differ"
        found.append(ends_that_differ(name, whole, cut, source, lambda end: end.parameters))
    return found


def ends_that_differ(
    name: str,
    whole: Incarnation,
    cut: Incarnation,
    source: str,
    value: Callable[[EndRecord], object],
) -> Measurement:
    """Ranks that did not end with the same value in both runs."""
    ends = [(rank, _end(whole, rank), _end(cut, rank)) for rank in range(cut.size)]
    both = [(rank, a, b) for rank, a, b in ends if a is not None and b is not None]
    if not both:
        return Measurement.unknown(name, "no rank finished in both runs", source=source)
    wrong = {
        rank: Culprit.rank(f"rank {rank} on {b.node}", b.node, rank)
        for rank, a, b in both
        if value(a) != value(b)
    }
    return Measurement.none_allowed(name, unless_all(wrong, range(cut.size)), source)


def unless_all(wrong: Mapping[int, Culprit], ranks: Collection[int]) -> list[Culprit]:
    """Ranks whose numbers are wrong; if those of all ranks are, nobody knows whose came first."""
    if len(wrong) == len(ranks) > 1:
        return [Culprit(str(one)) for one in wrong.values()]
    return list(wrong.values())


def _end(incarnation: Incarnation, rank: int) -> EndRecord | None:
    own = incarnation.by_rank.get(rank)
    return None if own is None or own.end is None or own.end.preempted else own.end


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

"""Judges a scaling job: efficiency against its bound, parts of the steps, and the network. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_mnode.criteria.scaling.attribution import Attribution, attribute
from pytest_mnode.criteria.scaling.causes import (
    FABRIC,
    NETWORK,
    OWNED,
    Cause,
    causes_of,
    explained,
    worth_listing,
)
from pytest_mnode.criteria.scaling.efficiency import Throughput, throughputs
from pytest_mnode.criteria.scaling.network import (
    CollectiveBaseline,
    baseline_over,
    off_fabric_nics,
    sent_in_steps,
)
from pytest_mnode.criteria.scaling.timings import JobTimings
from pytest_mnode.culprit import Culprit
from pytest_mnode.launchers.node import count
from pytest_mnode.measurement import HeadlineMark, Measurement, at_least, at_most
from pytest_mnode.measuring.traffic import SentByNode
from pytest_mnode.spec import Spec
from pytest_mnode.spec.scaling import ScalingCriterion

_KEY = "criteria.scaling"
_LEAST_LOSS = 0.005
"""Fraction of a step: a smaller loss is given no cause."""
PART_NAMES = (
    *("computing", "communication", "input", "optimiser", "checkpoint", "rest"),
    "waiting for the slowest",
)
"""Names of the parts for readers, in the order of PARTS."""


@dataclass(frozen=True, slots=True)
class CountResult:
    """The result for one number of nodes.

    measured: by the median step; row: as it is judged, by the mean if the median hides a loss.
    baseline: None for one rank, or if the fabric was not measured. explained: fraction of the loss
    due to allowed causes. bound: required efficiency; source: of the bound. unknown_why: why the
    result is inconclusive; "" if it is not.
    """

    measured: Throughput
    row: Throughput
    parts: Attribution
    baseline: CollectiveBaseline | None
    causes: tuple[Cause, ...]
    explained: float
    bound: float
    source: str
    unknown_why: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the efficiency surely reaches its bound; None if there is no answer."""
        return None if self.unknown_why else self.row.reaches(self.bound)

    @property
    def diffuse(self) -> bool:
        """Whether the bound would be reached without the causes that have no culprit."""
        owned_s = sum(max(0.0, cause.seconds) for cause in self.causes if cause.kind in OWNED)
        return self.row.ideal_s / (self.row.ideal_s + owned_s) >= self.bound

    @property
    def listed(self) -> list[Cause]:
        """Causes that are worth listing, largest first; none if next to nothing is lost."""
        little = self.row.lost_s <= _LEAST_LOSS * self.row.step_s
        return [] if little else worth_listing(self.causes, self.row.lost_s)


@dataclass(frozen=True, slots=True)
class ScalingResult:
    """The result of a scaling job. slow_links: None if they were not searched."""

    spec: Spec
    promise: ScalingCriterion
    timings: JobTimings
    counts: tuple[CountResult, ...]
    sent: tuple[SentByNode, ...]
    slow_links: Culprit | None = None

    @property
    def falls_short_by_fabric(self) -> bool:
        """Whether an efficiency fails, and the fabric is its largest cause."""
        return any(
            one.holds is False and bool(one.causes) and one.causes[0].kind == FABRIC
            for one in self.counts
        )

    @property
    def how(self) -> str:
        """What was trained, for the note of a measurement."""
        compute_s = self.promise.compute_s
        how = f"{self.promise.kind} scaling, {self.promise.parallel}"
        if compute_s is None:
            return how
        return f"{how}, emulated compute {compute_s * 1e3:g} ms per step"


def judge(timings: JobTimings, spec: Spec, promise: ScalingCriterion) -> ScalingResult:
    """Judge the timings of a job, for each number of nodes."""
    counts = tuple(_judge_count(row, timings, spec, promise) for row in throughputs(timings))
    sent = sent_in_steps(timings.trained, timings)
    return ScalingResult(spec, promise, timings, counts, sent)


def judge_efficiency(found: ScalingResult) -> list[Measurement]:
    """Measurements of the throughput and the efficiency of each number of nodes."""
    measurements = []
    most = max((one.row.count for one in found.counts), default=0)
    for one in found.counts:
        row, on, how = one.row, count(one.row.count), found.how
        measurements += [
            Measurement(f"throughput, {on}", row.samples_s, "samples/s", note=how),
            Measurement(f"tokens, {on}", row.tokens_s, "tokens/s", note=how),
        ]
        if row.count == 1:
            continue
        measurements.append(
            Measurement(
                f"efficiency, {on}",
                None if one.unknown_why else row.efficiency,
                "",
                at_least(one.bound),
                one.source,
                _culprit(one, found.slow_links),
                "; ".join(filter(None, (one.unknown_why, _interval(found, one), how))),
                detection=None if one.unknown_why else row.detection(one.bound, found.promise),
                interval=(row.low, row.at_most),
                false_alarm=row.false_alarm,
                headline=HeadlineMark("efficiency", f"on {on}") if row.count == most else None,
            )
        )
    return measurements


def _culprit(one: CountResult, slow_links: Culprit | None) -> Culprit | None:
    """The causes in words, with the nodes of these and of the slow links behind a slow fabric."""
    if not one.listed:
        return None
    largest, *others = one.listed
    blamed = [
        largest.culprit or Culprit(""),
        *(c.culprit for c in others if c.culprit and c.culprit.nodes),
    ]
    words = "; ".join(cause.text for cause in one.listed)
    if slow_links is None or all(cause.kind != FABRIC for cause in one.causes):
        return Culprit.merged(words, blamed)
    rest = blamed[1:] if largest.kind == FABRIC else blamed
    return Culprit.merged(f"{words}; {slow_links}", [slow_links, *rest])


def judge_parts(found: ScalingResult) -> list[Measurement]:
    """Whether the clock of each rank's steps agrees with that of their parts.

    The parts of the loss compared with one node are recorded: they add up by construction.
    """
    most = found.promise.parts_within
    bound = at_most(most).of(f"{_KEY}.parts_within", most)
    unit, source = "of the step", f"{_KEY}.parts_within {most:g}"
    measurements = []
    for one in found.counts:
        worst, on = one.parts.worst_missed, count(one.row.count)
        measurements.append(
            Measurement(
                f"step time that differs from its parts, {on}",
                worst.missed,
                unit,
                bound,
                source,
                Culprit(
                    f"rank {worst.rank} on {worst.node}",
                    {rank.node for rank in one.parts.ranks if rank.missed > most} | {worst.node},
                ),
                f"rank {worst.rank} of {len(one.parts.ranks)}, whose parts miss its step most",
            )
        )
        if one.row.count == 1:
            continue
        measurements += [
            Measurement(f"{name}, {on}", seconds * 1e3, "ms", note="more than on one node")
            for name, seconds in lost_parts(one.parts).items()
        ]
    return measurements + [_exposed(one, one.baseline) for one in found.counts if one.baseline]


def lost_parts(parts: Attribution) -> dict[str, float]:
    """The parts of the loss of the mean rank, in seconds, by their names for readers."""
    return dict(zip(PART_NAMES, parts.lost, strict=True))


def _judge_count(
    measured: Throughput, timings: JobTimings, spec: Spec, promise: ScalingCriterion
) -> CountResult:
    """Judge one number of nodes by the median step, or by the mean if the median hides a loss."""
    row = measured.judged_by(promise.parts_within)
    parts = attribute(timings, row)
    baseline = baseline_over(timings, row.count, spec)
    causes: tuple[Cause, ...] = ()
    if row.count > 1:
        sent = sent_in_steps(timings.over(row.count), timings)
        causes = causes_of(parts, baseline, off_fabric_nics(spec.fabric, sent), promise)
    share = explained(causes, promise.allowed_causes, max(row.lost_s, parts.lost_s))
    bound, source = _bound(row, share, promise)
    found = CountResult(measured, row, parts, baseline, causes, share, bound, source)
    if row.count == 1:
        return found
    waited_s = timings.cpu_wait_s(row.count) or 0.0
    return replace(found, unknown_why=_unknown_why(found, promise, waited_s))


def _bound(row: Throughput, share: float, promise: ScalingCriterion) -> tuple[float, str]:
    """The bound and its source: full efficiency, or less if allowed causes explain the loss."""
    full, least = promise.at_least_efficiency, promise.explained_from
    source = f"{_KEY}.at_least_efficiency {full:g}"
    allowed = ", ".join(promise.allowed_causes) or "none"
    reason = f"{share:.0%} of the loss is due to allowed_causes ({allowed})"
    if row.reaches(full):
        return full, source
    if share < promise.explained_fraction:
        return full, f"{source}; {reason}"
    return least, f"{_KEY}.explained_from {least:g}, as {reason}"


def _unknown_why(one: CountResult, promise: ScalingCriterion, waited_s: float) -> str:
    """Why the measured efficiency is inconclusive; "" if it is not. waited_s: per step, that the
    threads of the median rank waited for a CPU."""
    row = one.row
    replicated = promise.kind == "weak" and promise.parallel == "ddp"
    if replicated and row.low > 2 - promise.at_least_efficiency:
        each = f"{count(row.count)} do {row.efficiency:.3g} times its work each"
        return f"one node alone is slow: {each}"
    may_be_excused = promise.explained_from <= row.efficiency < one.bound
    on_the_fabric = all(cause.kind != NETWORK for cause in one.causes)
    if one.baseline is None and may_be_excused and on_the_fabric:
        return f"what the fabric allows over {count(row.count)} was not measured"
    # Computing is declared only where nodes share the processors of one machine.
    shared = promise.compute_s is not None
    if shared and row.efficiency < one.bound and one.diffuse and waited_s > row.lost_s / 2:
        return (
            f"nodes share this machine's processors: the threads of a rank waited for one for "
            f"{waited_s * 1e3:.0f} ms per step, and {row.lost_s * 1e3:.0f} ms per step are lost "
            "without a culprit"
        )
    return ""


def _interval(found: ScalingResult, one: CountResult) -> str:
    row, measured = one.row, one.measured
    text = (
        f"95 % between {row.low:.3f} and {row.high:.3f}, less than {row.at_most:.3f} in all but "
        f"{row.false_alarm:.2g} of cases, {row.steps} steps in "
        f"{found.timings.rounds} rounds, median {measured.step_s * 1e3:.1f} ms, mean "
        f"{(measured.mean or measured).step_s * 1e3:.1f} ms"
    )
    if row == measured:
        return text
    return (
        f"{text}; judged by the mean of each turn's steps, because the median hides slow ones "
        f"among them (it would be {measured.efficiency:.3f})"
    )


def _exposed(one: CountResult, baseline: CollectiveBaseline) -> Measurement:
    exposed_s = lost_parts(one.parts)["communication"]
    allowed_s = baseline.exposed_s(one.parts.typical.slowest.backward_s)
    hidden = one.parts.hidden_fraction
    note = (
        f"exposed {exposed_s * 1e3:.1f} ms; a step's collectives alone, back to back, "
        f"{baseline.all_s * 1e3:.1f} ms, {baseline.speed}; the last for gradients "
        f"{baseline.last_s * 1e3:.1f} ms"
    )
    if hidden is not None:
        note += f"; {hidden:.0%} hidden"
    name = f"communication exposed beyond what the fabric allows, {count(one.row.count)}"
    return Measurement(name, (exposed_s - allowed_s) * 1e3, "ms", note=note)

"""A scaling job judged, and recorded: throughput, parts and network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_mnode.criteria.scaling.attribution import Attribution
from pytest_mnode.criteria.scaling.causes import FABRIC
from pytest_mnode.criteria.scaling.complete import lacking, nodes
from pytest_mnode.criteria.scaling.efficiency import scaled
from pytest_mnode.criteria.scaling.fabric import Carried, Lane, carried_by
from pytest_mnode.criteria.scaling.facts import Facts
from pytest_mnode.criteria.scaling.judging import Judged, judged
from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.spec import Spec
from pytest_mnode.spec.scaling import ScalingCriterion

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

_KEY = "criteria.scaling"
NAMES = (
    *("computing", "communication", "input", "optimiser", "checkpoint", "rest"),
    "waiting for the slowest",
)
"""For readers, by the order of SPLIT."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """A scaling job judged. located: who slows the fabric, where that was looked for."""

    spec: Spec
    promise: ScalingCriterion
    plan: Plan
    facts: Facts
    judged: tuple[Judged, ...]
    carried: Carried
    located: str | None = None

    @property
    def missing(self) -> dict[int, str]:
        """Numbers of nodes of which nothing can be said, with the reason."""
        there = {one.row.count for one in self.judged}
        return {
            count: lacking(self.facts, self.plan, count) or "another number of nodes lacks steps"
            for count in self.plan.counts[1:]
            if count not in there
        }

    @property
    def falls_short_by_fabric(self) -> bool:
        """Whether an efficiency fails, and the fabric is its largest cause."""
        return any(
            one.holds is False and bool(one.causes) and one.causes[0].kind == FABRIC
            for one in self.judged
        )

    def with_located(self, located: str) -> Scaling:
        """The same, with the culprit of a slow fabric."""
        return replace(self, located=located)

    def record_efficiency(self, measure: Measure) -> None:
        """Throughput of each number of nodes, and what it is of so many times one node's."""
        for one in self.judged:
            row, count = one.row, nodes(one.row.count)
            measure(f"throughput, {count}", row.samples_s, "samples/s", note=self._how)
            measure(f"tokens, {count}", row.tokens_s, "tokens/s", note=self._how)
            if row.count == 1:
                continue
            measure(
                f"efficiency, {count}",
                None if one.open_ else row.efficiency,
                "",
                at_least=one.bound,
                source=one.source,
                culprit=self._culprit(one),
                note=f"{one.open_ + '; ' if one.open_ else ''}{self._interval(one)}; {self._how}",
            )
        for number, why in self.missing.items():
            measure(
                f"efficiency, {nodes(number)}",
                None,
                "",
                at_least=self.promise.at_least_efficiency,
                source=f"{_KEY}.at_least_efficiency {self.promise.at_least_efficiency:g}",
                note=why,
            )

    def record_parts(self, measure: Measure) -> None:
        """Whether the parts of each rank's steps add up, and those of the loss against one node."""
        most = self.promise.parts_within
        for one in self.judged:
            worst, count = one.parts.worst_missed, nodes(one.row.count)
            measure(
                f"parts beside the step time, {count}",
                worst.missed,
                "of the step",
                at_most=most,
                source=f"{_KEY}.parts_within {most:g}",
                culprit=f"rank {worst.rank} on {worst.node}",
                note=f"rank {worst.rank} of {len(one.parts.ranks)}, which misses it most",
            )
            if one.row.count == 1:
                continue
            measure(
                f"loss not attributed, {count}",
                one.not_attributed,
                "of the step",
                at_most=most,
                source=f"{_KEY}.parts_within {most:g}",
                note=one.told or "next to nothing is lost",
            )
            for name, seconds in lost_parts(one.parts).items():
                measure(f"{name}, {count}", seconds * 1e3, "ms", note="more than on one node")
        for number, why in self.missing.items():
            measure(
                f"loss not attributed, {nodes(number)}",
                None,
                "of the step",
                at_most=most,
                source=f"{_KEY}.parts_within {most:g}",
                note=why,
            )
        for one in self.judged:
            if one.lane is not None:
                self._record_exposed(one, one.lane, measure)

    def _record_exposed(self, one: Judged, lane: Lane, measure: Measure) -> None:
        exposed = lost_parts(one.parts)["communication"]
        allowed = lane.exposed_s(one.parts.backward_s)
        hidden = one.parts.hidden_fraction
        measure(
            f"communication exposed beyond what the fabric allows, {nodes(one.row.count)}",
            (exposed - allowed) * 1e3,
            "ms",
            note=f"exposed {exposed * 1e3:.1f} ms; all-reduce of {lane.size_bytes} B alone "
            f"{lane.all_s * 1e3:.1f} ms, {lane.line_fraction:.0%} of the line rate, of the last "
            f"bucket {lane.last_s * 1e3:.1f} ms"
            + ("" if hidden is None else f"; {hidden:.0%} hidden"),
        )

    def record_network(self, measure: Measure) -> None:
        """Whether the bytes of the steps went over the fabric's NICs."""
        carried, most = self.carried, self.promise.elsewhere_fraction
        fraction = carried.elsewhere_fraction
        culprit, note = carried.culprit, carried.busiest
        if fraction is not None and culprit is None:
            instead = "+".join(self.spec.fabric.interfaces)
            culprit = f"{carried.worst} sent {fraction:.0%} over other NICs than {instead}"
        if fraction is None:
            all_of_it = f"no counter shows the {carried.least_bytes / 1e6:.0f} MB that were sent"
            some = f"no counter of {', '.join(carried.unseen)} shows what it had to send: {note}"
            note = some if len(carried.unseen) < len(carried.elsewhere) else all_of_it
        measure(
            "sent past the fabric during the steps",
            fraction,
            "of the bytes",
            at_most=most,
            source=f"{_KEY}.elsewhere_fraction {most:g}",
            culprit=culprit,
            note=note,
        )

    def _culprit(self, one: Judged) -> str | None:
        said = one.told
        if self.located and any(cause.kind == FABRIC for cause in one.causes):
            said = f"{said}; {self.located}"
        return said or None

    def _interval(self, one: Judged) -> str:
        row, measured = one.row, one.measured
        text = (
            f"95 % between {row.low:.3f} and {row.high:.3f}, {row.steps} steps in "
            f"{self.facts.rounds} rounds, median {measured.step_s * 1e3:.1f} ms, mean "
            f"{measured.by_mean().step_s * 1e3:.1f} ms"
        )
        if row == measured:
            return text
        return (
            f"{text}; judged by the mean of each turn's steps, for the median hides slow ones "
            f"among them (it would be {measured.efficiency:.3f})"
        )

    @property
    def _how(self) -> str:
        emulated = self.promise.compute_s
        compute = "" if emulated is None else f", computing emulated ({emulated * 1e3:g} ms a step)"
        return f"{self.promise.kind} scaling, {self.promise.parallel}{compute}"


def judge(facts: Facts, plan: Plan, spec: Spec, promise: ScalingCriterion) -> Scaling:
    """Judge what a job measured."""
    carried = carried_by(facts.trained, facts, spec)
    rows = scaled(facts, seed=plan.seed)
    every = tuple(judged(row, facts, plan, spec, promise) for row in rows)
    return Scaling(spec, promise, plan, facts, every, carried)


def lost_parts(parts: Attribution) -> dict[str, float]:
    """The parts of the loss of the mean rank, seconds, by their names for readers."""
    return dict(zip(NAMES, parts.lost, strict=True))

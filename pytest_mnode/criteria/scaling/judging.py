"""The verdict: efficiency against its bound, with the causes of what is lost. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_mnode.criteria.scaling.attribution import Attribution, attributed
from pytest_mnode.criteria.scaling.causes import NETWORK, OWNED, Cause, causes_of, explained, told
from pytest_mnode.criteria.scaling.complete import elsewhere, lacking, nodes
from pytest_mnode.criteria.scaling.efficiency import Scaled
from pytest_mnode.criteria.scaling.fabric import Lane, carried_by, lane_of
from pytest_mnode.criteria.scaling.facts import Facts
from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.spec import Spec
from pytest_mnode.spec.scaling import ScalingCriterion

_KEY = "criteria.scaling"
_WORTH_TELLING = 0.005
"""Of a step: a loss of less has no cause."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One number of nodes beside its promise.

    measured: by the median step; row: what is judged, by the mean where the median hides a loss.
    lane: None for one rank, and where the fabric was not measured. bound: what the efficiency has
    to reach, and source: why so much. open_: why there is no answer; empty where there is one.
    starved_s: of a step, for how long threads of a rank had no CPU, the median rank; None where
    that is not told.
    """

    measured: Scaled
    row: Scaled
    parts: Attribution
    lane: Lane | None
    causes: tuple[Cause, ...]
    explained: float
    bound: float
    source: str
    open_: str = ""
    starved_s: float | None = None

    @property
    def holds(self) -> bool | None:
        """None where there is no answer."""
        return None if self.open_ else self.row.efficiency >= self.bound

    @property
    def not_attributed(self) -> float:
        """Part of the step by which the parts of the mean rank miss the loss that is judged."""
        return abs(self.row.lost_s - sum(self.parts.lost)) / self.row.step_s

    @property
    def diffuse(self) -> bool:
        """Whether it would hold but for causes that have no owner."""
        owned_s = sum(max(0.0, cause.seconds) for cause in self.causes if cause.kind in OWNED)
        return self.row.ideal_s / (self.row.ideal_s + owned_s) >= self.bound

    @property
    def told(self) -> str:
        """Causes in words, largest first; empty where next to nothing is lost."""
        worth = self.row.lost_s > _WORTH_TELLING * self.row.step_s
        return told(self.causes, self.row.lost_s) if worth else ""


def judged(
    measured: Scaled, facts: Facts, plan: Plan, spec: Spec, promise: ScalingCriterion
) -> Judged:
    """Judge one number of nodes: by the median step, or by the mean where that hides a loss."""
    row = measured.judged_by(promise.parts_within)
    parts = attributed(facts, row)
    lane = lane_of(facts, row.count, spec)
    causes: tuple[Cause, ...] = ()
    if row.count > 1:
        carried = carried_by(facts.over(row.count), facts, spec)
        causes = causes_of(parts, lane, carried, promise)
    lost_s = max(row.lost_s, parts.lost_s)
    share = explained(causes, promise.allowed_causes, lost_s)
    bound, source = _bound(row, share, promise)
    starved_s = _starved_s(facts, row.count)
    found = Judged(measured, row, parts, lane, causes, share, bound, source, starved_s=starved_s)
    if row.count == 1:
        return found
    open_ = elsewhere(facts, spec) or lacking(facts, plan, row.count)
    return replace(found, open_=open_ or _open(found, spec, promise))


def _bound(row: Scaled, share: float, promise: ScalingCriterion) -> tuple[float, str]:
    """Full efficiency, or less of it where allowed causes explain the loss."""
    full, least = promise.at_least_efficiency, promise.explained_from
    source = f"{_KEY}.at_least_efficiency {full:g}"
    allowed = ", ".join(promise.allowed_causes) or "none"
    said = f"{share:.0%} of the loss is due to allowed_causes ({allowed})"
    if row.efficiency >= full or share < promise.explained_fraction:
        return full, source if row.efficiency >= full else f"{source}; {said}"
    return least, f"{_KEY}.explained_from {least:g}, as {said}"


def _open(one: Judged, spec: Spec, promise: ScalingCriterion) -> str:
    """Why what was measured is no answer; "" where it is one."""
    row = one.row
    if not row.known(promise.at_most_uncertainty, one.bound):
        return (
            f"known to ± {row.uncertainty:.3f} only, at_most_uncertainty is "
            f"{promise.at_most_uncertainty:g}: steps differ too much"
        )
    may_be_excused = promise.explained_from <= row.efficiency < one.bound
    on_the_fabric = all(cause.kind != NETWORK for cause in one.causes)
    if one.lane is None and may_be_excused and on_the_fabric:
        return f"what the fabric allows over {nodes(row.count)} was not measured"
    starved_s = one.starved_s or 0.0
    if spec.emulated and row.efficiency < one.bound and one.diffuse and starved_s > row.lost_s / 2:
        return (
            f"nodes share this machine's processors, and the threads of a rank had none for "
            f"{starved_s * 1e3:.0f} ms of a step, of which {row.lost_s * 1e3:.0f} ms are lost with "
            f"nobody to blame"
        )
    return ""


def _starved_s(facts: Facts, count: int) -> float | None:
    told = [
        of_rank / len(one.steps[0])
        for one in facts.over(count)
        for of_rank in one.starved_s
        if of_rank is not None
    ]
    return sorted(told)[len(told) // 2] if told else None

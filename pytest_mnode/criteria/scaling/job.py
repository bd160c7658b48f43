"""Starts a scaling job from the controller, waits for it, and judges it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_mnode.criteria.scaling.judge import ScalingResult, judge
from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.criteria.scaling.timings import JobTimings
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import MnodeError, UsageError
from pytest_mnode.spec import Spec
from pytest_mnode.spec.scaling import ScalingCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.rank.world import World

_START_S = 60.0
"""Time to start and to end the ranks, in addition to the job's own limit."""


def run_job(cluster: Cluster, spec: Spec, *, budget_s: float) -> ScalingResult:
    """Run the job on all nodes of a test and judge it; search for slow links.

    budget_s: of that search, which runs only if the fabric is the largest cause. Raises UsageError
    if there is nothing to scale to, TimeLimitError if the job does not end, WorldError with the
    job's last output if it fails.
    """
    promise = spec.criteria.scaling
    assert promise is not None
    per_node = cluster.procs_per_node
    plan = Plan(tuple(cluster.nodes), per_node, spec.accelerators.per_node, promise)
    if plan.unequal:
        raise UsageError(
            f"criteria.scaling.samples_per_rank {promise.samples_per_rank} on "
            f"{len(plan.nodes)} nodes × {per_node} ranks cannot be shared out evenly over "
            f"{', '.join(map(str, plan.unequal))} nodes; give a multiple of them"
        )
    with cluster.world(fresh=True) as world:
        [timings, *_] = world.run(_train, plan, timeout=promise.within_s + _START_S, group=True)
    found = judge(timings, spec, promise)
    if found.falls_short_by_fabric:
        found = replace(found, slow_links=_slow_links(cluster, spec, promise, budget_s))
    return found


def _train(plan: Plan, *, world: World) -> JobTimings | None:
    """In ranks: run the whole job."""
    from pytest_mnode.criteria.scaling.program import train

    return train(plan, world)


def _slow_links(
    cluster: Cluster, spec: Spec, promise: ScalingCriterion, budget_s: float
) -> Culprit:
    """Slow links between pairs of nodes, or why they could not be located."""
    mbits_s = promise.fabric_fraction * spec.fabric.line_rate_mbits_s
    timeout = budget_s + 60.0
    try:
        with cluster.world() as world:
            every = world.run(_locate, spec, mbits_s, budget_s, timeout=timeout, group=True)
            return Culprit.of(every[0])
    except MnodeError as error:
        return Culprit(f"not located: {str(error).partition(chr(10))[0]}")


def _locate(spec: Spec, slow_below_mbits_s: float, budget_s: float, *, world: World) -> Culprit:
    """In ranks: the slow links."""
    from pytest_mnode.measuring.locating.locate import find_slow_links
    from pytest_mnode.reference_job.config import device_for
    from pytest_mnode.reference_job.device import device_of

    device = device_of(device_for(spec.accelerators.per_node), world.local_rank)
    links = find_slow_links(world, spec, (), slow_below_mbits_s, device, budget_s=budget_s)
    return links.summary

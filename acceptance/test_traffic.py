"""Does the fabric carry the traffic of today's jobs?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode import not_promised
from pytest_mnode.checks import groups
from pytest_mnode.criteria import traffic
from pytest_mnode.criteria.nics_used import judge_nics, partly
from pytest_mnode.measuring import lanes, limits
from pytest_mnode.skipping import promised
from pytest_mnode.spec.checks import GroupsCriterion

if TYPE_CHECKING:
    import torch

    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion
needs_group = pytest.mark.usefixtures("process_group")
at_once = pytest.mark.mnode(
    timeout=limits.traffic_limit_s,
    still=limits.still_limit_s,
    unequal_calls="allow",  # lanes run in threads, in any order
)


@needs_group
@pytest.mark.stops("traffic", only_hung=True)
@at_once
def test_tokens_reach_their_experts_in_time(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Do dispatch and combine of small, skewed messages take no longer than promised?"""
    promise = promised(spec, "traffic.experts")
    if len(world.nodes) < 2:
        pytest.skip("experts of one node need no network; give --mnode-nodes=2 or more")
    most = promised(spec, "traffic").most_paths
    found = lanes.experts(world, spec, promise, device, most)
    measure.record(traffic.judge_experts(found, promise, world))
    measure.record(judge_nics(found.sent, spec, world.local_size, "tokens", partly(spec)))


@needs_group
@pytest.mark.stops("traffic", only_hung=True)
@at_once
def test_groups_of_all_dimensions_run_at_once(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Do data, tensor, pipeline and expert parallel groups reach their rates, alone and at once?"""
    promise = promised(spec, "traffic.parallel")
    layout = groups.layouts(spec.criteria.groups or GroupsCriterion(), world)[-1]
    size = lanes.message_bytes(spec, world, promise.size_bytes)
    if len(every := lanes.lanes_of(layout, size)) < 2:
        not_promised(f"groups at once: {layout} has one dimension of several ranks")
    found = lanes.at_once(
        str(layout),
        every,
        spec,
        world,
        device,
        rounds=promise.rounds,
        least=promise.at_least_fraction or 0.0,
        least_together=promise.together_at_least_fraction or 0.0,
        most_paths=promised(spec, "traffic").most_paths,
    )
    measure.record(traffic.judge_parallel(found, promise, world))
    why = lanes.some_nics(every, world.local_size) or partly(spec)
    measure.record(judge_nics(found.sent, spec, world.local_size, found.title, why))
    measure.chart(traffic.chart(found))


@needs_group
@pytest.mark.stops("traffic", only_hung=True)
@at_once
def test_two_jobs_leave_each_other_their_rates(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does each of two jobs side by side lose no more of its rate than promised?"""
    promise = promised(spec, "traffic.jobs")
    size = lanes.message_bytes(spec, world, promise.size_bytes)
    if not (every := lanes.job_lanes(world, promise, size)):
        pytest.skip("two jobs have two nodes each at least; give --mnode-nodes=4")
    found = lanes.at_once("two jobs", every, spec, world, device, rounds=promise.rounds)
    measure.record(traffic.judge_jobs(found, promise, world))
    measure.record(judge_nics(found.sent, spec, world.local_size, found.title, partly(spec)))
    measure.chart(traffic.chart(found))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure)

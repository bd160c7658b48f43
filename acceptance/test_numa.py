"""Do ranks run, allocate and send beside their accelerators?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode import measuring as bench
from pytest_mnode.criteria.placement.copies import copies_table, judge_copies
from pytest_mnode.criteria.placement.rank_placement import Question

if TYPE_CHECKING:
    import torch

    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

pytestmark = [pytest.mark.criterion, pytest.mark.stops("numa", only_hung=True)]
needs_group = pytest.mark.usefixtures("process_group")


@needs_group
def test_ranks_run_beside_their_accelerator(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does every thread of every rank run only on CPUs beside the rank's accelerator?"""
    found = bench.placement(Question.CPUS, world, device, spec)
    print(found.table())
    measure.chart(found.map)
    measure.record(found.over_ranks)


@needs_group
def test_memory_is_beside_the_accelerator(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Is the memory of every rank beside its accelerator?"""
    found = bench.placement(Question.MEMORY, world, device, spec)
    print(found.table())
    measure.record(found.over_ranks)


@needs_group
def test_ranks_send_over_the_nearest_nic(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does every rank send over the NIC that is nearest to its accelerator?"""
    found = bench.placement(Question.NIC, world, device, spec)
    print(found.table())
    measure.chart(found.map)
    measure.record(found.over_ranks)


@needs_group
def test_ranks_have_cores_of_their_own(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does every rank of a node have cores that no other rank may use?"""
    found = bench.placement(Question.CORES, world, device, spec)
    print(found.table())
    measure.record(found.over_ranks)


@needs_group
def test_near_memory_is_faster_than_far(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Is memory beside the accelerator faster than memory far from it?"""
    rates = bench.near_and_far(world, device, spec)
    print(copies_table(rates))
    measure.record(judge_copies(rates, spec))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    measure.record(fabric_ports.measurements())

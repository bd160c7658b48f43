"""Is every rank as fast by itself as the others?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode import measuring as bench
from pytest_mnode.criteria import devices
from pytest_mnode.measuring import limits
from pytest_mnode.skipping import promised

if TYPE_CHECKING:
    import torch

    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

pytestmark = [pytest.mark.criterion, pytest.mark.stops("devices", only_hung=True)]
needs_group = pytest.mark.usefixtures("process_group")
takes_as_long_as_promised = pytest.mark.mnode(timeout=limits.devices_limit_s)


@needs_group
def test_every_rank_multiplies_as_fast_as_the_others(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Are every rank's matrix products correct, and as fast as the others'?"""
    promise = promised(spec, "devices.matmul")
    size, family = min(promise.size, devices.LARGEST_CHECKED), devices.comparisons(spec)
    for dtype in promise.dtypes:
        wrong = bench.wrong_products(size, dtype, world, device)
        measure.record(devices.judge_products(dtype, size, wrong))
        found = bench.compare_matmul(promise, dtype, world, device, comparisons=family)
        print(found.table())
        measure.record(devices.judge_rates(found))


@needs_group
@takes_as_long_as_promised
def test_every_rank_computes_the_same_training_steps(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Do all ranks compute bit-identical training steps, and if not, which ranks differ?"""
    promise = promised(spec, "devices.training_step")
    measure.record(devices.judge_steps(*bench.repeated_steps(promise, world, device)))


@needs_group
@takes_as_long_as_promised
def test_every_rank_computes_the_same_products(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Are thousands of matrix products bit-identical on all ranks, and if not, which differ?"""
    promise = promised(spec, "devices.repeated_products")
    for dtype in promise.dtypes:
        found = bench.compare_products(promise, dtype, world, device)
        measure.record(devices.judge_repeated(found))


@needs_group
@takes_as_long_as_promised
def test_all_memory_reads_as_it_was_written(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does every word of each accelerator's memory read as it was written?"""
    promise = promised(spec, "devices.memory_test")
    found = bench.check_memory(promise, world, device)
    measure.record(devices.judge_memory(found, promise))


@needs_group
@takes_as_long_as_promised
def test_devices_stay_cool_and_fast_under_load(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Is every device as cool and as fast as promised at the end of a load?"""
    promise = promised(spec, "devices.under_load")
    found = bench.devices_under_load(promise, world, device)
    measure.record(devices.judge_load(found, promise, devices.comparisons(spec)))


@needs_group
def test_memory_of_every_numa_node_is_as_fast_as_the_others(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Is the host memory of every NUMA node as fast as the others', with all its cores at work?"""
    promise = promised(spec, "devices.host_memory")
    family = devices.comparisons(spec)
    found = bench.compare_host_memory(promise, world, device, comparisons=family)
    print(found.table())
    measure.record(devices.judge_rates(found))


@needs_group
def test_every_node_is_as_fast_inside_as_the_others(
    world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Are exchanges inside every node as fast as the others', and as its links allow?"""
    promise = promised(spec, "devices.inside_node")
    family = devices.comparisons(spec)
    for found in bench.compare_inside_nodes(promise, spec, world, device, comparisons=family):
        print(found.table())
        measure.record(devices.judge_rates(found))


@needs_group
@pytest.mark.parametrize("kind", ["memory_copy", "device_copy", "host_to_device", "device_to_host"])
def test_every_rank_copies_as_fast_as_the_others(
    kind: str, world: World, device: torch.device, spec: Spec, measure: Measure
) -> None:
    """Does every rank copy as fast as the others?"""
    promise = promised(spec, f"devices.{kind}")
    family = devices.comparisons(spec)
    found = bench.compare_copy(kind, promise, world, device, comparisons=family)
    print(found.table())
    measure.record(devices.judge_rates(found))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    measure.record(fabric_ports.measurements())

"""Node software: does every sample reach one rank, once, and with the right weight?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_mnode import not_promised
from pytest_mnode.checks import data
from pytest_mnode.skipping import promised
from pytest_mnode.spec.checks import DataCriterion

if TYPE_CHECKING:
    import torch

    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

if "torch" in sys.modules:  # in the fork server, but not in the controller
    import torch._dynamo  # DDP imports it, which takes each rank more than a second

    import pytest_mnode.checks.data.checks  # noqa: F401  once for all ranks

pytestmark = [
    pytest.mark.criterion,
    pytest.mark.stops("data", only_hung=True),
    pytest.mark.mnode(min_procs_per_node=2),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on few cores
]
needs_group = pytest.mark.usefixtures("process_group")


@pytest.fixture
def promise(spec: Spec) -> DataCriterion:
    """The promise of the data criterion."""
    return promised(spec, "data")  # type: ignore[no-any-return]


@needs_group
@pytest.mark.parametrize("how", ["padded", "dropped", "by workers"])
def test_every_sample_reaches_one_rank(
    how: str, world: World, promise: DataCriterion, measure: Measure
) -> None:
    """Node software: does every sample reach one rank once, with shards padded or cut to size?"""
    workers = promise.workers if how == "by workers" else 0
    if how == "by workers" and not workers:
        not_promised("workers of a DataLoader", key="data.workers")
    measure.record(data.checks.shards(promise, world, drop_last=how == "dropped", workers=workers))


@needs_group
def test_each_epoch_has_an_order_of_its_own(
    world: World, promise: DataCriterion, measure: Measure
) -> None:
    """Node software: has each epoch the same order of its own on every node?"""
    measure.record(data.checks.orders(promise, world))


@needs_group
def test_an_epoch_goes_on_where_it_was_cut(
    world: World, promise: DataCriterion, measure: Measure
) -> None:
    """Node software: does a resumed run, on all ranks or fewer, read each remaining sample once?"""
    for ranks in data.checks.ranks_that_go_on(world):
        measure.record(data.checks.resumed(promise, world, ranks))


@needs_group
def test_optimiser_sees_the_global_batch(
    world: World, device: torch.device, promise: DataCriterion, measure: Measure
) -> None:
    """Node software: does each optimiser step take local batch × ranks × accumulation samples?"""
    measure.record(data.checks.global_batch(promise, world, device))


@needs_group
@pytest.mark.usefixtures("promise")
def test_metrics_are_reduced_exactly(world: World, device: torch.device, measure: Measure) -> None:
    """Node software: is a sum of counts over all ranks exact, beyond 2^53?"""
    measure.record(data.checks.metrics(world, device))


def test_seeds_differ_by_rank_and_come_again(
    cluster: Cluster, spec: Spec, promise: DataCriterion, measure: Measure
) -> None:
    """Node software: does one seed draw the same numbers on every node, and in a second run?"""
    on_accelerator = spec.accelerators.per_node > 0
    measure.record(
        data.one_seed_of_two_runs(cluster, workers=promise.workers, on_accelerator=on_accelerator)
    )


@needs_group
def test_all_ranks_read_the_same_files(
    world: World, spec: Spec, promise: DataCriterion, measure: Measure
) -> None:
    """Node software: does every rank read the same files of the data set, with the same content?"""
    measure.record(data.checks.files(promise, promised(spec, "storage.datasets"), world))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure)

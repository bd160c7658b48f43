"""Questions that only torch or code of this package can answer wrongly. Run by test_in_ranks.py.

No fault of a cluster turns them red, so that no certificate has them.
"""
# Written like a user's test, without types.
# mypy: ignore-errors

from __future__ import annotations

import itertools

import pytest
import torch
import torch._dynamo  # otherwise DDP would import it in each rank
from torch.utils.data import DataLoader

from pytest_mnode.checks import data
from pytest_mnode.checks.data import checks
from pytest_mnode.checks.data.digests import SEED
from pytest_mnode.reference_job.data import ResumableSampler
from pytest_mnode.spec.checks import DataCriterion

pytestmark = [
    pytest.mark.criterion,
    pytest.mark.mnode(min_procs_per_node=2),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]
needs_group = pytest.mark.usefixtures("process_group")
PROMISE = DataCriterion.model_validate({})


def epochs(world):
    loader, sampler = data.sharded(
        checks.samples_of(PROMISE, world), world, batch=PROMISE.batch, seed=SEED
    )

    def begin(epoch):
        sampler.set_epoch(epoch)
        return loader

    return data.read_epochs(begin, 3, world, sampler=sampler)


@needs_group
def test_shards_are_equal_and_inside(world, measure):
    samples = checks.samples_of(PROMISE, world)
    padding = data.padding_of(samples, world.size)
    for epoch, readings in enumerate(epochs(world)):
        measure.record(data.judge_shards(f"epoch {epoch}", readings, samples, padding=padding))


@needs_group
def test_each_epoch_has_an_order_of_its_own(world, measure):
    first, again = epochs(world), epochs(world)
    measure.record(data.judge_orders("3 epochs", first))
    measure.record(data.judge_again(f"epoch {i} begun again", first[i], again[i]) for i in range(3))


@needs_group
def test_an_epoch_goes_on_where_it_was_cut(world, measure):
    samples = PROMISE.samples_per_rank * world.size
    position = samples // 2 // world.size * world.size  # all ranks had equally many

    def batches(ranks, batch, position=0):
        indices = data.Indices(samples)
        sampler = ResumableSampler(indices, ranks, world.rank, seed=SEED)
        sampler.go_to(1, position)
        return DataLoader(indices, batch, sampler=sampler)

    for ranks in checks.ranks_that_go_on(world):
        whole = data.read(batches(world.size, PROMISE.batch), world, epoch=1)
        part = itertools.islice(batches(world.size, 1), position // world.size)
        before = data.read(part, world, epoch=1)
        rest = batches(ranks, PROMISE.batch, position) if world.rank < ranks else []
        after = data.read(rest, world, epoch=1)[:ranks]
        label = f"cut at sample {position}, {ranks} ranks go on"
        measure.record(data.judge_resumed(label, whole, before, after))


@needs_group
def test_all_ranks_step_together(world, device, measure):
    loader, _ = data.sharded(64 * world.size, world, batch=8, seed=SEED)
    ledger = data.Ledger(64 * world.size, device)
    model = torch.nn.parallel.DistributedDataParallel(ledger)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ledger.watch(optimizer)
    checks.train(model, optimizer, loader, accumulation=2)
    measure.record(ledger.global_batch(world, local=8, accumulation=2))


@needs_group
def test_means_are_exact(world, device, measure):
    mine = range(world.rank, checks.samples_of(PROMISE, world), world.size)
    mine = mine[: len(mine) - 8 * world.rank]
    losses = [1.0 + (index * 7919 % 1009) / 1009 + world.rank for index in mine]
    measure.record(data.mean("loss", losses, data.mean_over_ranks(losses, device), world))


def test_seeds_differ_by_rank_and_come_again(cluster, measure):
    measure.record(data.seeds_of_two_runs(cluster, workers=2, on_accelerator=False))

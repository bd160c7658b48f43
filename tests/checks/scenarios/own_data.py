"""A test's own sampler, loop and metrics, checked in ranks. Run by test_in_ranks.py."""
# Written like a user's test, without types.
# mypy: ignore-errors

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch._dynamo  # otherwise DDP would import it in each rank
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler

from pytest_mnode.checks import data
from pytest_mnode.rank.world import World

pytestmark = [
    pytest.mark.mnode(nodes=2, min_procs_per_node=2),
    pytest.mark.usefixtures("process_group"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Blocks(Sampler):
    """A block of the data set for each rank, shuffled within the block."""

    def __init__(self, samples: Any, world: World) -> None:
        self.each, self.rank, self.epoch = samples // world.size, world.rank, 0

    def __len__(self) -> Any:
        return self.each

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.each, generator=generator)
        return iter((order + self.rank * self.each).tolist())


def test_a_sampler_of_ones_own(world: World) -> None:
    sampler = Blocks(40, world)
    read = data.read(sampler, world)
    assert all(found.passed for found in data.judge_shards("blocks", read, 40))
    missing, *_ = data.judge_shards("blocks", data.read(sampler, world), 42)
    assert missing.value == 2

    def begin(epoch: Any) -> Any:
        return sampler  # forgot sampler.epoch = epoch

    again, _ = data.judge_orders("blocks", data.read_epochs(begin, 2, world))
    assert again.culprit.startswith("all 4 ranks: epoch 1 in the order of epoch 0: ")


def test_batches_of_ones_own_form(world: World) -> None:
    loader = DataLoader(
        [{"index": i, "x": 0.5} for i in range(40)], 4, num_workers=2, sampler=Blocks(40, world)
    )
    read = data.read(loader, world, indices=lambda batch: batch["index"].tolist())
    assert all(found.passed for found in data.judge_shards("dicts", read, 40))


def loop(
    ledger: Any, loader: Any, accumulation: Any, optimizer: Any, sync_all: Any = False
) -> None:
    model = DistributedDataParallel(ledger)
    for number, batch in enumerate(loader, 1):
        last = number % accumulation == 0
        with contextlib.nullcontext() if last or sync_all else model.no_sync():
            (model(batch).mean() / accumulation).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1)]
)
@pytest.mark.parametrize("sync_all", [False, True])
def test_a_loop_of_ones_own(world: World, device: torch.device, make: Any, sync_all: Any) -> None:
    loader, _ = data.sharded(4 * 3 * 2 * 2 * world.size, world, batch=3)
    ledger = data.Ledger(len(loader.dataset), device)
    optimizer = make(ledger.parameters())
    ledger.watch(optimizer)
    loop(ledger, loader, 2, optimizer, sync_all)
    batch = ledger.global_batch(world, local=3, accumulation=2)
    assert all(one.passed for one in batch), batch
    assert batch[0].value == 24


def test_a_rank_that_skips_a_micro_batch(world: World, device: torch.device) -> None:
    loader, _ = data.sharded(2 * 3 * 2 * world.size, world, batch=3)
    ledger = data.Ledger(len(loader.dataset), device)
    optimizer = torch.optim.SGD(ledger.parameters(), lr=0.1)
    ledger.watch(optimizer)
    model = DistributedDataParallel(ledger)
    for number, batch in enumerate(loader, 1):
        if number % 2 and world.rank == 1:
            continue  # as after a loss that is not finite
        with contextlib.nullcontext() if number % 2 == 0 else model.no_sync():
            (model(batch).mean() / 2).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    batch, *_ = ledger.global_batch(world, local=3, accumulation=2)
    assert (batch.value, batch.expected.limit) == (21, 24)
    assert "rank 1 on node0: 21 samples in a step, expected 24; 3 computed by this rank" in (
        batch.culprit
    )


def test_zero_grad_forgotten(world: World, device: torch.device) -> None:
    loader, _ = data.sharded(2 * 3 * 2 * world.size, world, batch=3)
    ledger = data.Ledger(len(loader.dataset), device)
    optimizer = torch.optim.SGD(ledger.parameters(), lr=0.1)
    optimizer.zero_grad = lambda: None
    ledger.watch(optimizer)
    loop(ledger, loader, 2, optimizer)
    batch, *_ = ledger.global_batch(world, local=3, accumulation=2)
    assert (batch.value, batch.expected.limit) == (48, 24)
    assert batch.culprit == (
        "all 4 ranks: 48 samples in a step, expected 24; "
        "gradients of earlier steps are in it: zero_grad"
    )


def test_metrics(world: World, device: torch.device) -> None:
    values = [float(i) for i in range(world.rank + 1)]
    assert data.mean("loss", values, data.mean_over_ranks(values, device), world).passed
    assert data.mean_over_ranks([], device) is None
    assert data.count("n", world.rank, data.sum_over_ranks(world.rank, device), world).passed
    only_mine = data.mean("loss", values, sum(values) / len(values), world)
    assert only_mine.value >= 3


def test_draws(world: World, device: torch.device) -> None:
    import random

    import numpy

    from pytest_mnode.measuring.ranks import gathered

    random.seed(world.rank)
    numpy.random.seed(world.rank)
    torch.manual_seed(3)  # forgot the rank
    state = torch.get_rng_state()
    draws = gathered(data.draw(world, device, workers=2))
    assert torch.equal(state, torch.get_rng_state())
    assert len(draws[0].digests) == 4 * 3
    found = data.judge_distinct("", draws)
    assert found.culprit.startswith("all 4 ranks: the same from torch, dropout; ")

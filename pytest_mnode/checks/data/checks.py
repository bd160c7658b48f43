"""The certificate's data checks of torch's own sampler, loader and optimiser.

All ranks call these functions.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from pytest_mnode.checks.data.digests import SEED, judge_files, read_files
from pytest_mnode.checks.data.in_ranks import (
    Indices,
    Ledger,
    count,
    mean,
    mean_over_ranks,
    read,
    read_epochs,
    shard_of,
    sharded,
    sum_over_ranks,
)
from pytest_mnode.checks.data.readings import (
    Reading,
    judge_again,
    judge_orders,
    judge_resumed,
    judge_shards,
    padding_of,
    tail_of,
)
from pytest_mnode.checks.groups.layout import smallest_factor
from pytest_mnode.checks.judged import At
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.ranks import gathered
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.data import ResumableSampler
from pytest_mnode.spec.checks import DataCriterion

EPOCHS = 3
STEPS = 3
_MOST = 2**54
"""Makes sums of counts exceed 2^53, where float64 cannot represent every whole number."""


def samples_of(promise: DataCriterion, world: World) -> int:
    """Size of the data set: the promised samples per rank, and some more for uneven shards."""
    return promise.samples_per_rank * world.size + (world.size + 1) // 2


def _epochs(
    promise: DataCriterion, world: World, epochs: int, *, drop_last: bool = False, workers: int = 0
) -> list[tuple[Reading, ...]]:
    """Readings of all ranks in each of these epochs of one loader."""
    loader, sampler = sharded(
        samples_of(promise, world),
        world,
        batch=promise.batch,
        workers=workers,
        drop_last=drop_last,
        seed=SEED,
    )

    def begin(epoch: int) -> Iterable[Any]:
        sampler.set_epoch(epoch)
        return loader

    return read_epochs(begin, epochs, world, sampler=sampler)


def shards(
    promise: DataCriterion, world: World, *, drop_last: bool, workers: int
) -> list[Measurement]:
    """Judge whether every sample is read by one rank, once, in each of two epochs."""
    samples, ranks = samples_of(promise, world), world.size
    found = []
    for epoch, readings in enumerate(
        _epochs(promise, world, 2, drop_last=drop_last, workers=workers)
    ):
        found += judge_shards(
            f"{'drop_last' if drop_last else 'padded'}, {workers} workers, epoch {epoch}",
            readings,
            samples,
            padding=0 if drop_last else padding_of(samples, ranks),
            left_out=tail_of(samples, ranks) if drop_last else 0,
            expected=[
                shard_of(samples, ranks, rank, seed=SEED, epoch=epoch, drop_last=drop_last)
                for rank in range(ranks)
            ],
        )
    return found


def orders(promise: DataCriterion, world: World) -> list[Measurement]:
    """Judge whether each epoch has an order of its own, and the same one when it is begun again."""
    first, again = (_epochs(promise, world, EPOCHS) for _ in range(2))
    return [
        *judge_orders(f"{EPOCHS} epochs", first),
        *(judge_again(f"epoch {i} begun again", first[i], again[i]) for i in range(EPOCHS)),
    ]


def ranks_that_go_on(world: World) -> tuple[int, ...]:
    """Numbers of ranks on which an epoch continues: all, and fewer that share the rest evenly."""
    return tuple(dict.fromkeys((world.size, world.size // smallest_factor(world.size))))


def resumed(promise: DataCriterion, world: World, ranks: int) -> Measurement:
    """Judge whether a sampler that continues an epoch on `ranks` ranks of the world completes it.

    ranks: a divisor of the world's size; ranks from `ranks` on read nothing after the cut.
    """
    samples = promise.samples_per_rank * world.size
    position = samples // 2 // world.size * world.size  # all ranks had equally many

    def batches(ranks: int, batch: int, position: int = 0) -> Iterable[Any]:
        indices: Any = Indices(samples)
        sampler = ResumableSampler(indices, ranks, world.rank, seed=SEED)
        sampler.go_to(1, position)
        return DataLoader(indices, batch, sampler=sampler)

    whole = read(batches(world.size, promise.batch), world, epoch=1)
    part = itertools.islice(batches(world.size, 1), position // world.size)
    before = read(part, world, epoch=1)
    rest = batches(ranks, promise.batch, position) if world.rank < ranks else []
    after = read(rest, world, epoch=1)[:ranks]
    return judge_resumed(f"cut at sample {position}, {ranks} ranks go on", whole, before, after)


def global_batch(promise: DataCriterion, world: World, device: torch.device) -> list[Measurement]:
    """Judge the optimiser's steps in a loop with micro-batches under DDP."""
    samples = promise.batch * promise.accumulation * STEPS * world.size
    loader, sampler = sharded(samples, world, batch=promise.batch, seed=SEED)
    sampler.set_epoch(0)
    ledger = Ledger(samples, device)
    model = DistributedDataParallel(ledger, [device] if device.type != "cpu" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ledger.watch(optimizer)
    train(model, optimizer, loader, promise.accumulation)
    return ledger.global_batch(world, local=promise.batch, accumulation=promise.accumulation)


def train(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    accumulation: int,
) -> None:
    """Train an epoch; gradients accumulate over micro-batches and are reduced with the last."""
    for number, batch in enumerate(loader, 1):
        last = number % accumulation == 0
        with contextlib.nullcontext() if last else model.no_sync():
            (model(batch).mean() / accumulation).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def metrics(promise: DataCriterion, world: World, device: torch.device) -> list[Measurement]:
    """Judge whether a mean over uneven batches and a sum of large counts are exact."""
    samples = samples_of(promise, world)
    mine = list(range(world.rank, samples, world.size))
    mine = mine[: len(mine) - world.rank * promise.samples_per_rank // (2 * world.size)]
    losses = [1.0 + (index * 7919 % 1009) / 1009 + world.rank for index in mine]
    # Even counts, and one more on rank 0: float64 cannot represent their odd sum.
    large = 2 * (_MOST // world.size // 2 + world.rank) + int(world.rank == 0)
    return [
        mean("loss", losses, mean_over_ranks(losses, device), world),
        count("samples", len(mine), sum_over_ranks(len(mine), device), world),
        count("tokens", large, sum_over_ranks(large, device), world),
    ]


def files(promise: DataCriterion, path: str, world: World) -> list[Measurement]:
    """Judge whether every rank reads the same heads of the first files below a path."""
    at = At(world.rank, world.node)
    read_here = read_files(at, path, promise.sample_files, promise.sample_size_bytes)
    return judge_files(path, gathered(read_here))

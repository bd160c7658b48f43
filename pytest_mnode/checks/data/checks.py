"""What the certificate asks about data: samples, order, gradients, sums and files on all nodes.

A fault of a cluster turns each finding red: a node with another version of torch, that shuffles
otherwise; storage that shows a node other files; a network or a library that changes sums. What
only torch or a job's own code can do wrong is left to tests. All ranks call these functions.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from pytest_mnode.checks.data.digests import SEED, Digests, judge_alike, judge_files, read_files
from pytest_mnode.checks.data.in_ranks import (
    Indices,
    Ledger,
    count,
    read,
    read_epochs,
    shard_of,
    sharded,
    sum_over_ranks,
    worker_socket_error,
)
from pytest_mnode.checks.data.readings import (
    Reading,
    judge_resumed,
    judge_shards,
    judge_sockets,
    padding_of,
    tail_of,
)
from pytest_mnode.checks.groups.judge import smallest_factor
from pytest_mnode.checks.judged import At, unlike_most
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.ranks import gathered
from pytest_mnode.rank.world import World
from pytest_mnode.spec.checks import DataCriterion

EPOCHS = 3
STEPS = 3
_MOST = 2**54
"""Makes sums of counts exceed 2^53, where float64 cannot represent every whole number."""


def samples_of(promise: DataCriterion, world: World) -> int:
    """Size of the data set: the promised samples per rank, and some more for uneven shards."""
    return promise.samples_per_rank * world.size + (world.size + 1) // 2


def shards(
    promise: DataCriterion, world: World, *, drop_last: bool, workers: int
) -> list[Measurement]:
    """Judge whether every sample is read by one rank, once, in each of two epochs."""
    samples, ranks = samples_of(promise, world), world.size
    if workers:
        errors = gathered((At(world.rank, world.node), worker_socket_error()))
        if not (sockets := judge_sockets(f"{workers} workers", errors)).passed:
            return [sockets]
    loader, sampler = sharded(
        samples, world, batch=promise.batch, workers=workers, drop_last=drop_last, seed=SEED
    )

    def begin(epoch: int) -> Iterable[Any]:
        sampler.set_epoch(epoch)
        return loader

    found = []
    for epoch, readings in enumerate(read_epochs(begin, 2, world, sampler=sampler)):
        # A rank that shuffles unlike most would take all others for wrong.
        usual = all(at.rank != world.rank for at, *_ in unlike_most(_orders(samples, epoch, world)))
        # How many samples a rank reads, and which there are, is arithmetic of the sampler.
        reached, twice, *_ = judge_shards(
            f"{'drop_last' if drop_last else 'padded'}, {workers} workers, epoch {epoch}",
            readings,
            samples,
            padding=0 if drop_last else padding_of(samples, ranks),
            left_out=tail_of(samples, ranks) if drop_last else 0,
            expected=[
                shard_of(samples, ranks, rank, seed=SEED, epoch=epoch, drop_last=drop_last)
                for rank in range(ranks)
            ]
            if usual
            else None,
        )
        found += [reached, twice]
    return found


def order(samples: int, epoch: int) -> list[int]:
    """The order in which this rank would read the whole epoch, as torch on its node shuffles."""
    return shard_of(samples, 1, 0, seed=SEED, epoch=epoch)


def _orders(samples: int, epoch: int, world: World) -> tuple[tuple[At, str], ...]:
    """A digest of every rank's order of an epoch."""
    digest = hashlib.sha256(repr(order(samples, epoch)).encode()).hexdigest()[:16]
    return gathered((At(world.rank, world.node), digest))


def orders(promise: DataCriterion, world: World) -> Measurement:
    """Judge whether all ranks shuffle each epoch alike, of which each then reads its share."""
    samples = samples_of(promise, world)
    by_epoch = [dict(_orders(samples, epoch, world)) for epoch in range(EPOCHS)]
    return judge_alike(
        f"{EPOCHS} epochs: orders unlike those of most ranks",
        [
            Digests(at, {f"epoch {epoch}": of[at] for epoch, of in enumerate(by_epoch)})
            for at in by_epoch[0]
        ],
        "one seed and epoch give the same order on every node",
        "shuffles",
    )


def ranks_that_go_on(world: World) -> tuple[int, ...]:
    """Numbers of ranks on which an epoch continues: all, and fewer that share the rest evenly."""
    return tuple(dict.fromkeys((world.size, world.size // smallest_factor(world.size))))


def resumed(promise: DataCriterion, world: World, ranks: int) -> Measurement:
    """Judge whether `ranks` ranks of the world that continue an epoch complete it.

    Each takes its share of what is left in the order that it shuffles itself. ranks: a divisor of
    the world's size; ranks from `ranks` on read nothing after the cut.
    """
    samples = promise.samples_per_rank * world.size
    position = samples // 2 // world.size * world.size  # all ranks had equally many
    indices, mine = Indices(samples), order(samples, epoch=1)

    def batches(part: Sequence[int], ranks: int) -> Iterable[Any]:
        share = part[world.rank :: ranks] if world.rank < ranks else []
        return DataLoader(indices, promise.batch, sampler=share) if share else []

    whole = [Reading(At(world.rank, world.node), 1, tuple(range(samples)))]
    before = read(batches(mine[:position], world.size), world, epoch=1)
    after = read(batches(mine[position:], ranks), world, epoch=1)[:ranks]
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
    # The number of steps is this loop's own; the rest is what gradients of all ranks add up to.
    samples_seen, _, *weights = ledger.global_batch(
        world, local=promise.batch, accumulation=promise.accumulation
    )
    return [samples_seen, *weights]


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


def metrics(world: World, device: torch.device) -> Measurement:
    """Judge whether a sum of large counts over ranks is exact, in whatever adds it up."""
    # Even counts, and one more on rank 0: float64 cannot represent their odd sum.
    large = 2 * (_MOST // world.size // 2 + world.rank) + int(world.rank == 0)
    return count("tokens", large, sum_over_ranks(large, device), world)


def files(promise: DataCriterion, path: str, world: World) -> list[Measurement]:
    """Judge whether every rank reads the same heads of the first files below a path."""
    at = At(world.rank, world.node)
    read_here = read_files(at, path, promise.sample_files, promise.sample_size_bytes)
    return judge_files(path, gathered(read_here))

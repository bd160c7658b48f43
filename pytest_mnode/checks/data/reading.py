"""What ranks read: loaders over the indices of a data set, gone through and gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from pytest_mnode.checks.data.facts import At, Reading, SamplerFacts
from pytest_mnode.measuring.agree import gathered
from pytest_mnode.rank.world import World


class Indices(Dataset[int]):
    """A data set whose samples are their own indices, 0 … size-1."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def sharded(
    samples: int,
    world: World,
    *,
    batch: int,
    workers: int = 0,
    drop_last: bool = False,
    seed: int = 0,
) -> tuple[DataLoader[Any], DistributedSampler[int]]:
    """A loader of indices, by torch's DistributedSampler over the ranks of a world."""
    indices = Indices(samples)
    sampler: DistributedSampler[int] = DistributedSampler(
        indices, world.size, world.rank, shuffle=True, seed=seed, drop_last=drop_last
    )
    return DataLoader(indices, batch, sampler=sampler, num_workers=workers), sampler


def shard_of(
    samples: int, ranks: int, rank: int, *, seed: int = 0, epoch: int = 0, drop_last: bool = False
) -> list[int]:
    """What DistributedSampler gives a rank: every `ranks`-th sample of a permutation.

    The permutation is torch's for seed + epoch, cut or repeated from its beginning to equal shards.
    """
    generator = torch.Generator().manual_seed(seed + epoch)
    order: list[int] = torch.randperm(samples, generator=generator).tolist()
    if drop_last:
        order = order[: samples - samples % ranks]
    else:
        length = samples + -samples % ranks
        order = (order * (length // max(1, samples) + 1))[:length]
    return order[rank::ranks]


def read(
    batches: Iterable[Any],
    world: World,
    *,
    epoch: int = 0,
    sampler: object = None,
    indices: Callable[[Any], Iterable[int]] = torch.Tensor.tolist,
) -> tuple[Reading, ...]:
    """Go through the batches of an epoch on every rank, and gather what came. All ranks call this.

    batches: a loader, or a sampler's own indices. indices: the data set's indices in one batch; a
    batch that is one index is taken as it is. sampler: asked what rank, seed and epoch it has.
    """
    came: list[int] = []
    for batch in batches:
        came += [batch] if isinstance(batch, int) else [int(i) for i in indices(batch)]
    at = At(world.rank, world.node)
    return gathered(Reading(at, epoch, tuple(came), _facts(sampler)))


def read_epochs(
    begin: Callable[[int], Iterable[Any]],
    epochs: int,
    world: World,
    *,
    sampler: object = None,
    indices: Callable[[Any], Iterable[int]] = torch.Tensor.tolist,
) -> list[tuple[Reading, ...]]:
    """Readings of epochs 0, 1, …; `begin` does what a loop does first, and returns the batches."""
    return [
        read(begin(epoch), world, epoch=epoch, sampler=sampler, indices=indices)
        for epoch in range(epochs)
    ]


def _facts(sampler: object) -> SamplerFacts:
    def number(name: str) -> int | None:
        value = getattr(sampler, name, None)
        return value if isinstance(value, int) else None

    return SamplerFacts(number("rank"), number("num_replicas"), number("seed"), number("epoch"))

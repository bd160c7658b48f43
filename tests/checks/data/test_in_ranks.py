"""Indices that torch's sampler gives each rank, in the expected order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from pytest_mnode.checks.data.in_ranks import Indices, read, shard_of
from pytest_mnode.rank.world import World
from pytest_mnode.spec.checks import DataCriterion


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_shards_are_those_of_the_distributed_sampler(
    samples: int, ranks: int, seed: int, epoch: int, drop_last: bool
) -> None:
    for rank in range(ranks):
        sampler: DistributedSampler[int] = DistributedSampler(
            Indices(samples), ranks, rank, seed=seed, drop_last=drop_last
        )
        sampler.set_epoch(epoch)
        expected = shard_of(samples, ranks, rank, seed=seed, epoch=epoch, drop_last=drop_last)
        if not drop_last or samples % ranks == 0 or samples >= ranks:
            assert list(sampler) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 8, 16, 1000])
def test_sample_counts_are_never_divisible(size: int) -> None:
    from pytest_mnode.checks.data.checks import samples_of

    samples = samples_of(
        DataCriterion.model_validate({}), World(0, size, 0, 1, "node0", ("node0",))
    )
    assert samples % size or size == 1


def test_an_order_is_the_whole_epoch_and_another_one_each_time() -> None:
    from pytest_mnode.checks.data.checks import order

    orders = [order(10, epoch) for epoch in range(3)]
    assert all(sorted(one) == list(range(10)) for one in orders)
    assert len({tuple(one) for one in orders}) == 3
    assert order(10, 1) == orders[1]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("pytest_mnode.checks.data.in_ranks.gathered", lambda mine: (mine,))
    return World(0, 1, 0, 1, "node0", ("node0",))


@pytest.mark.parametrize(
    "batches",
    [
        torch.randperm(6),
        np.random.permutation(6),
        BatchSampler(RandomSampler(range(6)), 2, drop_last=False),
        [np.arange(3), np.arange(3, 6)],
        [torch.arange(4), torch.arange(4, 6)],
        range(6),
        [[], [0, 1, 2, 3, 4, 5]],
    ],
    ids=["tensors", "numpy", "lists", "arrays", "batches", "whole", "empty"],
)
def test_indices_are_read_in_any_form(alone: World, batches: Iterable[Any]) -> None:
    [reading] = read(batches, alone)
    assert sorted(reading.indices) == list(range(6))


@pytest.mark.parametrize(
    "batch", [torch.zeros(2, 4), torch.ones(2), [torch.arange(2), torch.ones(2)], [True], ("a",)]
)
def test_what_holds_no_indices_is_refused(alone: World, batch: object) -> None:
    with pytest.raises(TypeError, match="is no list of indices; give indices=, a function that"):
        read([batch], alone)

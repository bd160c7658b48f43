"""Indices that torch's sampler gives each rank, in the expected order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from pytest_mnode.checks.data.in_ranks import Indices, shard_of
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

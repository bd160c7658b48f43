"""Indices that torch's sampler gives each rank, in the expected order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
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
from tests.acceptance.certified import Certified, certify, spec_of


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


SAME = "4 ranks with seed 20: generators that draw the same numbers as another"
OURS = Path(__file__).with_name("ours.py")
# A plugin. Where ranks are forked from, all have the same seed.
FIRST = """
    import sys
    import pytest

    def pytest_collection_finish(session):
        if "torch" in sys.modules:
            from pytest_mnode.reference_job import randomness
            right = randomness.seed_all
            randomness.seed_all = lambda *words: right(words[0])

    @pytest.fixture(autouse=True)
    def one_thing_wrong(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return  # runs in the controller
        world = request.getfixturevalue("world")
        from torch.utils.data import DistributedSampler
        from pytest_mnode.checks.data import in_ranks
        from pytest_mnode.reference_job.data import ResumableSampler
        name = request.node.name
        if "inside" in name and world.rank == 3:
            samples = DistributedSampler.__iter__
            monkeypatch.setattr(
                DistributedSampler, "__iter__", lambda sampler: iter([999, *samples(sampler)])
            )
        elif "order" in name:
            monkeypatch.setattr(DistributedSampler, "set_epoch", lambda sampler, epoch: None)
        elif "goes_on" in name and world.rank == 1:
            monkeypatch.setattr(ResumableSampler, "go_to", lambda sampler, epoch, position:
                sampler.set_epoch(epoch))
        elif "together" in name and world.rank == 1:
            step = in_ranks.Ledger._note
            def twice(ledger, *words):
                step(ledger, *words)
                step(ledger, *words)
            monkeypatch.setattr(in_ranks.Ledger, "_note", twice)
        elif "means" in name:
            import torch
            import torch.distributed as dist
            from pytest_mnode.checks import data
            def of_averages(values, device):
                average = torch.tensor([sum(values) / len(values)], dtype=torch.float64)
                dist.all_reduce(average)
                return float(average) / world.size
            monkeypatch.setattr(in_ranks, "mean_over_ranks", of_averages)
"""
SECOND = """
    import pytest

    @pytest.fixture(autouse=True)
    def one_thing_wrong(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return  # runs in the controller
        world = request.getfixturevalue("world")
        from torch.utils.data import DistributedSampler
        if "order" in request.node.name and world.rank == 2:
            monkeypatch.setattr(DistributedSampler, "set_epoch", lambda sampler, epoch: None)
"""


def _with(directory: Path, fault: str) -> Certified:
    spec = spec_of(directory, criteria={"mesh": {}}, not_promised=[])
    return certify(directory, spec, "--mnode-nodes=2", fault=fault, files=[str(OURS)], cold=False)


@pytest.mark.parametrize(
    ("fault", "culprits"),
    [
        (
            FIRST,
            {
                "epoch 1: ranks with more or fewer samples": "rank 3 on node1 read 66, most ranks",
                "epoch 1: indices outside the data set": "rank 3 on node1 read 999",
                "3 epochs: epochs read in the order of an earlier epoch": "all 4 ranks: epoch 1 in",
                "cut at sample 128, 2 ranks go on: samples lost or read again": "samples ",
                "optimiser: ranks with more or fewer steps": "rank 1 on node0: 8 steps, most",
                "loss: ranks with a wrong mean": "all 4 ranks: the average of the ranks' averages",
                SAME: "all 4 ranks: the same from python, numpy, torch, dropout; ",
            },
        ),
        (
            SECOND,
            {"3 epochs: epochs read in the order of an earlier epoch": "rank 2 on node1: epoch 1"},
        ),
    ],
)
def test_what_is_ours_is_right_or_named(
    tmp_path: Path, fault: str, culprits: dict[str, str]
) -> None:
    failed = _with(tmp_path, fault).failed("ours")
    for name, start in culprits.items():
        assert failed.pop(name).startswith(start)
    if fault == SECOND:  # which leaves all others right
        assert not failed

"""Each sample occurs once per epoch, on any number of ranks, wherever a run is cut."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from pytest_mnode.reference_job import JobConfig
from pytest_mnode.reference_job.data import IGNORED, Documents, ResumableSampler

SAMPLES, BATCH = 48, 8
CONFIG = JobConfig("unused", samples=SAMPLES, vocab=32, context=16, seed=3)
DATA = Documents(CONFIG)


def _samplers(ranks: int, seed: int = 3) -> list[ResumableSampler]:
    return [ResumableSampler(DATA, ranks, rank, seed=seed) for rank in range(ranks)]


def _steps(ranks: int, epoch: int, position: int) -> list[set[int]]:
    """Samples of each global batch from this step on."""
    samplers = _samplers(ranks)
    for sampler in samplers:
        sampler.go_to(epoch, position)
    orders = [list(sampler) for sampler in samplers]
    local = BATCH // ranks
    return [
        {i for order in orders for i in order[begin : begin + local]}
        for begin in range(0, len(orders[0]), local)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_each_sample_occurs_once_per_epoch(ranks: int) -> None:
    steps = _steps(ranks, epoch=0, position=0)
    assert [len(step) for step in steps] == [BATCH] * (SAMPLES // BATCH)
    assert sorted(i for step in steps for i in step) == list(range(SAMPLES))


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("done", [0, 1, 5])
def test_global_batches_do_not_depend_on_the_number_of_ranks(ranks: int, done: int) -> None:
    whole = _steps(4, epoch=2, position=0)
    assert _steps(ranks, epoch=2, position=done * BATCH) == whole[done:]


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    assert len({tuple(map(tuple, _steps(2, epoch, 0))) for epoch in range(3)}) == 3
    [one], [other] = _samplers(1, seed=1), _samplers(1, seed=2)
    assert list(one) != list(other)


def test_a_document_does_not_depend_on_its_reader() -> None:
    again = Documents(CONFIG)
    for index in range(SAMPLES):
        for one, other in zip(DATA[index][1:], again[index][1:], strict=True):
            assert torch.equal(one, other)
    other_seed = Documents(replace(CONFIG, seed=4))
    assert any(not torch.equal(DATA[i][1], other_seed[i][1]) for i in range(SAMPLES))


def test_targets_are_the_next_tokens_up_to_the_document_length() -> None:
    lengths = set()
    for index in range(SAMPLES):
        same, tokens, targets = DATA[index]
        assert same == index
        assert tokens.shape == targets.shape == (16,)
        length = int((targets != IGNORED).sum())
        assert torch.equal(targets[: length - 1], tokens[1:length])
        assert bool((targets[length:] == IGNORED).all())
        assert 8 <= length <= 16
        assert 0 <= int(tokens.min()) <= int(tokens.max()) < 32
        lengths.add(length)
    assert len(lengths) > 4, "with equal lengths a mean of means would be the mean"


@pytest.mark.parametrize(("vocab", "context"), [(2, 2), (2, 3), (300, 2)])
def test_small_data_can_be_read(vocab: int, context: int) -> None:
    for index in range(20):
        _, tokens, targets = Documents(replace(CONFIG, vocab=vocab, context=context))[index]
        assert int(tokens.max()) < vocab
        assert bool((targets != IGNORED).any())


def test_a_slow_reader_is_slow() -> None:
    began = time.monotonic()
    Documents(CONFIG, pause_s=lambda: 0.05)[0]
    assert time.monotonic() - began >= 0.05

"""A feed resumes at its position, and only with the same data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job import JobConfig
from pytest_mnode.reference_job.data import Feed

CONFIG = JobConfig("unused", vocab=16, context=8, samples=24, global_batch=8, accumulation=2)
CPU = torch.device("cpu")


def _step(feed: Feed) -> list[int]:
    found = [int(i) for _ in range(feed.config.accumulation) for i in feed.next()[0]]
    feed.advance()
    return found


def test_epochs_follow_each_other() -> None:
    feed = Feed(CONFIG, 0, 1, CPU)
    epochs = []
    for _ in range(6):
        epochs.append((feed.epoch, tuple(_step(feed))))
    first, second = (sorted(i for e, step in epochs if e == n for i in step) for n in (0, 1))
    assert first == second == list(range(24))
    assert [e for e, _ in epochs] == [0, 0, 0, 1, 1, 1]
    assert epochs[0][1] != epochs[3][1]


@pytest.mark.parametrize("done", [0, 1, 2, 3, 4])
def test_a_feed_resumes_at_its_position(done: int) -> None:
    feed, other = Feed(CONFIG, 1, 2, CPU), Feed(CONFIG, 1, 2, CPU)
    for _ in range(done):
        _step(feed)
    other.load_state_dict(feed.state_dict())
    assert other.epoch == feed.epoch
    assert [_step(other) for _ in range(4)] == [_step(feed) for _ in range(4)]


def test_tokens_are_those_of_the_indices() -> None:
    feed = Feed(CONFIG, 1, 2, CPU)
    indices, tokens, targets = feed.next()
    assert tokens.shape == targets.shape == (2, 8)
    for place, index in enumerate(indices):
        assert torch.equal(tokens[place], feed.data[int(index)][1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed=1: the checkpoint is of a run with seed=0; give the same"),
        ({"samples": 48}, "samples=48: the checkpoint is of a run with samples=24"),
        ({"global_batch": 4}, "global_batch=4: the checkpoint is of a run with global_batch=8"),
    ],
)
def test_other_data_is_refused(change: dict[str, int], message: str) -> None:
    saved = Feed(CONFIG, 0, 2, CPU).state_dict()
    other = Feed(replace(CONFIG, **change), 0, 2, CPU)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        other.load_state_dict(saved)


def test_ranks_that_do_not_divide_the_batch_are_refused() -> None:
    with pytest.raises(UsageError, match="global_batch=8: give a multiple of 3 ranks"):
        Feed(CONFIG, 0, 3, CPU)

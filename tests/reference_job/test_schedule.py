"""The learning rate rises, and then falls to zero."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pytest_mnode.reference_job import JobConfig


def learning_rate_factor(config: JobConfig) -> Callable[[int], float]:
    from pytest_mnode.reference_job import trainer  # takes seconds, in each worker

    return trainer.learning_rate_factor(config)


def test_learning_rate_warms_up_and_decays() -> None:
    factor = learning_rate_factor(JobConfig("unused", steps=25, warmup_steps=5))
    rates = [factor(step) for step in range(26)]
    assert rates[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])
    assert all(one > other for one, other in itertools.pairwise(rates[5:]))
    assert rates[15] == pytest.approx(0.5)
    assert rates[25] == pytest.approx(0)
    assert factor(100) == pytest.approx(0)


@pytest.mark.parametrize("warmup_steps", [0, 10, 20])
def test_any_warm_up_is_a_schedule(warmup_steps: int) -> None:
    factor = learning_rate_factor(JobConfig("unused", steps=10, warmup_steps=warmup_steps))
    assert all(0 < factor(step) <= 1 for step in range(10))

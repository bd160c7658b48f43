"""Random states are saved completely and restored; seeds differ by rank."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from pytest_mnode.reference_job.randomness import (
    digest,
    digest_of,
    random_states,
    seed_all,
    set_random_states,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    before = random_states(CPU)
    yield
    set_random_states(before, CPU)


def _draw() -> tuple[float, ...]:
    normal = random.gauss(0, 1), float(np.random.standard_normal())  # both keep a spare value
    return (*normal, random.random(), float(np.random.rand()), *torch.rand(2).tolist())


def test_states_are_restored() -> None:
    seed_all(1, 2)
    _draw()
    kept = random_states(CPU)
    expected = [_draw() for _ in range(3)]
    assert random_states(CPU) != kept
    set_random_states(kept, CPU)
    assert random_states(CPU) == kept
    assert [_draw() for _ in range(3)] == expected


@pytest.mark.parametrize("source", [random.random, np.random.rand, lambda: torch.rand(1)])
def test_every_source_is_in_the_digest(source: object) -> None:
    before = digest(random_states(CPU))
    assert digest(random_states(CPU)) == before, "a digest draws no numbers"
    assert callable(source)
    source()
    assert digest(random_states(CPU)) != before


def test_seeds_differ_by_every_argument_and_are_repeatable() -> None:
    def first(*words: int) -> tuple[float, ...]:
        seed_all(*words)
        return _draw()

    words = [(0,), (1,), (0, 1), (0, 2), (1, 1), (0, 1, 4), (0, 1, 4, 2)]
    assert len({first(*one) for one in words}) == len(words)
    assert first(0, 1) == first(0, 1)


def test_a_digest_changes_with_one_bit() -> None:
    tensors = [torch.zeros(3, 2), torch.ones(2, dtype=torch.float64), torch.tensor(5.0)]
    before = digest_of(tensors)
    tensors[0][1, 1] = -0.0
    assert digest_of(tensors) != before
    assert digest_of([]) != before

"""Fixtures of the project's tests: a small model, and data that all ranks can compute."""
# Written like a user's project, without types.
# mypy: ignore-errors

import pytest
import torch
from torch import nn


@pytest.fixture
def new_model():
    """Makes the same model in every rank at each call."""

    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    return make


@pytest.fixture
def batch(world):
    """Inputs and targets of all ranks: four rows for each rank."""
    made = torch.Generator().manual_seed(2)
    rows = 4 * world.size
    return torch.randn(rows, 8, generator=made), torch.randn(rows, 4, generator=made)


@pytest.fixture
def own(world, batch):
    """This rank's rows of the batch."""
    return tuple(whole.chunk(world.size)[world.rank] for whole in batch)

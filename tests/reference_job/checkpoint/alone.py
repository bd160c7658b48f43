"""What one rank saves and loads in the tests here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Store

ALONE = World(0, 1, 0, 1, "node0", ("node0",))


def state(value: float) -> dict[str, Any]:
    weights = torch.arange(64.0).reshape(8, 8) + value
    return {"model": {"weight": weights}, "schedule": {"lr": value, "steps": [1, 2]}}


def save(store: Store, *steps: int, **more: Any) -> Path:
    for step in steps:
        saved = store.save(state(step), step=step, world=ALONE, **more)
    return saved.path


def value(loaded: dict[str, Any]) -> float:
    """The one that all of a state agrees on."""
    found = float(loaded["model"]["weight"][0, 0])
    assert torch.equal(loaded["model"]["weight"], state(found)["model"]["weight"])
    assert loaded["schedule"] == {"lr": found, "steps": [1, 2]}
    return found

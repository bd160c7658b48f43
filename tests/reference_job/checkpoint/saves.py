"""States that the scenarios in ranks save and load."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import pytest

from pytest_mnode.errors import CheckpointError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Store

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch
    import torch.distributed as dist

    from pytest_mnode.reference_job.checkpoint.loading import Loaded
    from pytest_mnode.reference_job.checkpoint.saving import Saved

T = TypeVar("T")


def state(value: float, size: int = 100) -> dict[str, Any]:
    """The same on all ranks; eight tensors of 4 * size * size bytes."""
    tensors = {f"w{i}": torch.full((size, size), float(value + i)) for i in range(8)}
    return {"model": tensors, "lr": float(value)}


def save(store: Store, world: World, step: int, size: int = 100, **more: Any) -> Saved:
    """Save the state of a step; its value is the step."""
    return store.save(state(step, size), step=step, world=world, **more)


def load(store: Store, world: World, size: int = 100, **more: Any) -> tuple[Loaded, float]:
    """The loaded checkpoint, and the value that all of its state has."""
    target = state(0, size)
    loaded = store.load(target, world=world, **more)
    assert loaded is not None
    found: float = target["lr"]
    for name, tensor in state(found, size)["model"].items():
        assert torch.equal(target["model"][name], tensor)
    return loaded, found


def on_all(mine: T) -> list[T]:
    """Values of every rank, by rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def refused_on_all(store: Store, world: World, step: int, size: int = 100, **more: Any) -> str:
    """The error of saving, one line, the same on all ranks."""
    with pytest.raises(CheckpointError) as caught:
        save(store, world, step, size, **more)
    text = str(caught.value)
    assert set(on_all(text)) == {text}
    assert "\n" not in text
    return text

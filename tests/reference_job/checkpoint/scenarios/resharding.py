"""Saved by four ranks and loaded by two, and back. Run in ranks of a rack by test_ranks.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import CheckpointError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Store

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch
    import torch._dynamo  # otherwise DDP and optimisers would import it in every rank
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from pytest_mnode.reference_job.checkpoint import (
        loading,  # noqa: F401  imported once, before ranks are forked
        saving,  # noqa: F401
    )

STORES = Path(__file__).parent / "stores"


def built(kind: str, size: int, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Model and optimiser after a step; no number of ranks divides the layers."""
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(torch.nn.Linear(10, 33), torch.nn.Linear(33, 7))
    model: torch.nn.Module = layers
    if kind == "ddp":
        model = DistributedDataParallel(layers)
    else:
        mesh = init_device_mesh("cpu", (size,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 10)).sum().backward()
    optimiser.step()
    optimiser.zero_grad()
    return model, optimiser


def as_state(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimiser_state = get_state_dict(model, optimiser)
    return {"model": model_state, "optimiser": optimiser_state}


def tensors(tree: dict[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    """All tensors of a state, unsharded, by path."""
    found: dict[str, torch.Tensor] = {}
    for key, leaf in tree.items():
        if isinstance(leaf, dict):
            found |= tensors(leaf, f"{prefix}{key}.")
        elif isinstance(leaf, torch.Tensor):
            whole = leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf
            found[f"{prefix}{key}"] = whole.clone()
    return found


KINDS = pytest.mark.parametrize("kind", ["ddp", "fsdp2"])


def saved(kind: str, world: World) -> None:
    state = as_state(*built(kind, world.size, seed=1))
    store = Store(STORES / f"{kind} of {world.size}")
    done = store.save(state, step=5, world=world, own=world.rank)
    for rank in range(world.size):
        assert (done.path / f"__{rank}_0.distcp").stat().st_size > 1000
    whole = tensors(state)
    assert len(whole) == 16  # four parameters, each with a step and two moments
    if world.rank == 0:
        torch.save(whole, store.directory.with_suffix(".pt"))


def resharded(kind: str, of: int, world: World) -> None:
    model, optimiser = built(kind, world.size, seed=2)
    store = Store(STORES / f"{kind} of {of}")
    target = as_state(model, optimiser)
    refused = f"{of} ranks saved it, and this job has {world.size} "
    with pytest.raises(CheckpointError, match=refused):
        store.load(target, world=world)
    loaded = store.load(target, world=world, reshard=True)
    assert loaded is not None
    assert (loaded.step, loaded.world_size, loaded.own) == (5, of, None)
    set_state_dict(
        model, optimiser, model_state_dict=target["model"], optim_state_dict=target["optimiser"]
    )
    found = tensors(as_state(model, optimiser))
    saved = torch.load(store.directory.with_suffix(".pt"))
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], saved[name]) for name in saved)


@KINDS
def test_saved_on_4(kind: str, world: World, process_group: Any) -> None:
    saved(kind, world)


@KINDS
@pytest.mark.mnode(nodes=2)
def test_saved_and_loaded_on_2(kind: str, world: World, process_group: Any) -> None:
    saved(kind, world)
    resharded(kind, 4, world)


@KINDS
def test_loaded_on_4(kind: str, world: World, process_group: Any) -> None:
    resharded(kind, 2, world)

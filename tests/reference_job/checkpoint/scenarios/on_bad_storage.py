"""A store that is full or not writable. Run in ranks of a rack by test_ranks.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import CheckpointError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Store
from tests.reference_job.checkpoint.made import steps_in
from tests.reference_job.checkpoint.saves import load, refused_on_all, save

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch.distributed as dist


HERE = Path(__file__).parent


def the_old_one_is_there(store: Store, world: World, size: int = 100) -> None:
    dist.barrier()
    assert steps_in(store.directory) == ["00000001.1"]
    loaded, found = load(store, world, size, reshard=True)
    assert (loaded.step, found, loaded.refused) == (1, 1, ())
    dist.barrier()


def test_a_full_disk(world: World, process_group: Any) -> None:
    """A file system of 2 MiB shared by all nodes."""
    store = Store(HERE / "small" / "store")
    save(store, world, 1, 150)
    for step in (2, 3):
        text = refused_on_all(store, world, step, 300)
        assert f"step {step} could not be written: rank" in text
        assert f": cannot write to {store.directory}: No space left on device (0." in text
        assert "MB free); free space there, or give the run another directory. The previous" in text
        assert f"The previous checkpoint is kept: {store.directory}/step-00000001.1-" in text
        the_old_one_is_there(store, world, 150)
    assert save(store, world, 4).step == 4  # a checkpoint that fits is written


def test_a_node_that_cannot_write(world: World, process_group: Any) -> None:
    store = Store(HERE / "read_only")
    group = dist.new_group([0, 1])
    if world.rank < 2:
        save(store, world, 1, group=group)
        dist.destroy_process_group(group)
    dist.barrier()
    text = refused_on_all(store, world, 2)
    assert (
        f"step 2 could not be written: rank 2 of 4 on node2: cannot write to {store.directory}: "
        "Read-only file system; mount it writable on every node. The previous checkpoint is kept: "
    ) in text
    the_old_one_is_there(store, world)


def test_the_first_node_cannot_write(world: World, process_group: Any) -> None:
    """The first node creates the directory."""
    store = Store(HERE / "read_only")
    dist.barrier()
    group = dist.new_group([2, 3])
    if world.rank >= 2:
        with pytest.raises(CheckpointError, match=r"rank 0 of 2 on node2: .*Read-only file system"):
            save(store, world, 2, group=group)
        dist.destroy_process_group(group)
    the_old_one_is_there(store, world)


def test_a_node_with_a_full_disk_of_its_own(world: World, process_group: Any) -> None:
    store = Store(HERE / "own")
    text = refused_on_all(store, world, 2)
    assert (
        f"rank 2 of 4 on node2: {store.directory} is not the directory that rank 0 sees on node0 "
        "(0.0 MB free in it); checkpoints need one that all nodes share. There is no other"
    ) in text

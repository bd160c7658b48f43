"""Agreement of ranks on checkpoints. Run in ranks of a rack by test_ranks.py."""

from __future__ import annotations

import itertools
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import CheckpointError, UsageError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Found, Store
from pytest_mnode.reference_job.checkpoint.layout import examine, list_names
from tests.reference_job.checkpoint.made import flip, rewrite
from tests.reference_job.checkpoint.saves import load, on_all, refused_on_all, save

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch.distributed as dist

    from pytest_mnode.reference_job.checkpoint import loading

STORES = Path(__file__).parent / "stores"


@pytest.fixture
def store(request: pytest.FixtureRequest, process_group: Any) -> Iterator[Store]:
    """The same missing directory on all ranks."""
    yield Store(STORES / request.node.name, settle_s=0.5)
    dist.barrier()


def test_the_work_is_divided(store: Store, world: World) -> None:
    saved = save(store, world, 1, own={"rank": world.rank})
    assert on_all(saved) == [saved] * 4
    sizes = [(saved.path / f"__{rank}_0.distcp").stat().st_size for rank in range(4)]
    assert max(sizes) < 1.2 * min(sizes)
    assert sum(sizes) < saved.bytes < 1.1 * 8 * 40_000
    loaded, found = load(store, world)
    assert found == 1
    assert loaded.own == {"rank": world.rank}
    assert (loaded.world_size, loaded.refused) == (4, ())


def test_damage_that_one_node_sees_is_refused_alike(store: Store, world: World) -> None:
    save(store, world, 1)
    path = save(store, world, 2).path
    if world.rank == 0:
        flip(path / "__3_0.distcp", 5000, 4)
    dist.barrier()
    loaded, found = load(store, world)
    assert (loaded.step, found) == (1, 1)
    [refused] = loaded.refused
    assert " on node" in str(refused.reason)
    assert "__3_0.distcp is not what was written: its SHA-256 differs" in str(refused.reason)
    assert on_all(loaded.refused) == [loaded.refused] * 4


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Hides a name from this rank for so many looks at it, as a file server may.

    The list of the directory still has the name, so that only looks at it fail.
    """

    def hide(name: str, times: float) -> None:
        looks = itertools.count()

        def look(path: Path) -> Found:
            if path.name == name and next(looks) < times:
                return Found(path, "it does not exist: hidden")
            return examine(path)

        monkeypatch.setattr(loading, "examine", look)

    return hide


def test_what_a_file_server_shows_late_is_waited_for(
    store: Store, world: World, hide: Callable[[str, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, world, 1)
    path = save(store, world, 2).path
    listed: list[Path] = []

    def listing(directory: Path) -> list[str]:
        listed.append(directory)
        return list_names(directory)

    if world.rank == 1:
        hide(path.name, 6)
    monkeypatch.setattr(loading, "list_names", listing)
    loaded, found = load(Store(store.directory), world)
    assert (loaded.step, found, loaded.refused) == (2, 2, ())
    assert len(listed) > 5, "NFS looks again when its directory is listed"


def test_a_whole_one_that_a_rank_never_sees_is_an_error(
    store: Store, world: World, hide: Callable[[str, float], None]
) -> None:
    """To go on from the older one would lose the steps since then."""
    save(store, world, 1)
    path = save(store, world, 2).path
    if world.rank == 1:
        hide(path.name, math.inf)
    with pytest.raises(CheckpointError) as error:
        load(store, world)
    assert str(error.value) == (
        f"{path} is whole, but not for all ranks: rank 1 of 4 on node1: it does not exist: hidden. "
        "An older one would lose its steps"
    )


def test_one_that_is_listed_and_not_there_yet_is_waited_for(
    store: Store, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all ranks, as when a job goes on on other nodes than those that saved it."""
    save(store, world, 1)
    path = save(store, world, 2).path
    hidden = path.with_name("hidden")
    dist.barrier()
    if world.rank == 0:
        path.rename(hidden)
    dist.barrier()
    began, shown = time.monotonic(), threading.Timer(2.0, lambda: hidden.rename(path))
    if world.rank == 0:
        shown.start()
    names = [path.name, *list_names(store.directory)]
    monkeypatch.setattr(loading, "list_names", lambda _: names)
    loaded, found = load(Store(store.directory), world)
    assert (loaded.step, found, loaded.refused) == (2, 2, ())
    assert time.monotonic() - began > 1
    dist.barrier()
    if world.rank == 0:
        path.rename(hidden)
    dist.barrier()
    with pytest.raises(CheckpointError, match="is listed, but not for all ranks: ranks 0-3 of 4"):
        load(store, world)


def test_a_directory_that_is_not_shared_is_named_at_once(store: Store, world: World) -> None:
    older, newer = save(store, world, 1).path, save(store, world, 2).path
    behind = Store(f"{store.directory}-behind", settle_s=60.0)
    if world.rank == 0:
        shutil.copytree(older, behind.directory / older.name)
    dist.barrier()
    mine = behind if world.node == "node2" else Store(store.directory)
    began = time.monotonic()
    with pytest.raises(CheckpointError) as error:
        load(mine, world)
    assert time.monotonic() - began < 20
    text = str(error.value)
    assert f"{newer.name} is whole, but not for all ranks: rank 2 of 4 on node2: " in text
    assert "it does not exist: the file system is" in text
    assert "another directory" in text
    assert on_all(text.partition(" is whole")[2]) == [text.partition(" is whole")[2]] * 4
    with pytest.raises(
        CheckpointError, match=r"rank 2 of 4 on node2: .* is not the directory that"
    ):
        save(mine, world, 3)
    assert time.monotonic() - began < 40


def test_another_manifest_is_named(store: Store, world: World) -> None:
    newer = save(store, world, 2).path
    other = Store(f"{store.directory}-other")
    if world.rank == 0:
        shutil.copytree(store.directory, other.directory)
        text = (other.directory / newer.name / "manifest.json").read_bytes()
        rewrite(other.directory / newer.name, text.replace(b"node3", b"nodeX"))
    dist.barrier()
    start = "rank 3 of 4 on node3: its manifest is not the one that rank 0 on node0 sees: "
    with pytest.raises(CheckpointError, match=start):
        load(other if world.rank == 3 else store, world)


def test_a_rank_that_catches_up_is_waited_for(
    store: Store, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = save(store, world, 1).path, save(store, world, 2).path
    late = Store(f"{store.directory}-late", settle_s=60.0)
    if world.rank == 0:
        shutil.copytree(older, late.directory / older.name)
    dist.barrier()
    looks = []

    def look(path: Path) -> Found:
        """The checkpoint appears after the rank has looked once."""
        found = examine(path)
        looks.append(found.complete)
        if len(looks) == 1:
            shutil.copytree(newer, late.directory / newer.name)
        return found

    if world.rank == 1:
        monkeypatch.setattr(loading, "examine", look)
    mine = late if world.rank == 1 else Store(store.directory, settle_s=60.0)
    loaded, found = load(mine, world)
    assert (loaded.step, found, loaded.refused) == (2, 2, ())
    assert looks == ([False, True] if world.rank == 1 else [])


def test_a_directory_of_a_node_is_refused(store: Store, world: World) -> None:
    kept = save(store, world, 1).path
    own = Store(f"{store.directory}-own")
    text = refused_on_all(own if world.node == "node2" else store, world, 2)
    assert "step 2 could not be written: rank 2 of 4 on node2: " in text
    assert "is not the directory that rank 0 sees on node0" in text
    assert "checkpoints need one that all nodes share" in text
    assert text.endswith(f"The previous checkpoint is kept: {kept}")
    dist.barrier()
    assert list(store.directory.iterdir()) == [kept]
    assert not own.directory.exists()
    assert load(store, world)[1] == 1


def test_a_store_that_one_rank_cannot_list_is_no_empty_one(store: Store, world: World) -> None:
    file = Store(save(store, world, 1).path / "COMPLETE")
    with pytest.raises(CheckpointError, match=r"rank 1 of 4 on node1: cannot list .*: Not a direc"):
        load(file if world.rank == 1 else store, world)


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


class Evil:
    def __reduce__(self) -> Any:
        raise Unpicklable("not to be saved")


def test_whatever_fails_on_one_rank_fails_on_all(store: Store, world: World) -> None:
    text = refused_on_all(store, world, 1, own=Evil() if world.rank == 1 else 0)
    assert "rank 1 of 4 on node1: RuntimeError: not to be saved. There is no other" in text
    text = refused_on_all(store, world, 1 + (world.rank == 2))
    assert "rank 2 of 4 on node2: saves step 2, and rank 0 step 1. There is no other" in text
    assert list(store.directory.iterdir()) == []
    save(store, world, 1)  # and no rank is one collective behind
    assert load(store, world)[1] == 1


def test_groups_of_ranks_have_their_own(store: Store, world: World) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = world.rank // 2
    mine, other = groups[half], groups[1 - half]
    own = Store(store.directory / str(half))
    save(own, world, 10 + half, group=mine, own=world.rank)
    loaded, found = load(own, world, group=mine)
    assert (found, loaded.own, loaded.world_size) == (10 + half, world.rank, 2)
    with pytest.raises(UsageError, match=f"rank {world.rank} is not in the group"):
        save(own, world, 1, group=other)
    (own.directory / "file").touch()
    path = Store(own.directory / "file")
    with pytest.raises(CheckpointError, match=f"rank 0 of 2 on node{2 * half}: .*File exists"):
        save(path, world, 1, group=mine)
    dist.barrier()
    for group in groups:
        if group is mine:
            dist.destroy_process_group(group)


@pytest.mark.mnode(nodes=2)
def test_of_2_after_one_of_4(world: World, process_group: Any) -> None:
    """A newer checkpoint of another size is refused, and the one before is used."""
    store = Store(STORES / "test_the_work_is_divided")
    older = save(store, world, 0)
    loaded, found = load(store, world)
    assert (loaded.path, found) == (older.path, 0)
    [refused] = loaded.refused
    assert refused.reason == "4 ranks saved it, and this job has 2 (reshard accepts it)"

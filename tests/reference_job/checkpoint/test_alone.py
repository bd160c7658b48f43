"""One rank saves and loads: what is written, refused, removed and said."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from pytest_mnode.errors import CheckpointError, UsageError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Store, placing, saving
from pytest_mnode.reference_job.checkpoint.manifest import read_manifest
from pytest_mnode.reference_job.checkpoint.peers import Peers
from pytest_mnode.reference_job.checkpoint.placing import Order
from tests.reference_job.checkpoint.alone import ALONE, save, state, value


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b")
    saved = store.save(state(7), step=7, world=ALONE, own={"seed": (1, 2)})
    files = [
        path for path in saved.path.iterdir() if path.name not in ("manifest.json", "COMPLETE")
    ]
    assert saved.bytes == sum(path.stat().st_size for path in files)
    assert saved.seconds > 0
    assert saved.notes == ()
    target = state(0)
    loaded = Store(tmp_path / "a" / "b").load(target, world=ALONE)
    assert loaded is not None
    assert (loaded.step, loaded.path, loaded.world_size) == (7, saved.path, 1)
    assert (loaded.own, loaded.refused, loaded.bytes) == ({"seed": (1, 2)}, (), saved.bytes)
    assert loaded.saved_at == read_manifest((saved.path / "manifest.json").read_bytes()).saved_at
    assert value(target) == 7


def test_an_object_with_a_state_of_its_own(tmp_path: Path) -> None:
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    Store(tmp_path).save({"model": first}, step=1, world=ALONE)
    Store(tmp_path).load({"model": second}, world=ALONE)
    assert torch.equal(first.weight, second.weight)


def test_nothing_there(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert store.load(state(0), world=ALONE) is None
    assert store.refused == ()


def test_bad_calls_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep=0: at least the newest checkpoint is kept"):
        Store(tmp_path, keep=0)
    with pytest.raises(UsageError, match="step=-1: steps count from 0"):
        save(Store(tmp_path), -1)
    with pytest.raises(UsageError, match="the key 'own_by_rank' of a state is taken"):
        Store(tmp_path).save({"own_by_rank": 1}, step=1, world=ALONE)
    four = World(0, 4, 0, 4, "node0", ("node0",))
    with pytest.raises(UsageError, match="of 4 ranks needs a process group"):
        Store(tmp_path).save(state(1), step=1, world=four)


def test_old_ones_go_after_the_new_one_is_complete(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    save(store, 1, 2, 3)
    assert [found.step for found in store.survey()] == [3, 2]
    save(Store(tmp_path, keep=1), 4)
    assert [found.step for found in store.survey()] == [4]


def test_leftovers_go_and_all_else_is_left_alone(tmp_path: Path) -> None:
    partial = tmp_path / "step-00000001.partial-0123abcd"
    partial.mkdir()
    (partial / "__0_0.distcp").write_bytes(b"torn")
    (tmp_path / "step-00000001.removed-0123abcd").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "notes.txt").touch()
    save(Store(tmp_path), 2)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step-00000002", "elsewhere", "notes.txt"}


def test_the_directory_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    store = Store(tmp_path / "store")
    with pytest.raises(CheckpointError, match="File exists; give the run a directory"):
        save(store, 1)
    with pytest.raises(CheckpointError, match=f"cannot list {store.directory}: Not a directory"):
        store.load(state(0), world=ALONE)


def test_what_cannot_be_pickled_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(store, 1)
    with pytest.raises(CheckpointError, match=r"step 2 could not be written: .*[Pp]ickle"):
        save(store, 2, own=lambda: 0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_every_byte_is_on_the_disk_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, then their names, then the name of the checkpoint, then COMPLETE, then its name."""
    done: list[str] = []
    sync, rename = os.fsync, Path.rename

    def synced(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink()
        size = path.stat().st_size if path.is_file() else ""
        done.append(f"sync {path.relative_to(tmp_path)} {size}")
        sync(number)

    def renamed(self: Path, target: Path) -> Path:
        done.append(f"{self.relative_to(tmp_path)} is {target.relative_to(tmp_path)}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    path = save(Store(tmp_path), 1)
    partial = done[0].split()[1].partition("/")[0]
    sizes = {p.name: p.stat().st_size for p in path.iterdir()}
    said = [line.replace(partial, "NEW").strip() for line in done]
    assert said == [
        f"sync NEW/__0_0.distcp {sizes['__0_0.distcp']}",
        f"sync NEW/.metadata.tmp {sizes['.metadata']}",
        "sync NEW",
        f"sync NEW/.COMPLETE.tmp {sizes['COMPLETE']}",
        f"sync NEW/.manifest.json.tmp {sizes['manifest.json']}",
        "NEW/.manifest.json.tmp is NEW/manifest.json",
        "sync NEW",
        "NEW is step-00000001",
        "sync .",
        "step-00000001/.COMPLETE.tmp is step-00000001/COMPLETE",
        "sync step-00000001",
    ]


@pytest.mark.parametrize("failing", range(4))
def test_a_commit_that_fails_in_the_middle_is_undone(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """manifest, the old one aside, the new one in its place, COMPLETE: each fails in turn."""
    store = Store(tmp_path)
    before = save(store, 1, 2) / "COMPLETE"
    sealed = before.read_bytes()
    rename, calls = Path.rename, 0

    def fail(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls - 1 == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CheckpointError, match=r"Input/output error; the storage fails.*kept: "):
        store.save(state(5), step=2, world=ALONE)
    monkeypatch.undo()
    assert calls > failing
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
    assert before.read_bytes() == sealed
    target = state(0)
    loaded = store.load(target, world=ALONE)
    assert loaded is not None
    assert value(target) == 2


def test_an_old_one_that_cannot_be_removed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, keep=1)
    save(store, 1)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(placing, "remove", refuse)
    saved = store.save(state(2), step=2, world=ALONE)
    assert saved.notes == (f"{tmp_path}/step-00000001 cannot be removed: Permission denied",)


def test_it_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "HOLD_S", 0.3)
    held: list[Path] = []
    hold = saving._hold

    def noted(peers: Peers, order: Order, path: Path) -> None:
        held.append(path)
        hold(peers, order, path)

    monkeypatch.setattr(saving, "_hold", noted)
    store = Store(tmp_path)
    save(store, 1, hold=2)
    assert held == []
    saved = store.save(state(2), step=2, world=ALONE, hold=2)
    assert len(held) == 1
    assert saved.seconds >= 0.3
    assert sorted(p.name for p in saved.path.iterdir()) == [
        ".metadata",
        "COMPLETE",
        "__0_0.distcp",
        "manifest.json",
    ]
    left = tmp_path / "step-00000003.partial-0123abcd"
    left.mkdir()
    (left / "HOLDING").touch()
    assert store.holding() == left
    save(store, 3, hold=3)
    assert len(held) == 1
    assert store.holding() is None

"""One rank saves and loads: written, refused, removed and reported checkpoints."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

from pytest_mnode.errors import CheckpointError, UsageError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import Found, Store, saving
from pytest_mnode.reference_job.checkpoint.layout import Manifest
from pytest_mnode.reference_job.checkpoint.saving import outdated
from tests.reference_job.checkpoint.made import (
    ALONE,
    SHARD,
    flip,
    flipped,
    loaded_value,
    removed,
    replaced,
    save,
    state,
    steps_in,
    truncated,
)

other_size = replaced(b'"world_size": 1', b'"world_size": 4')


def test_a_saved_state_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b")
    saved = store.save(state(7), step=7, world=ALONE, own={"seed": (1, 2)})
    names = {path.name: path.stat().st_size for path in saved.path.iterdir()}
    assert names.keys() == {".metadata", SHARD, "manifest.json", "COMPLETE"}
    assert saved.bytes == names[".metadata"] + names[SHARD]
    assert saved.seconds > 0
    loaded = Store(tmp_path / "a" / "b").load(state(0), world=ALONE)
    assert loaded is not None
    assert (loaded.step, loaded.path, loaded.world_size) == (7, saved.path, 1)
    assert (loaded.own, loaded.refused) == ({"seed": (1, 2)}, ())
    assert loaded.saved_at == Manifest.read((saved.path / "manifest.json").read_bytes()).saved_at
    assert loaded_value(store) == (7, 7)


def test_an_empty_store_loads_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "none")
    assert store.load(state(0), world=ALONE) is None
    assert store.refused == ()


def test_bad_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep=0: at least the newest checkpoint is kept"):
        Store(tmp_path, keep=0)
    with pytest.raises(UsageError, match="step=-1: steps count from 0"):
        save(Store(tmp_path), -1)
    with pytest.raises(UsageError, match="the key 'own_by_rank' of a state is reserved"):
        Store(tmp_path).save({"own_by_rank": 1}, step=1, world=ALONE)
    four = World(0, 4, 0, 4, "node0", ("node0",))
    with pytest.raises(UsageError, match="of 4 ranks needs a process group"):
        Store(tmp_path).save(state(1), step=1, world=four)


def test_old_partial_and_replaced_checkpoints_are_removed_and_other_files_kept(
    tmp_path: Path,
) -> None:
    partial = tmp_path / "step-00000001.1-0123abcd.partial"
    partial.mkdir()
    (partial / SHARD).write_bytes(b"torn")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "notes.txt").touch()
    store = Store(tmp_path, keep=2)
    save(store, 2, 3)
    save(store, 3, 4)
    (tmp_path / "elsewhere").rmdir()
    (tmp_path / "notes.txt").unlink()
    assert steps_in(tmp_path) == ["00000003.2", "00000004.1"]
    save(Store(tmp_path, keep=1), 5)
    assert steps_in(tmp_path) == ["00000005.1"]


def test_the_directory_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    store = Store(tmp_path / "store")
    with pytest.raises(CheckpointError, match="File exists; give the run a directory"):
        save(store, 1)
    with pytest.raises(CheckpointError, match=f"cannot list {store.directory}: Not a directory"):
        store.load(state(0), world=ALONE)


def test_a_state_that_cannot_be_pickled_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(store, 1)
    with pytest.raises(CheckpointError, match=r"step 2 could not be written: .*[Pp]ickle"):
        save(store, 2, own=lambda: 0)
    assert steps_in(tmp_path) == ["00000001.1"]


def test_all_shards_are_written_before_the_commit(tmp_path: Path) -> None:
    seen: list[Path] = []

    def look(path: Path) -> None:
        seen.append(path)
        assert (path / SHARD).stat().st_size > 0
        assert not (path / "COMPLETE").exists()

    path = save(Store(tmp_path), 1, before_commit=look)
    assert [one.name for one in seen] == [f"{path.name}.partial"]


def test_every_file_is_synced_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order: shards, manifest, COMPLETE, their names, and last the name of the checkpoint."""
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
    sizes = {p.name: p.stat().st_size for p in path.iterdir()}
    assert [line.replace(path.name, "NEW").strip() for line in done] == [
        f"sync NEW.partial/{SHARD} {sizes[SHARD]}",
        "sync NEW.partial",
        f"sync NEW.partial/.metadata.tmp {sizes['.metadata']}",
        "NEW.partial/.metadata.tmp is NEW.partial/.metadata",
        f"sync NEW.partial/manifest.json {sizes['manifest.json']}",
        f"sync NEW.partial/COMPLETE {sizes['COMPLETE']}",
        "sync NEW.partial",
        "NEW.partial is NEW",
        "sync .",
    ]


@pytest.mark.parametrize("failing", range(7))
def test_a_step_of_saving_that_fails_is_undone(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sync fails in turn: of the shards, the manifest, COMPLETE and the name. The program
    `killing` has all other steps."""
    store = Store(tmp_path)
    before = save(store, 1, 2) / "COMPLETE"
    sealed = before.read_bytes()
    sync, calls = os.fsync, 0

    def synced(number: int) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO), f"file {number}")
        sync(number)

    monkeypatch.setattr(os, "fsync", synced)
    with pytest.raises(CheckpointError, match=r"Input/output error; the storage fails.*kept: "):
        store.save(state(5), step=2, world=ALONE)
    monkeypatch.undo()
    assert calls > failing
    assert steps_in(tmp_path) == ["00000001.1", "00000002.1"]
    assert before.read_bytes() == sealed
    assert loaded_value(store) == (2, 2)


def test_an_old_checkpoint_that_cannot_be_removed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, keep=1)
    save(store, 1)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(saving, "remove", refuse)
    save(store, 2)
    assert [(found.step, found.reason) for found in store.survey()] == [(2, None), (1, None)]


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (removed("COMPLETE"), "no COMPLETE: writing it was interrupted"),
        (truncated(SHARD, 100), f"{SHARD} has 100 of"),
        (
            flipped(SHARD, 99),
            f"rank 0 of 1 on node0: {SHARD} is not what was written: its SHA-256 differs",
        ),
        (flipped(".metadata", 99), ".metadata is not what was written"),
        (other_size, "4 ranks saved it, and this job has 1 (reshard accepts it)"),
    ],
)
def test_a_refused_checkpoint_has_a_reason_and_the_previous_one_is_used(
    harm: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    damaged = save(store, 1, 2)
    harm(damaged)
    assert loaded_value(store) == (1, 1)
    [refused] = store.refused
    assert (refused.step, refused.path) == (2, damaged)
    assert reason in str(refused.reason)
    assert str(refused) == f"{damaged.name}: {refused.reason}"
    assert "\n" not in str(refused)
    # The next checkpoint of that step replaces the refused one.
    save(store, 2)
    assert [(f.step, f.reason) for f in store.survey(verify=True)] == [(2, None), (1, None)]


def test_refused_checkpoints_do_not_count_as_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    flip(save(store, 1, 2) / SHARD, 99)
    assert loaded_value(store) == (1, 1)
    save(store, 3)
    assert [f.step for f in store.survey()] == [3, 2, 1]
    save(store, 4)
    assert [f.step for f in store.survey()] == [4, 3]


def test_a_start_with_only_damaged_checkpoints_is_a_first_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    truncated(SHARD, 100)(save(store, 1))
    target = state(0)
    assert store.load(target, world=ALONE) is None
    assert [r.step for r in store.refused] == [1]
    assert target["schedule"] == state(0)["schedule"]


def test_a_job_with_a_complete_checkpoint_does_not_start_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    other_size(save(store, 1))
    with pytest.raises(CheckpointError, match=r"a new start would lose them: .* 4 ranks"):
        store.load(state(0), world=ALONE)
    assert store.load(state(0), world=ALONE, reshard=True) is not None


def test_a_whole_checkpoint_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    save(store, 1, 2)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(FileSystemReader, "read_data", fails)
    with pytest.raises(
        CheckpointError, match=r"000002.* on rank 0 of 1: .*error\. The state is pa"
    ):
        store.load(state(0), world=ALONE)


def test_a_checkpoint_of_another_model_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(store, 1)
    wide: dict[str, Any] = {"model": {"weight": torch.zeros(8, 9)}}
    with pytest.raises(CheckpointError, match="complete, and does not fit this job: Size mismatch"):
        store.load(wide, world=ALONE)
    other: dict[str, Any] = {"model": {"bias": torch.zeros(8)}}
    with pytest.raises(CheckpointError, match=r"Missing key in checkpoint state_dict: model\.bias"):
        store.load(other, world=ALONE)


def path_of(step: int) -> Path:
    return Path(f"step-{step:08d}")


def found_of(complete: set[int], damaged: set[int]) -> list[Found]:
    return [Found(path_of(s), None) for s in sorted(complete | damaged, reverse=True)]


@pytest.mark.parametrize(
    ("complete", "damaged", "keep", "gone"),
    [
        ({10, 20, 30}, set(), 2, [10]),
        ({10, 20, 30}, set(), 1, [20, 10]),
        ({10, 20, 30}, set(), 3, []),
        ({30}, set(), 1, []),
        ({10, 20, 30}, {20}, 2, []),  # 10 is the last good checkpoint before the damaged ones
        ({5, 10, 20, 30}, {20}, 2, [5]),
        ({10, 20, 30}, {20}, 1, [20, 10]),
        ({20, 30}, {10}, 2, [10]),  # damaged and older than all kept checkpoints
        ({20, 30}, {10}, 3, []),
        ({10, 30, 40, 50}, set(), 1, [10]),  # later steps belong to another job
        ({10, 30}, {40}, 2, []),
    ],
)
def test_old_checkpoints_are_removed_except_the_last_good_one(
    complete: set[int], damaged: set[int], keep: int, gone: list[int]
) -> None:
    names = {path_of(step).name for step in damaged}
    paths = outdated(found_of(complete, damaged), path_of(30), keep, names)
    assert paths == [path_of(step) for step in gone]

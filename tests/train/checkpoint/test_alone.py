"""One rank saves and loads: what is written, refused, removed and said."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mnode.errors import CheckpointError, UsageError
from pytest_mnode.train.checkpoint import Store, saving
from pytest_mnode.train.checkpoint.manifest import read_manifest
from pytest_mnode.world.contract import World
from tests.train.checkpoint.made import flip, rewrite

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


def truncate(path: Path) -> None:
    os.truncate(path / "__0_0.distcp", 100)


def other_format(path: Path) -> None:
    text = (path / "manifest.json").read_bytes()
    rewrite(path, text.replace(b'"format": 1', b'"format": 2'))


def other_size(path: Path) -> None:
    text = (path / "manifest.json").read_bytes()
    rewrite(path, text.replace(b'"world_size": 1', b'"world_size": 4'))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda p: (p / "COMPLETE").unlink(), "no COMPLETE: writing it was cut short"),
        (truncate, "__0_0.distcp has 100 of"),
        (
            lambda p: flip(p / "__0_0.distcp", 99),
            "rank 0 of 1 on node0: __0_0.distcp is not what was written: its SHA-256 differs",
        ),
        (lambda p: flip(p / ".metadata", 99), ".metadata is not what was written"),
        (lambda p: flip(p / "manifest.json", 9), "manifest.json is not the one that COMPLETE"),
        (lambda p: (p / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
        (lambda p: (p / "__1_0.distcp").touch(), "it holds __1_0.distcp, which manifest.json"),
        (lambda p: rewrite(p, b"{"), "manifest.json is not readable: "),
        (other_format, "it is of format 2, and format 1 is read here"),
        (other_size, "it is of 4 ranks, and these are 1 (reshard accepts it)"),
    ],
)
def test_refused_with_its_reason_and_the_one_before_is_used(
    harm: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    harm(save(store, 1, 2))
    target = state(0)
    loaded = store.load(target, world=ALONE)
    assert loaded is not None
    assert (loaded.step, value(target)) == (1, 1)
    [refused] = loaded.refused
    assert refused == store.refused[0]
    assert (refused.step, refused.path.name) == (2, "step-00000002")
    assert reason in refused.reason
    assert str(refused) == f"step-00000002: {refused.reason}"
    assert "\n" not in refused.reason
    # The next one of that step takes the place of what was refused.
    save(store, 2)
    assert [(f.step, f.reason) for f in store.survey(verify=True)] == [(2, None), (1, None)]


def test_what_was_refused_is_not_counted_as_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    flip(save(store, 1, 2) / "__0_0.distcp", 99)
    assert store.load(state(0), world=ALONE) is not None
    save(store, 3)
    assert [f.step for f in store.survey()] == [3, 2, 1]
    save(store, 4)
    assert [f.step for f in store.survey()] == [4, 3]


def test_a_start_after_nothing_but_damage_is_a_first_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    truncate(save(store, 1))
    target = state(0)
    assert store.load(target, world=ALONE) is None
    assert [r.step for r in store.refused] == [1]
    assert value(target) == 0


def test_what_is_whole_is_not_started_over(tmp_path: Path) -> None:
    store = Store(tmp_path)
    other_size(save(store, 1))
    with pytest.raises(
        CheckpointError, match=r"starting anew would lose what is there: .* 4 ranks"
    ):
        store.load(state(0), world=ALONE)
    assert store.load(state(0), world=ALONE, reshard=True) is not None


def test_a_checkpoint_of_another_model_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    save(store, 1)
    wide = {"model": {"weight": torch.zeros(8, 9)}}
    with pytest.raises(CheckpointError, match="whole, and does not fit this job: Size mismatch"):
        store.load(wide, world=ALONE)
    other = {"model": {"bias": torch.zeros(8)}}
    with pytest.raises(CheckpointError, match=r"Missing key in checkpoint state_dict: model\.bias"):
        store.load(other, world=ALONE)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_damage_to_any_file_is_refused(data: st.DataObject, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    store = Store(tmp_path / "store")
    path = save(store, 1, 2)
    file = path / data.draw(st.sampled_from(sorted(p.name for p in path.iterdir())))
    # Sizes differ by a few bytes from one to the next.
    offset = data.draw(st.integers(0, 1 << 20)) % file.stat().st_size
    bits = data.draw(st.integers(1, 255))
    how = data.draw(st.sampled_from(["flip", "truncate", "remove"]))
    if how == "flip":
        flip(file, offset, bits)
    elif how == "truncate":
        os.truncate(file, offset)
    else:
        file.unlink()
    target = state(0)
    loaded = store.load(target, world=ALONE)
    assert loaded is not None
    assert (loaded.step, value(target)) == (1, 1)
    assert [r.step for r in loaded.refused] == [2]


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

    monkeypatch.setattr(saving, "remove", refuse)
    saved = store.save(state(2), step=2, world=ALONE)
    assert saved.notes == (f"{tmp_path}/step-00000001 cannot be removed: Permission denied",)


def test_it_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "HOLD_S", 0.3)
    store = Store(tmp_path)
    assert save(store, 1, hold=2).name == "step-00000001"
    saved = store.save(state(2), step=2, world=ALONE, hold=2)
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
    assert store.save(state(3), step=3, world=ALONE, hold=3).seconds < 0.3
    assert store.holding() is None

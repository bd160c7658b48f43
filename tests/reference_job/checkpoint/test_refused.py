"""Checkpoints that one rank refuses, with the reason; the one before is used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mnode.errors import CheckpointError
from pytest_mnode.reference_job.checkpoint import Store
from tests.reference_job.checkpoint.alone import ALONE, save, state, value
from tests.reference_job.checkpoint.made import flip, rewrite


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

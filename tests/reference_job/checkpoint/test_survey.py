"""What is in a store: whole checkpoints, and for all else the reason. Any damage is found."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mnode.reference_job.checkpoint import Store
from pytest_mnode.reference_job.checkpoint.found import Found
from pytest_mnode.reference_job.checkpoint.manifest import FileEntry
from pytest_mnode.reference_job.checkpoint.survey import survey, wrong_files
from tests.reference_job.checkpoint.made import FILES, checkpoint, flip, manifest, rewrite

SHARD = "__0_0.distcp"


def only(directory: Path, verify: bool = True) -> Found:
    [found] = survey(directory, verify)
    return found


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert survey(tmp_path / "none") == []
    assert Store(tmp_path / "none").newest() is None


def test_a_store_that_cannot_be_listed_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        survey(tmp_path / "file")


@pytest.mark.parametrize("name", ["COMPLETE", "manifest.json"])
def test_a_pipe_in_the_place_of_a_file_blocks_nobody(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path, 10) / name
    path.unlink()
    os.mkfifo(path)
    assert only(tmp_path).reason == f"{name} is not a plain file"


def test_newest_first_and_others_left_alone(tmp_path: Path) -> None:
    for step in (10, 30, 20):
        checkpoint(tmp_path, step)
    (tmp_path / "step-00000040.partial-00000000").mkdir()
    (tmp_path / "step-00000005.removed-00000000").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "runs").mkdir()
    found = survey(tmp_path, verify=True)
    assert [(one.step, one.reason) for one in found] == [
        (40, "no COMPLETE: writing it was cut short"),
        (30, None),
        (20, None),
        (10, None),
    ]
    newest = Store(tmp_path).newest()
    assert newest is not None
    assert newest.path == tmp_path / "step-00000030"


def test_it_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pytest_mnode.reference_job.checkpoint import Store; "
        f"print(len(Store({str(tmp_path)!r}).survey(verify=True)), 'torch' in sys.modules)"
    )
    checkpoint(tmp_path)
    assert os.popen(f'{os.sys.executable} -c "{code}"').read().split() == ["1", "False"]  # type: ignore[attr-defined]


def truncate(path: Path) -> None:
    os.truncate(path / SHARD, 299)


def extend(path: Path) -> None:
    (path / SHARD).write_bytes(FILES[SHARD] + b"x")


def link(path: Path) -> None:
    (path / SHARD).rename(path.parent / "elsewhere")
    (path / SHARD).symlink_to(path.parent / "elsewhere")


def other_step(path: Path) -> None:
    rewrite(path, manifest(step=11).text())


def other_format(path: Path) -> None:
    rewrite(path, manifest().text().replace(b'"format": 1', b'"format": 7'))


def unreadable(path: Path) -> None:
    rewrite(path, b"{torn")


def loop(path: Path) -> None:
    (path / "manifest.json").unlink()
    (path / "manifest.json").symlink_to("manifest.json")


def swapped(path: Path) -> None:
    """A manifest that is good by itself, of another checkpoint."""
    (path / "manifest.json").write_bytes(manifest(world_size=4).text())


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda p: (p / "COMPLETE").unlink(), "no COMPLETE: writing it was cut short"),
        (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda p: (p / SHARD).unlink(), f"{SHARD} is missing"),
        (lambda p: (p / ".metadata").unlink(), ".metadata is missing"),
        (truncate, f"{SHARD} has 299 of 300 bytes"),
        (extend, f"{SHARD} has 301 of 300 bytes"),
        (lambda p: flip(p / SHARD, 7), f"{SHARD} is not what was written: its SHA-256 differs"),
        (link, f"{SHARD} is not a plain file"),
        (lambda p: (p / "x.pt").touch(), "it holds x.pt, which manifest.json does not name"),
        (lambda p: (p / "__2_0.distcp").mkdir(), "it holds __2_0.distcp, which manifest.json does"),
        (other_step, "it is of step 11: moved or renamed"),
        (other_format, "it is of format 7, and format 1 is read here"),
        (unreadable, "manifest.json is not readable: "),
        (loop, "manifest.json is not a plain file"),
        (swapped, "manifest.json is not the one that COMPLETE names: one was changed"),
        (
            lambda p: (p / "COMPLETE").write_text("yes"),
            "manifest.json is not the one that COMPLETE names: one was changed",
        ),
    ],
)
def test_what_is_wrong_is_said(harm: Callable[[Path], object], reason: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    harm(path)
    found = only(tmp_path)
    assert found.reason is not None
    assert reason in found.reason
    assert "\n" not in found.reason
    assert not found.complete


def test_a_file_that_nfs_keeps_for_a_reader_is_no_harm(tmp_path: Path) -> None:
    (checkpoint(tmp_path) / ".nfs000000000a1b2c3d00000001").touch()
    assert only(tmp_path).complete


def test_a_file_in_the_place_of_a_checkpoint_is_none(tmp_path: Path) -> None:
    (tmp_path / "step-00000010").touch()
    assert only(tmp_path).reason == "COMPLETE cannot be read: Not a directory"


def test_a_flipped_bit_is_found_by_reading_only(tmp_path: Path) -> None:
    flip(checkpoint(tmp_path) / SHARD, 7)
    assert only(tmp_path, verify=False).complete
    assert not only(tmp_path, verify=True).complete


@pytest.mark.parametrize("file", ["COMPLETE", "manifest.json", *FILES])
def test_any_byte_changed_is_found(file: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path) / file
    for offset in range(path.stat().st_size):
        for bits in (0x01, 0x20, 0x80):  # 0x20: another case of a letter
            flip(path, offset, bits)
            assert only(tmp_path).reason, f"byte {offset} of {file}"
            flip(path, offset, bits)
    assert only(tmp_path).complete


@pytest.mark.parametrize("file", ["COMPLETE", "manifest.json", *FILES])
def test_any_truncation_is_found(file: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path) / file
    for size in reversed(range(path.stat().st_size)):
        os.truncate(path, size)
        assert only(tmp_path, verify=file in ("COMPLETE", "manifest.json")).reason, size


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_other_content_is_found(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "step-00000010"
    if not path.exists():
        checkpoint(tmp_path)
    file = path / data.draw(st.sampled_from(["COMPLETE", "manifest.json", *FILES]))
    before = file.read_bytes()
    after = data.draw(st.binary(max_size=40) | st.permutations(before).map(bytes))
    file.write_bytes(after)
    assert only(tmp_path).complete == (after == before)
    file.write_bytes(before)


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 26)
    page = manifest(files={"large": b""})
    entry = FileEntry(bytes=1 << 26, sha256="0" * 64)
    tracemalloc.start()
    wrong = wrong_files(tmp_path, page.model_copy(update={"files": {"large": entry}}), ["large"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert wrong == ["large is not what was written: its SHA-256 differs"]
    assert peak < 1 << 21


def test_found_says_what_it_is(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    found = only(tmp_path)
    assert found.manifest == manifest()
    assert replace(found, reason="x").complete is False

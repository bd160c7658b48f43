"""Contents of a store: complete checkpoints, and reasons for the others; damage is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.reference_job.checkpoint import Found, Store
from pytest_mnode.reference_job.checkpoint.layout import (
    FileEntry,
    Manifest,
    RefusedError,
    new_name,
    order,
    seal,
    survey,
    wrong_files,
)
from tests.reference_job.checkpoint.made import (
    FILES,
    SHARD,
    checkpoint,
    flip,
    flipped,
    manifest,
    name_of,
    removed,
    rewrite,
    truncated,
)

ALL_FILES = ["COMPLETE", "manifest.json", *FILES]


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(manifest().text()) | changes).encode()


def only(directory: Path, verify: bool = True) -> Found:
    [found] = survey(directory, verify)
    return found


def test_a_manifest_is_read_as_it_was_written() -> None:
    written = manifest(step=20, saved_at=1795265026.4965792)
    assert Manifest.read(written.text()) == written
    assert written.total_bytes == 6 + 300 + 99


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Invalid JSON"),
        (b'{"step": 1,', "Invalid JSON"),
        (b"\xff\xfe\x00", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b"[]", "Input should be an object"),
        (changed(step=-1), "step: Input should be greater than or equal to 0"),
        (changed(step="10"), "step: Input should be a valid integer"),
        (changed(world_size=0), "world_size: Input should be greater than"),
        (changed(saved_at=None), "saved_at: Input should be a valid number"),
        (changed(colour="red"), "colour: Extra inputs are not permitted"),
        (changed(files={}), "files: Dictionary should have at least 1 item"),
        (changed(files={"x": {"bytes": 1, "sha256": "0"}}), "files: x: sha256: "),
        (changed(files={"x": {"bytes": -1, "sha256": "0" * 64}}), "files: x: bytes: "),
        (changed(files={"x": {"bytes": 1, "sha256": "0" * 64 + "\n"}}), "files: x: sha256: "),
    ],
)
def test_a_wrong_manifest_is_refused_with_the_reason(text: bytes, reason: str) -> None:
    with pytest.raises(RefusedError) as caught:
        Manifest.read(text)
    assert str(caught.value).startswith(f"manifest.json is not readable: {reason}")
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from([*Manifest.model_fields, "x"]), inner, max_size=9),
).map(lambda page: json.dumps(page).encode()))  # fmt: skip
def test_reading_a_manifest_raises_only_manifest_errors(text: bytes) -> None:
    with pytest.raises(RefusedError):
        Manifest.read(text)


def test_the_seal_is_of_the_text() -> None:
    text = manifest().text()
    assert seal(text) == seal(text) != seal(text + b" ")
    assert seal(text).endswith(b" manifest.json\n")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-00000020.1-0123abcd", 20),
        ("step-123456789.1-0123abcd", 123456789),
        ("step-00000020.12-0123abcd.partial", 20),
        ("step-00000020", None),
        ("step-20.1-0123abcd", None),
        ("step-0000000020.1-0123abcd", None),  # not in the written form
        ("step-00000020.partial", None),
        ("step-00000020.1-XYZ", None),
        ("step-00000020.1-0123abcd (copy)", None),
        ("step-٠٠٠٠٠٠٢٠.1-0123abcd", None),
        ("other", None),
    ],
)
def test_only_checkpoint_names_are_read(name: str, step: int | None) -> None:
    key = order(name)
    assert (key and key[0]) == step


def test_a_new_name_sorts_after_all_of_its_step_and_before_later_steps() -> None:
    names = [name_of(10), name_of(20)]
    for _ in range(11):
        names.append(new_name(20, [*names, "other"]))
    names.append(new_name(100_000_000, names))
    assert sorted(names, key=lambda name: order(name) or (0, 0, "")) == names


def test_a_missing_store_is_empty_and_an_unreadable_one_is_an_error(tmp_path: Path) -> None:
    assert survey(tmp_path / "none") == []
    assert Store(tmp_path / "none").newest() is None
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        survey(tmp_path / "file")


def test_checkpoints_are_newest_first_and_other_files_are_ignored(tmp_path: Path) -> None:
    for step in (10, 30, 20):
        checkpoint(tmp_path, step)
    (tmp_path / "step-00000040.1-00000000.partial").mkdir()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "runs").mkdir()
    found = survey(tmp_path, verify=True)
    assert [(one.step, one.reason) for one in found] == [
        (40, "no COMPLETE: writing it was interrupted"),
        (30, None),
        (20, None),
        (10, None),
    ]
    newest = Store(tmp_path).newest()
    assert newest is not None
    assert (newest.path, newest.manifest) == (tmp_path / name_of(30), manifest(30))


def test_a_survey_config_and_records_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pytest_mnode.reference_job import JobConfig, read_records; "
        "from pytest_mnode.reference_job.checkpoint import Store; "
        "print(len(Store(sys.argv[1]).survey(verify=True)), 'torch' in sys.modules)"
    )
    checkpoint(tmp_path)
    argv = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.check_output(argv, text=True, timeout=60).split() == ["1", "False"]


def extend(path: Path) -> None:
    (path / SHARD).write_bytes(FILES[SHARD] + b"x")


def link(path: Path) -> None:
    (path / SHARD).rename(path.parent / "elsewhere")
    (path / SHARD).symlink_to(path.parent / "elsewhere")


def pipe(name: str) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        (path / name).unlink()
        os.mkfifo(path / name)

    return harm


def loop(path: Path) -> None:
    (path / "manifest.json").unlink()
    (path / "manifest.json").symlink_to("manifest.json")


def swapped(path: Path) -> None:
    """A manifest of another checkpoint, valid by itself."""
    (path / "manifest.json").write_bytes(manifest(world_size=4).text())


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (removed("COMPLETE"), "no COMPLETE: writing it was interrupted"),
        (removed("manifest.json"), "manifest.json is missing"),
        (removed(SHARD), f"{SHARD} is missing"),
        (removed(".metadata"), ".metadata is missing"),
        (truncated(SHARD, 299), f"{SHARD} has 299 of 300 bytes"),
        (extend, f"{SHARD} has 301 of 300 bytes"),
        (flipped(SHARD, 7), f"{SHARD} is not what was written: its SHA-256 differs"),
        (link, f"{SHARD} is not a plain file"),
        (pipe("COMPLETE"), "COMPLETE is not a plain file"),
        (pipe("manifest.json"), "manifest.json is not a plain file"),
        (loop, "manifest.json is not a plain file"),
        (lambda p: (p / "x.pt").touch(), "it contains x.pt, which manifest.json does not name"),
        (
            lambda p: (p / "__2_0.distcp").mkdir(),
            "it contains __2_0.distcp, which manifest.json does",
        ),
        (
            lambda p: rewrite(p, manifest(11).text()),
            "it is of step 11: its directory was moved or renamed",
        ),
        (lambda p: rewrite(p, b"{torn"), "manifest.json is not readable: "),
        (swapped, "manifest.json is not the one that COMPLETE names: one was changed"),
        (
            lambda p: (p / "COMPLETE").write_text("yes"),
            "manifest.json is not the one that COMPLETE names: one was changed",
        ),
    ],
)
def test_damage_is_found_and_named(
    harm: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    harm(checkpoint(tmp_path))
    found = only(tmp_path)
    assert not found.complete
    assert found.reason is not None
    assert reason in found.reason
    assert "\n" not in found.reason


@pytest.mark.parametrize("name", [".nfs000000000a1b2c3d00000001", ".fuse_hidden0000001a00000002"])
def test_a_file_that_is_kept_for_a_reader_is_no_damage(tmp_path: Path, name: str) -> None:
    (checkpoint(tmp_path) / name).touch()
    assert only(tmp_path).complete


def test_a_file_with_the_name_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / name_of(10)).touch()
    assert only(tmp_path).reason == "COMPLETE cannot be read: Not a directory"


def test_a_flipped_bit_is_found_by_reading_only(tmp_path: Path) -> None:
    flip(checkpoint(tmp_path) / SHARD, 7)
    assert only(tmp_path, verify=False).complete
    assert not only(tmp_path, verify=True).complete


@pytest.mark.parametrize("file", ALL_FILES)
def test_any_byte_changed_and_any_truncation_is_found(file: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path) / file
    for offset in range(path.stat().st_size):
        for bits in (0x01, 0x20, 0x80):  # 0x20: another case of a letter
            flip(path, offset, bits)
            assert only(tmp_path).reason, f"byte {offset} of {file}"
            flip(path, offset, bits)
    assert only(tmp_path).complete
    for size in reversed(range(path.stat().st_size)):
        os.truncate(path, size)
        assert only(tmp_path, verify=file in ("COMPLETE", "manifest.json")).reason, size


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

"""What a rank wrote of where it is survives the rank, and whatever else is in the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_mnode.protocol.messages import Progress
from pytest_mnode.rank.progress import Mark, read_progress


def test_the_last_place_counts(tmp_path: Path) -> None:
    mark = Mark(tmp_path / "mark")
    assert read_progress(tmp_path / "mark") == Progress(None, "")
    mark.place(41, "teardown")
    mark.place(5, "call")
    assert read_progress(tmp_path / "mark") == Progress(5, "call")


def test_it_survives_its_writer(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Mark(tmp_path / "mark").place(7, "setup")
        os.closerange(3, 64)
        os._exit(0)
    os.waitpid(child, 0)
    assert read_progress(tmp_path / "mark") == Progress(7, "setup")


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"x y", b"7", b"\xff\xfe call", b"call 7"])
def test_anything_else_is_nothing_known(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "mark").write_bytes(data)
    assert read_progress(tmp_path / "mark") == Progress(None, "")
    assert read_progress(tmp_path / "none") == Progress(None, "")


def test_a_child_leaves_word_once(tmp_path: Path) -> None:
    mark = Mark(tmp_path / "mark")
    mark.place(1, "call")
    assert mark.take_stray() == ""
    child = os.fork()
    if child == 0:
        mark.stray("left \udcff " + "x" * 9000)
        os._exit(0)
    os.waitpid(child, 0)
    text = mark.take_stray()
    assert text.startswith("left ? xxx")
    assert len(text) < 4096
    assert mark.take_stray() == ""
    assert read_progress(tmp_path / "mark") == Progress(1, "call")

"""What ranks leave in files: of this run and this test, never of one before."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_mnode.controller.pool import new_log_dir
from pytest_mnode.protocol.agent_messages import Progress
from pytest_mnode.protocol.rank_files import ProgressFile, read_progress
from tests.inner import run_pytest, write_files


def test_every_run_has_a_log_directory_of_its_own(tmp_path: Path) -> None:
    parent = tmp_path / "a" / "logs"
    with ThreadPoolExecutor(8) as threads:  # all in one second, and in one process
        made = list(threads.map(lambda _: new_log_dir(parent), range(8)))
    assert len(set(made)) == 8
    assert {path.parent for path in made} == {parent}
    name = rf"\d{{8}}-\d{{6}}-{os.getpid()}(-\d)?"
    assert all(re.fullmatch(name, path.name) for path in made)


TESTS = """
    import ctypes, os, pathlib, signal, pytest

    def crash(): ctypes.string_at(0)
    def die(): os.kill(os.getpid(), signal.SIGKILL)

    def test_a_child_crashes(world):
        if world.rank == 1:
            if not (child := os.fork()):
                crash()
            os.waitpid(child, 0)

    def test_it(world):
        if world.rank == 1:
            crash() if pathlib.Path("crash").exists() else die()
"""


def test_an_old_crash_explains_no_later_death(tmp_path: Path) -> None:
    """Neither one of another run that kept its logs in the same place, nor one of another test."""
    write_files(tmp_path, test_it=TESTS)
    args = ("--mnode-nodes=2", "--mnode-launcher=local", "--mnode-log-dir=logs")
    (tmp_path / "crash").touch()
    first = run_pytest(tmp_path, *args, "-k", "test_it")
    assert "Segmentation fault" in first.output
    (tmp_path / "crash").unlink()
    second = run_pytest(tmp_path, *args)
    assert "killed by SIGKILL" in second.output
    assert "Segmentation fault" not in second.output
    for run, logs in zip((first, second), sorted((tmp_path / "logs").iterdir()), strict=True):
        assert f"logs in {logs}" in run.output


def test_the_last_place_counts(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "mark")
    assert read_progress(tmp_path / "mark") == Progress(None, "")
    file.write(41, "teardown")
    file.write(5, "call")
    assert read_progress(tmp_path / "mark") == Progress(5, "call")


def test_it_survives_its_writer(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        ProgressFile(tmp_path / "mark").write(7, "setup")
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
    file = ProgressFile(tmp_path / "mark")
    file.write(1, "call")
    assert file.take_note() == ""
    child = os.fork()
    if child == 0:
        file.leave_note("left \udcff " + "x" * 9000)
        os._exit(0)
    os.waitpid(child, 0)
    text = file.take_note()
    assert text.startswith("left ? xxx")
    assert len(text) < 4096
    assert file.take_note() == ""
    assert read_progress(tmp_path / "mark") == Progress(1, "call")

"""Files of ranks: of this run and this test, never of an earlier one."""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_mnode.controller.pool import new_log_dir
from pytest_mnode.protocol.messages import Progress, Shape, WorldInfo
from pytest_mnode.protocol.rank_files import (
    ProgressFile,
    RankFiles,
    end_of_output,
    error_message,
    give_output,
    read_progress,
    tail_of_fd,
    take_output,
)
from tests.inner import run_pytest, write_files


def test_every_run_has_its_own_log_directory(tmp_path: Path) -> None:
    parent = tmp_path / "a" / "logs"
    with ThreadPoolExecutor(8) as threads:  # all within one second and one process
        made = list(threads.map(lambda _: new_log_dir(parent), range(8)))
    assert len(set(made)) == 8
    assert {path.parent for path in made} == {parent}
    name = rf"\d{{8}}-\d{{6}}-{os.getpid()}(-\d)?"
    assert all(re.fullmatch(name, path.name) for path in made)


TESTS = """
    import ctypes, os, signal

    def test_a_child_crashes(world):
        if world.rank == 1:
            if not (child := os.fork()):
                ctypes.string_at(0)
            os.waitpid(child, 0)

    def test_it(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_crash_of_another_test_explains_no_later_death(tmp_path: Path) -> None:
    write_files(tmp_path, test_it=TESTS)
    args = ("--mnode-nodes=2", "--mnode-launcher=local", "--mnode-log-dir=logs")
    run = run_pytest(tmp_path, *args)
    assert "killed by SIGKILL" in run.output
    assert "Segmentation fault" not in run.output
    [logs] = (tmp_path / "logs").iterdir()
    assert f"logs in {logs}" in run.output


@pytest.mark.parametrize("local_rank", [0, 255, 256, 70_000])
def test_the_output_of_a_rank_is_kept_after_its_end(tmp_path: Path, local_rank: int) -> None:
    files = RankFiles(WorldInfo("w1", Shape(1, local_rank + 1), ("n0",), log_dir=str(tmp_path)), 0)
    here, there = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with here, there:
        child = os.fork()
        if child == 0:
            for fd, path in ((1, tmp_path / "out"), (2, tmp_path / "err")):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), fd)
                path.unlink()
            give_output(there, files, local_rank)
            os.write(1, b"last words")
            os.write(2, b"and errors")
            os._exit(3)
        os.waitpid(child, 0)
        given = take_output(here)
        assert given is not None
        assert given[0] == local_rank
        assert [tail_of_fd(fd) for fd in given[1]] == ["last words", "and errors"]
        for fd in given[1]:
            assert not os.get_inheritable(fd)
            os.close(fd)
        there.close()
        assert take_output(here) is None


STOPS_LAUNCHER = """
    import os, pathlib, signal, time

    def pytest_plugin_registered(manager):
        \"\"\"First in a rank: until it has died its launcher does not look at it.\"\"\"
        if os.environ.get("RANK") != "1" or hasattr(manager, "has_stopped"):
            return
        manager.has_stopped = True
        launcher, rank_ends = os.getppid(), os.pipe()
        os.kill(launcher, signal.SIGSTOP)
        stat = pathlib.Path(f"/proc/{launcher}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        if not os.fork():
            os.close(rank_ends[1])
            os.read(rank_ends[0], 1)
            os.kill(launcher, signal.SIGCONT)
            os._exit(0)
"""
DIES = """
    import os

    def test_it(rank):
        if rank == 1:
            print("last words", flush=True)
            os._exit(3)
"""


def test_last_output_is_kept_if_the_launcher_learns_late_of_the_rank(tmp_path: Path) -> None:
    write_files(tmp_path, conftest=STOPS_LAUNCHER, test_it=DIES)
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local")
    assert "rank 1 of 2 on local1: exited with code 3" in run.output
    assert "end of its output:\nlast words" in run.output


def test_the_last_location_counts(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "mark")
    assert read_progress(tmp_path / "mark") == Progress(None, "")
    file.write(41, "teardown")
    file.write(5, "call")
    assert read_progress(tmp_path / "mark") == Progress(5, "call")


def test_the_file_survives_its_writer(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        ProgressFile(tmp_path / "mark").write(7, "setup")
        os.closerange(3, 64)
        os._exit(0)
    os.waitpid(child, 0)
    assert read_progress(tmp_path / "mark") == Progress(7, "setup")


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"x y", b"7", b"\xff\xfe call", b"call 7"])
def test_any_other_content_is_unknown(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "mark").write_bytes(data)
    assert read_progress(tmp_path / "mark") == Progress(None, "")
    assert read_progress(tmp_path / "none") == Progress(None, "")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ('{"message": {"message": "no", "extraInfo": {"timestamp": "1"}}}', "no"),
        ('{"message": "no", "timestamp": 1}', "no"),
        *((data, "") for data in ("", "{", "[]", "null", "7", "{}", '{"message": null}')),
        *((data, "") for data in ('{"message": [1]}', '{"message": {"message": 7}}')),
        ("\udcff", ""),
        pytest.param("[" * 100_000, "", id="deep"),
    ],
)
def test_an_error_file_may_hold_anything(tmp_path: Path, data: str, text: str) -> None:
    (tmp_path / "error.json").write_bytes(data.encode(errors="surrogateescape"))
    assert error_message(tmp_path / "error.json") == text
    assert error_message(tmp_path / "none") == ""


def test_a_child_is_recorded_once(tmp_path: Path) -> None:
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


def test_all_of_a_long_output_is_kept(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(200_000))  # read in several pieces
    (tmp_path / "out").write_text(text)
    with (tmp_path / "out").open() as file:
        end = end_of_output(file.fileno(), tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == text
    assert end.endswith("line 199999\n")
    assert f"all of it is in {tmp_path / 'kept'}" in end.splitlines()[0]

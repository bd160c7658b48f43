"""Libraries whose threads survive a fork: their functions work in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from pytest_mnode.machine import own_threads
from tests.inner import clean_env, released_plugins

NUMPY = """
    import numpy
    A = numpy.random.rand(300, 300)
    def work():
        assert (A @ A).shape == (300, 300)
"""
PYARROW = """
    import io
    import pyarrow, pyarrow.compute, pyarrow.parquet
    def work():
        table = pyarrow.table({"a": range(50000), "key": ["x", "y"] * 25000})
        assert table.group_by("key").aggregate([("a", "sum")]).num_rows == 2
        pyarrow.compute.sort_indices(table["a"])
        file = io.BytesIO()
        pyarrow.parquet.write_table(table, file)
        assert pyarrow.parquet.read_table(file).num_rows == 50000
"""
REST = """
    import os, sys
    from pytest_mnode import processes
    from pytest_mnode.machine.own_threads import lost_by_fork
    assert len(processes.thread_names()) > 1, "it starts no thread here"
    for _ in range(2):  # with the threads of its import, then with those of its work
        print(lost_by_fork())
        for _ in range(3):
            child = os.fork()
            if child == 0:
                processes.run_and_exit(work)
            assert os.waitpid(child, 0)[1] == 0
        work()
    # pyarrow's threads may abort the parent as it ends, which is not what is asked.
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.parametrize("library", [NUMPY, PYARROW], ids=["openblas", "arrow"])
def test_the_library_works_in_a_forked_child(library: str) -> None:
    path = os.pathsep.join([str(released_plugins()), *filter(None, sys.path)])
    env = clean_env() | {"PYTHONPATH": path, "OMP_NUM_THREADS": "2"}
    program = textwrap.dedent(library) + textwrap.dedent(REST)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n[]\n"), done.stderr


@pytest.mark.parametrize(("starts", "found"), [(True, []), (False, ["a thread in libcuda.so.580"])])
def test_the_thread_of_nvml_is_not_needed_after_a_fork(
    monkeypatch: pytest.MonkeyPatch, starts: bool, found: list[str]
) -> None:
    """NVML starts it in libcuda.so: cuInit in a child works, except after cuInit here."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    monkeypatch.setattr(threading, "enumerate", list)  # like a thread started by C++
    libraries = {thread.native_id: "libcuda.so.580"}
    monkeypatch.setattr(own_threads, "_library", lambda tid, _: libraries.get(tid))
    monkeypatch.setattr(own_threads, "_cuda_starts_in_a_child", lambda: starts)
    try:
        assert own_threads.lost_by_fork() == found
    finally:
        over.set()
        monkeypatch.undo()
        thread.join()


def test_without_a_driver_cuda_starts_in_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_threads, "_CUDA", "libnone.so")
    assert not own_threads._cuda_starts_in_a_child()


def test_a_thread_that_never_waits_is_in_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_threads, "_SETTLE_S", 0.1)
    monkeypatch.setattr(own_threads, "_TASKS", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "syscall").write_text("running\n")
    assert own_threads._library(7, []) == ""


@pytest.mark.parametrize(
    ("machine", "code", "call"),
    [
        ("x86_64", "e8 11 22 33 44", True),
        ("x86_64", "ff d0", True),
        ("x86_64", "ff 50 10", True),
        ("x86_64", "ff 54 24 08", True),
        ("x86_64", "ff 15 11 22 33 44", True),
        ("x86_64", "ff 94 24 11 22 33 44", True),
        ("x86_64", "ff e0", False),  # jmp
        ("x86_64", "e9 11 22 33 44", False),
        ("aarch64", "01 00 00 94", True),
        ("aarch64", "20 00 3f d6", True),
        ("aarch64", "01 00 00 14", False),  # b
        ("riscv64", "e8 11 22 33 44", False),
    ],
)
def test_before_a_return_address_there_is_a_call(
    monkeypatch: pytest.MonkeyPatch, machine: str, code: str, call: bool
) -> None:
    monkeypatch.setattr(own_threads, "_MACHINE", machine)
    assert own_threads._ends_in_call(bytes.fromhex(code).rjust(8, b"\0")) is call

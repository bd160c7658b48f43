"""Kernel state of threads, in words: of real processes, and from composed /proc."""

from __future__ import annotations

import ctypes
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_mnode import processes
from pytest_mnode.machine.threads import native_frames, syscall_text, threads_text
from tests.inner import need_gdb
from tests.programs import write_program

known_machine = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="its system calls are not in the table"
)
LIMIT_S = 20


@contextmanager
def started(code: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def awaited(pid: int, words: str) -> str:
    """The text of a process once it contains `words`, otherwise its last text."""
    end = time.monotonic() + LIMIT_S
    while words not in (text := threads_text(pid)) and time.monotonic() < end:
        time.sleep(0.02)
    return text


def test_thread_names_cut_within_a_character_are_shown(tmp_path: Path) -> None:
    """The kernel cuts a name after 15 bytes, also in the middle of a character."""
    task = tmp_path / "7/task/7"
    task.mkdir(parents=True)
    (task / "comm").write_bytes("données-de-chargé".encode()[:10] + b"\xc3\n")
    (task / "syscall").write_text("running\n")
    (task / "wchan").write_text("0")
    assert threads_text(7, tmp_path) == "thread données-d\ufffd (main): runs in user space"


def test_a_debugger_that_cannot_be_run_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gdb = tmp_path / "gdb"
    write_program(gdb, "no program of any processor")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native_frames(7) == f"C stack: unknown; {gdb} cannot be run: Exec format error"


def test_the_name_of_a_thread_may_be_any_bytes() -> None:
    names = []

    def work() -> None:
        ctypes.CDLL(None).prctl(15, b"\xe9\xff", 0, 0, 0)
        names.extend(processes.thread_names())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "\ufffd\ufffd" in names


@known_machine
def test_a_socket_is_named_by_both_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
        with started(code) as pid:
            accepted, (_, theirs) = server.accept()
            with accepted:
                text = awaited(pid, "recvfrom")
    assert "(main): in recvfrom on descriptor " in text
    assert f", TCP 127.0.0.1:{theirs} → 127.0.0.1:{port}" in text


@known_machine
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; r, w = os.pipe(); os.read(r, 1)", "in read on descriptor 3, pipe:["),
        ("import time; time.sleep(60)", "in clock_nanosleep: sleeps"),
        ("import os; os.mkfifo('FIFO'); open('FIFO')", "in openat: opens a file"),
        ("import threading; threading.Lock().acquire() and [x := threading.Lock(), x.acquire(), "
         "x.acquire()]", "in futex: waits for a lock or another thread"),
        ("while True: pass", "runs in user space"),
    ],
)  # fmt: skip
def test_system_call_that_a_process_waits_in(code: str, words: str, tmp_path: Path) -> None:
    with started(code.replace("FIFO", str(tmp_path / "fifo"))) as pid:
        assert words in awaited(pid, words)


@known_machine
def test_every_thread_has_a_line() -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    with started(code) as pid:
        lines = awaited(pid, "sleeps").splitlines()
    assert len(lines) == 2
    assert "(main)" in lines[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("", "its system call cannot be read"),
        ("running", "runs in user space"),
        ("-1 0x7ffd 0x7f01", "waits in the kernel outside of a system call"),
        ("9999 0x0", "in system call 9999"),
        ("garbage", "waits in the kernel outside of a system call"),
    ],
)
def test_any_content_of_proc_is_described(call: str, words: str) -> None:
    assert syscall_text(call, {}) == words


def test_a_process_that_has_ended() -> None:
    assert threads_text(2**22 + 1) == ""


def test_the_c_stack_of_a_process() -> None:
    need_gdb()
    with started("import ctypes; ctypes.CDLL(None).pause()") as pid:
        awaited(pid, "in pause")
        text = native_frames(pid)
    assert text.startswith("C stack, most recent call first:\n"), text
    assert "pause" in text
    assert "_PyEval" not in text
    assert text.splitlines()[-1].startswith("  "), text  # nothing else that gdb prints


def test_an_ended_process_has_no_c_stack() -> None:
    need_gdb()
    with started("pass") as pid:
        pass
    assert native_frames(pid).startswith("C stack: unknown; gdb: "), native_frames(pid)

"""Where threads are in the kernel, in words: of real processes, and of what /proc may say."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_mnode.probes.threads import syscall_text, threads_text

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
    """What is said of a process as soon as `words` are in it, else what was said last."""
    end = time.monotonic() + LIMIT_S
    while words not in (text := threads_text(pid)) and time.monotonic() < end:
        time.sleep(0.02)
    return text


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
        ("import threading; threading.Lock().acquire() and [x := threading.Lock(), x.acquire(), "
         "x.acquire()]", "in futex: waits for a lock or another thread"),
        ("while True: pass", "runs, outside of the kernel"),
    ],
)  # fmt: skip
def test_what_a_process_waits_for(code: str, words: str) -> None:
    with started(code) as pid:
        assert words in awaited(pid, words)


@known_machine
def test_every_thread_has_a_line() -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    with started(code) as pid:
        lines = awaited(pid, "sleeps").splitlines()
    assert len(lines) == 2
    assert "(main)" in lines[0]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("", "its system call cannot be read"),
        ("running", "runs, outside of the kernel"),
        ("-1 0x7ffd 0x7f01", "waits in the kernel outside of a system call"),
        ("9999 0x0", "in system call 9999"),
        ("garbage", "waits in the kernel outside of a system call"),
    ],
)
def test_any_words(told: str, words: str) -> None:
    assert syscall_text(told, {}) == words


def test_a_process_that_is_gone() -> None:
    assert threads_text(2**22 + 1) == ""

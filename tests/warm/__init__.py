"""Runs pytest in processes that need not import it, nor torch, which takes 3 s of CPU.

A server of this process imports both once. For each run it forks a child that waits for its end,
and forks the run, or another program of `python -m`. The run forks a child that waits until it
starts its agent, and becomes it, in the namespaces, with the environment, streams and session that
it would have had. So do its cleanup process, workers of pytest-xdist, if it is given -n1 to -n9,
and their agents. They differ from processes that were executed by what /proc shows of these, their
arguments and first environment, and by modules that are there already; those of torch are hidden
from the run until it imports them. Tests of processes and of what they inherit run without.
tests.warm.workers has the workers of the tests themselves forked, too.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.warm.run import DEFAULTS, same_start

ROOT = Path(__file__).parents[2]
_STATUS = struct.Struct("i")
_lock = threading.Lock()
_servers: list[tuple[socket.socket, subprocess.Popen[bytes] | None]] = []
"""The server, once it was needed; it ends with the last process that can ask it."""


def possible(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a run is one of pytest by this Python, as this process was started."""
    return list(argv[:3]) == [sys.executable, "-m", "pytest"] and same_start(env, os.environ)


class Process:
    """A run, with the methods of Popen that tests call."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        (self.pid,) = _STATUS.unpack(_received(server))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._server], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("pytest", timeout or 0.0)
            with self._server:
                (status,) = _STATUS.unpack(_received(self._server))
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def start(
    argv: Sequence[str],
    directory: Path,
    env: Mapping[str, str],
    stdin: int,
    output: int,
    *,
    terminal: bool = False,
) -> Process:
    """terminal: the streams are a terminal, which becomes that of a session of the run."""
    request = (list(argv), str(directory), dict(env), terminal)
    return ask(server(), request, stdin, output)


def ask(server: socket.socket, request: object, *fds: int) -> Process:
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(server, [repr(request).encode()], [theirs.fileno(), *fds])
    return Process(ours)


def run(
    argv: Sequence[str], directory: Path, env: Mapping[str, str], limit_s: float, typed: str = ""
) -> tuple[int, str]:
    """Exit status and output; raises TimeoutExpired after the limit, with all output until then.

    typed: what the run can read from a pipe.
    """
    stdin, pipe = os.pipe()
    with os.fdopen(pipe, "w") as written:
        written.write(typed)
    with os.fdopen(stdin) as pipe_end, tempfile.TemporaryFile() as output:
        process = start(argv, directory, env, pipe_end.fileno(), output.fileno())
        late = False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            process.kill()
        status = process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace").replace("\r\n", "\n")
    if late:
        raise subprocess.TimeoutExpired(argv, limit_s, text)
    return status, text


def _received(server: socket.socket) -> bytes:
    data = server.recv(_STATUS.size, socket.MSG_WAITALL)
    assert len(data) == _STATUS.size, "the server with torch has ended"
    return data


def server() -> socket.socket:
    with _lock:
        if not _servers:
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.warm.server"],
                    cwd=ROOT,
                    env={**DEFAULTS, **os.environ},
                    stdin=theirs.fileno(),
                )
            use_server(ours, process)
        return _servers[0][0]


def use_server(server: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
    """process: of this process, which keeps it."""
    _servers.append((server, process))

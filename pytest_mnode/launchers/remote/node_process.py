"""Starts launchers' local commands; those of node_command without a process on this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO

from pytest_mnode.launchers.remote import node_command
from pytest_mnode.protocol.socket_path import reachable

LOCAL = [sys.executable, "-S", "-E", "-s", node_command.__file__]
"""Words of a local command before the bridge's socket, the host and the command there."""
ASK_S = 10
"""How long a bridge may take for a request: one without open files accepts no connection."""


class NodeProcess:
    """Does what node_command does; used like its subprocess.Popen, by one thread at a time.

    Until it has ended it holds a connection, with whose end the bridge ends the command.
    """

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None
    returncode: int | None = None

    def __init__(
        self, words: Sequence[str], env: Mapping[str, str], stdin: int, stdout: int, stderr: Path
    ) -> None:
        """words: those after LOCAL. stdin, stdout: PIPE or descriptors. Raises OSError."""
        path, self._host, *argv = words
        asked = node_command.request(self._host, argv, dict(env))
        self._stderr, self._answer = stderr, b""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            errors = theirs.enter_context(stderr.open("ab")).fileno()
            self._bridge = ours.enter_context(socket.socket(socket.AF_UNIX))
            if stdin == PIPE:
                stdin, end = os.pipe()
                theirs.callback(os.close, stdin)
                self.stdin = ours.enter_context(os.fdopen(end, "wb", 0))
            if stdout == PIPE:
                end, stdout = os.pipe()
                theirs.callback(os.close, stdout)
                self.stdout = ours.enter_context(os.fdopen(end, "rb", 0))
            self._ask(path, asked, [stdin, stdout, errors])
            ours.pop_all()

    def _ask(self, path: str, asked: bytes, fds: list[int]) -> None:
        """Send the request. If the bridge does not take it, `wait` tells that."""
        limit = struct.pack("ll", ASK_S, 0)
        self._bridge.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        end = time.monotonic() + ASK_S
        try:
            with reachable(path) as short:
                self._bridge.connect(short)
            while True:
                try:
                    return node_command.ask(self._bridge, asked, fds)
                except OSError as error:  # before the first byte; the bridge has many yet to take
                    if error.errno != errno.ETOOMANYREFS or time.monotonic() > end:
                        raise
                time.sleep(0.01)
        except (ConnectionError, FileNotFoundError):
            pass  # it has ended
        except OSError as error:
            why = f"the run's bridge to its nodes took no command for {ASK_S} s: {error.strerror}"
            self._answer = f"{node_command.LOST} {why}".encode()
            with contextlib.suppress(OSError):
                self._bridge.shutdown(socket.SHUT_RDWR)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while self.returncode is None:
            self._bridge.settimeout(timeout)
            try:
                more = self._bridge.recv(4096)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(self._host, timeout or 0) from None
            except OSError:
                more = b""
            self._answer += more
            if not more:
                self.returncode, why = node_command.read_answer(self._answer, self._host)
                self._bridge.close()
                with contextlib.suppress(OSError), self._stderr.open("ab") as errors:
                    errors.write(why.encode())
        return self.returncode

    def terminate(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(OSError):
                self._bridge.send(bytes([signal.SIGTERM]))

    def kill(self) -> None:
        if self.poll() is None:
            self.returncode = -signal.SIGKILL
            self._bridge.shutdown(socket.SHUT_RDWR)  # a forked process may have it, too
            self._bridge.close()


Program = subprocess.Popen[bytes] | NodeProcess


def start(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: int = DEVNULL,
    stdout: int | Path,
    stderr: Path,
    apart: bool = False,
) -> Program:
    """Start a local command of Launcher.commands. Raises OSError.

    stdin, stdout: PIPE, which has no buffer, or a descriptor. A file is appended to. apart: Ctrl-C
    does not reach it; it never reaches a command that the bridge runs.
    """
    with contextlib.ExitStack() as files:
        if isinstance(stdout, Path):
            stdout = files.enter_context(stdout.open("ab")).fileno()
        if [*command[: len(LOCAL)]] == LOCAL:
            if stdin == DEVNULL:
                stdin = files.enter_context(Path(os.devnull).open("rb")).fileno()
            return NodeProcess(command[len(LOCAL) :], env, stdin, stdout, stderr)
        return subprocess.Popen(
            command,
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=files.enter_context(stderr.open("ab")),
            env=env,
            start_new_session=apart,
        )

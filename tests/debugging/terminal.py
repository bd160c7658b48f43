"""Runs pytest in a pseudo-terminal, with typed input."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests import warm

ROWS, COLUMNS = 50, 120
LIMIT_S = 60.0


class TerminalRun:
    """A program whose standard streams are its own terminal."""

    def __init__(
        self, argv: Sequence[str], directory: Path, env: Mapping[str, str], term: str = "dumb"
    ) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
        env = {**env, "TERM": term}
        self.process: warm.Process | subprocess.Popen[bytes]
        # The terminal must be the controlling one, so that Ctrl-C is a signal.
        if warm.possible(argv, env):
            self.process = warm.start(argv, directory, env, theirs, theirs, terminal=True)
        else:
            argv = ["setsid", "--ctty", *argv]
            self.process = subprocess.Popen(
                argv, cwd=directory, env=env, stdin=theirs, stdout=theirs, stderr=theirs
            )
        os.close(theirs)
        self.output = ""
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def expect(self, text: str, limit_s: float = LIMIT_S) -> str:
        """Wait for `text` after the last expected text; the output up to it."""
        end = time.monotonic() + limit_s
        while (at := self.output.find(text, self._seen)) < 0:
            came = self._read(max(0.0, end - time.monotonic())) and time.monotonic() < end
            assert came or text in self.output[self._seen :], f"no {text!r} in:\n{self.output}"
        found = self.output[self._seen : at]
        self._seen = at + len(text)
        return found

    def ask(self, text: str, prompt: str) -> str:
        """Type a line at a prompt; the output up to the next prompt."""
        self.type(f"{text}\r")
        return self.expect(prompt)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """The exit status, once all output was read."""
        end = time.monotonic() + limit_s
        while self._read(max(0.0, end - time.monotonic())):
            assert time.monotonic() < end, f"no end of:\n{self.output}"
        return self.process.wait(max(1.0, end - time.monotonic()))

    def _read(self, limit_s: float) -> bool:
        """Read available output; False at the limit, and if no more can arrive."""
        if not select.select([self._ours], [], [], limit_s)[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other end is closed
            return False
        self._take(data)
        return bool(data)

    def _take(self, data: bytes) -> None:
        self.output += data.decode(errors="replace").replace("\r\n", "\n")

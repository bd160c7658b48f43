"""A terminal emulator whose screen is read row by row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

from tests.debugging.terminal import COLUMNS, LIMIT_S, ROWS, TerminalRun

_TURN_S = 0.2


class ScreenRun(TerminalRun):
    """A program in a terminal with colours and cursor movement."""

    def __init__(self, argv: Sequence[str], directory: Path, env: Mapping[str, str]) -> None:
        self._screen = pyte.HistoryScreen(COLUMNS, ROWS, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        env = {k: v for k, v in env.items() if k not in ("CI", "BUILD_NUMBER", "NO_COLOR")}
        super().__init__(argv, directory, env, term="xterm")

    def _take(self, data: bytes) -> None:
        super()._take(data)
        self._stream.feed(data)

    @property
    def rows(self) -> list[str]:
        """All rows, with those that scrolled off first and without empty ones at the end."""
        above = [
            "".join(row[column].data for column in range(COLUMNS))
            for row in self._screen.history.top
        ]
        text = "\n".join(row.rstrip() for row in (*above, *self._screen.display))
        return text.rstrip().split("\n")

    def see(self, seen: Callable[[list[str]], object]) -> list[str]:
        """Wait until the screen shows the pattern; the rows at that moment."""
        end = time.monotonic() + LIMIT_S
        while not seen(self.rows):
            assert time.monotonic() < end, "not seen on:\n" + "\n".join(self.rows)
            assert self._read(_TURN_S) or self.process.poll() is None, "\n".join(self.rows)
        return self.rows

    def see_below(self, row: str, text: str) -> str:
        """Wait until the last row has this text and is below this row; the last row."""
        return self.see(lambda rows: rows[-2:-1] == [row] and text in rows[-1])[-1]

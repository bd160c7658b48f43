"""Live information on ranks for the user: their output lines, and where they are."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import pytest

from pytest_mnode.controller.live_line import LiveLine
from pytest_mnode.outcome.outcome import RankState
from pytest_mnode.rank.live_output import logs_live, prints_live

ASK_SIGNAL = signal.SIGUSR1
"""Makes this process print where its ranks are."""


class Console:
    """The user's view of ranks; one per pytest process, closed at its end."""

    def __init__(self, config: pytest.Config, debug_rank: int | None) -> None:
        """debug_rank: the rank to debug; None: the first that requests the debugger."""
        self._config = config
        self.debug_rank = debug_rank
        self.is_worker = hasattr(config, "workerinput")
        self.shows_live = not self.is_worker and (prints_live(config) or logs_live(config))
        self._running = ""
        self._awaited: Callable[[], str] = str
        self._asked = False
        self._unfinished = ""
        """What the debugged rank wrote after its last line end, such as its prompt."""
        self.line: LiveLine | None = None
        """The live line, shown while nothing else writes to the terminal."""
        self._stderr = None if sys.__stderr__ is None else os.dup(sys.__stderr__.fileno())
        self._listens = False
        with contextlib.suppress(ValueError):  # not in the main thread
            if signal.getsignal(ASK_SIGNAL) is signal.SIG_DFL:
                signal.signal(ASK_SIGNAL, self._on_signal)
                self._listens = True

    def close(self) -> None:
        if self._listens:
            signal.signal(ASK_SIGNAL, signal.SIG_DFL)
            self._listens = False
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None

    @contextlib.contextmanager
    def running(self, what: str, awaited: Callable[[], str] = str) -> Iterator[None]:
        """Enter while ranks run a test or function. awaited: returns the awaited ranks as text."""
        self._running, self._awaited = what, awaited
        try:
            yield
        finally:
            self._running, self._awaited, self._asked = "", str, False

    def shows_line(self, may: bool) -> contextlib.AbstractContextManager[None]:
        """Set, for a block, whether the live line may be shown although pytest captures nothing."""
        return contextlib.nullcontext() if self.line is None else self.line.may_show(may)

    def awaited(self) -> str:
        """The ranks that the controller waits for now, as text; "" if none."""
        return self._awaited()

    def asked_where(self) -> bool:
        """Whether the user sent ASK_SIGNAL since the last call."""
        asked, self._asked = self._asked, False
        return asked

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._running:
            self._asked = True
        else:  # not through Python's own files, which may be in the middle of a write
            self._write(["mnode: no rank runs a test of this process now"])

    def _write(self, lines: Sequence[str]) -> None:
        if self._stderr is not None:
            os.write(self._stderr, "".join(f"{line}\n" for line in lines).encode(errors="replace"))

    def show_ranks(self, lines: Sequence[str]) -> None:
        """Show where ranks are."""
        self.show([f"mnode: where the ranks of {self._running or 'the test'} are", *lines])

    def show_output(self, state: RankState, lines: Sequence[str]) -> None:
        """Show lines that a rank printed."""
        if self.shows_live:
            self.show([f"[rank {state.rank} {state.node}] {line}" for line in lines])

    def show(self, lines: Sequence[str]) -> None:
        """Write whole lines to the user's terminal, whatever pytest captures now."""
        terminal: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if terminal is None:
            self._write(lines)
            return
        with self.uncaptured():
            self._write_of_debugger("\n" if self._unfinished else "")
            for line in lines:
                terminal.write_line(line)
            terminal.flush()
            self._write_of_debugger(self._unfinished)

    def show_debugger(self, text: str) -> None:
        """Write what the debugged rank wrote to its terminal; pytest must not capture now."""
        self._write_of_debugger(text)
        self._unfinished = (self._unfinished + text).rpartition("\n")[2]

    def leave_debugger(self) -> None:
        """The rank has given the terminal back: its unfinished line is not shown again."""
        self._unfinished = ""

    def _write_of_debugger(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    @contextlib.contextmanager
    def uncaptured(self, with_input: bool = False) -> Iterator[None]:
        """Suspend pytest's capture for a block; with_input: also of standard input."""
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        whole = None if capture is None else capture._global_capturing
        if whole is None:
            yield
            return
        captures = whole.is_started()
        capture.suspend(in_=with_input)
        try:
            with self.shows_line(False):
                yield
        finally:
            if captures or with_input:
                capture.resume()
            if not captures:
                capture.suspend_global_capture()

"""A line below what pytest has written so far, on a terminal, while a test runs.

It is there only while nobody else writes to the terminal: while pytest captures what is printed,
and while ranks run a test, of which pytest captures nothing here. Whoever is about to write has
pytest suspend capturing, before which the line is taken away. The cursor stays where pytest left
it, so that pytest's own line goes on where it was.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

FIRST_S = 1.0
"""A test that is over sooner shows no line."""
_TURN_S = 0.5
# A row below is made (ESC D scrolls where the cursor is in the last row) and cleared.
_BELOW, _BACK = "\x1bD\x1b[A\x1b7\x1b[B\r\x1b[K", "\x1b8"
_CLEAR = "\x1b[J"
_GUARD = "read -r _; printf '\\033[J'"
"""Takes the line away where this process was killed: its input then ends."""


def _on_ci() -> bool:
    """As pytest decides it."""
    return any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))


def terminal_of(config: pytest.Config) -> int | None:
    """A descriptor of the terminal to write the line to; None where it is not to be written.

    pytest's own reporter has to write in colour to a terminal, with all output captured: neither
    -q, -s nor another reporter, no log of a CI, no worker of pytest-xdist.
    """
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    if type(reporter) is not pytest.TerminalReporter or _on_ci():
        return None
    shown = reporter.isatty and reporter.hasmarkup and config.getoption("verbose", 0) >= 0
    if not shown or config.getoption("capture", "no") != "fd" or sys.__stdout__ is None:
        return None
    fd = os.dup(sys.__stdout__.fileno())
    if os.isatty(fd):
        return fd
    os.close(fd)
    return None


class LiveLine:
    """While it is entered, the line shows `text(columns)`, and nothing where that is empty."""

    def __init__(self, fd: int, config: pytest.Config, text: Callable[[int], str]) -> None:
        """fd: of `terminal_of`; closed at the end."""
        self._fd, self._text = fd, text
        self._writer: Any = config.pluginmanager.getplugin("terminalreporter")
        self._capture: Any = config.pluginmanager.getplugin("capturemanager")
        self._lock = threading.RLock()
        self._shown = ""
        self._may_show = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mnode-live-line", daemon=True)
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._suspend = self._capture.suspend_global_capture
        self._capture.suspend_global_capture = self._clear_and_suspend
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        del self._capture.suspend_global_capture  # the class's own is back
        self._over.set()
        self._thread.join()
        self._clear()
        if self._guard is not None:
            self._guard.communicate()
        os.close(self._fd)

    @contextlib.contextmanager
    def may_show(self, may: bool) -> Iterator[None]:
        """Whether the line may be there though pytest captures nothing."""
        before = self._may_show
        self._set_may_show(may)
        try:
            yield
        finally:
            self._set_may_show(before)

    def _set_may_show(self, may: bool) -> None:
        with self._lock:
            self._may_show = may
            if not may:
                self._clear()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            while not self._over.wait(_TURN_S):
                with self._lock:
                    self._paint()

    def _paint(self) -> None:
        columns = os.get_terminal_size(self._fd).columns
        written = self._writer._tw.width_of_current_line
        full = written and written % columns == 0  # terminals differ in where the cursor is then
        free = self._may_show or self._capture._global_capturing.is_started()
        if full or not free or self._in_background():
            return
        text = self._text(columns - 1)
        if text == self._shown:
            return
        if self._guard is None:
            self._guard = self._started_guard()
        os.write(self._fd, (f"{_BELOW}{text}{_BACK}" if text else _CLEAR).encode())
        self._shown = text

    def _in_background(self) -> bool:
        with contextlib.suppress(OSError):  # it is not this process's own terminal
            return os.tcgetpgrp(self._fd) != os.getpgrp()
        return False

    def _clear_and_suspend(self, *args: Any, **kwargs: Any) -> None:
        with self._lock:
            self._clear()
            self._suspend(*args, **kwargs)

    def _clear(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._shown:
                os.write(self._fd, _CLEAR.encode())
            self._shown = ""

    def _started_guard(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=self._fd,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )

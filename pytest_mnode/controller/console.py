"""Live information on ranks for the user: their output lines, where they are, and a live line with
the running test, its elapsed time and its previous duration."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

import pytest

from pytest_mnode import marks
from pytest_mnode.certificate.results import criterion_name
from pytest_mnode.other_plugins import in_ranks
from pytest_mnode.outcome.outcome import RankState
from pytest_mnode.processes import end_programs
from pytest_mnode.progress import ignore, listen
from pytest_mnode.rank.live_output import logs_live, prints_live

FIRST_S = 1.0
"""A test that ends sooner shows no line."""
_TURN_S = 0.5
_GUARD_END_S = 2.0
# Makes a row below (ESC D scrolls if the cursor is in the last row) and clears it.
_BELOW, _BACK = "\x1bD\x1b[A\x1b7\x1b[B\r\x1b[K", "\x1b8"
_CLEAR = "\x1b[J"
_GUARD = "read -r _; printf '\\033[J'"
"""Clears the line if this process is killed, because its standard input then ends."""


def terminal_of(config: pytest.Config) -> int | None:
    """A descriptor of the terminal to write the line to; None if no line may be written.

    pytest's own reporter must write in colour to a terminal, with all output captured: no -q or -s,
    no other reporter, no CI log, no pytest-xdist worker.
    """
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    on_ci = any(os.environ.get(name) for name in ("CI", "BUILD_NUMBER"))  # pytest's own rule
    if type(reporter) is not pytest.TerminalReporter or on_ci:
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
    """A line below pytest's output: while entered, `text(columns)`, and nothing if that is empty.

    It is shown only while nothing else writes to the terminal: while pytest captures output, and
    while ranks run a test (pytest then captures nothing here). Code that is about to write makes
    pytest suspend capturing, and the line is cleared before that. The cursor stays where pytest
    left it, so that pytest continues its own line there.
    """

    def __init__(self, fd: int, config: pytest.Config, text: Callable[[int], str]) -> None:
        """fd: from `terminal_of`; it is closed at the end."""
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
        del self._capture.suspend_global_capture  # restores the method of the class
        self._over.set()
        self._thread.join()
        self._clear()
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(_GUARD_END_S)
            end_programs([self._guard])
        os.close(self._fd)

    @contextlib.contextmanager
    def may_show(self, may: bool) -> Iterator[None]:
        """Set, for a block, whether the line may be shown although pytest captures nothing."""
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
        full = written and written % columns == 0  # then the cursor's place depends on the terminal
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
        with contextlib.suppress(OSError):  # it is not this process's controlling terminal
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
            start_new_session=True,  # Ctrl-C must not reach it
        )


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
        self.running = ""
        """The test or function that ranks run now; "" if none."""
        self.awaited: Callable[[], str] = str
        """The ranks that the controller waits for now, as text."""
        self.asked = False
        """Whether the user sent ASK_SIGNAL while ranks run, and was not answered."""
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

    def shows_line(self, may: bool) -> contextlib.AbstractContextManager[None]:
        """Set, for a block, whether the live line may be shown although pytest captures nothing."""
        return contextlib.nullcontext() if self.line is None else self.line.may_show(may)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.running:
            self.asked = True
        else:  # not through Python's own files, which may be in the middle of a write
            self._write(["mnode: no rank runs a test of this process now"])

    def _write(self, lines: Sequence[str]) -> None:
        if self._stderr is not None:
            os.write(self._stderr, "".join(f"{line}\n" for line in lines).encode(errors="replace"))

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


_BAR_CELLS = 10
_LEAST_TEXT = 16
"""Least characters of the current action; the bar is left out if it leaves fewer."""
_CUT = "..."


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the running test.

    question: the criterion or the test; "" if `doing` names it. expected_s: duration in an earlier
    run. limit_s: duration at which the test is ended. awaited: the awaited ranks, as text.
    """

    question: str
    doing: str
    elapsed_s: float
    done: int | None = None
    total: int | None = None
    expected_s: float | None = None
    limit_s: float | None = None
    awaited: str = ""


def live_text(facts: Facts, width: int) -> str:
    """One line of at most `width` characters; `doing` is shortened first, then the end is cut."""
    head = f"{facts.question}: " if facts.question else ""
    tail = f", {_time(facts)}" + (f", waiting for {facts.awaited}" if facts.awaited else "")
    doing = "".join(c if c.isascii() and c.isprintable() else "?" for c in facts.doing)
    counted = bar = ""
    if facts.done is not None and facts.total:
        done = min(facts.done, facts.total)
        full = _BAR_CELLS * done // facts.total
        counted = f" {done} of {facts.total}"
        bar = f" [{'#' * full}{'.' * (_BAR_CELLS - full)}]"
    room = width - len(head) - len(tail)
    if room < min(len(doing), _LEAST_TEXT) + len(counted) + len(bar):
        bar = ""
    room -= len(counted) + len(bar)
    if len(doing) > room:
        doing = doing[: max(0, room - len(_CUT))] + _CUT
    return f"{head}{doing}{bar}{counted}{tail}"[:width]


def _time(facts: Facts) -> str:
    if facts.expected_s is not None:
        return f"{_clock(facts.elapsed_s)} of about {_clock(facts.expected_s)}"
    limit = "" if facts.limit_s is None else f", limit {_clock(facts.limit_s)}"
    return f"{_clock(facts.elapsed_s)}{limit}"


def _clock(seconds: float) -> str:
    """ "0:07", "12:34" or "1:02:03"."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


class LivePlugin:
    """pytest plugin of the process that has the terminal; keeps durations in pytest's cache.

    shape: nodes and ranks of the run, once they are known; durations are kept for each shape.
    limit_of: the limit of a test in ranks, in seconds; None of another test.
    """

    def __init__(
        self,
        config: pytest.Config,
        console: Console,
        shape: Callable[[], str],
        limit_of: Callable[[pytest.Item], float | None],
    ) -> None:
        self._config, self._console = config, console
        self._shape, self._limit_of = shape, limit_of
        self._cache: Any = getattr(config, "cache", None)  # None with -p no:cacheprovider
        self._durations_s: dict[str, float] = {}
        self._item: pytest.Item | None = None
        self._started_s = 0.0
        self._progress: tuple[str, int | None, int | None] = "", None, None
        self._announced = ""
        listen(self._announce)

    def _announce(self, text: str, *_: object) -> None:
        """Write a line about a wait before the first test, such as for a queue."""
        terminal: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if text != self._announced and getattr(terminal, "isatty", False):
            self._announced = text
            terminal.write_line(f"mnode: {text}")

    def pytest_unconfigure(self) -> None:
        ignore(self._announce)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        ignore(self._announce)
        fd = terminal_of(self._config)
        if fd is None:
            return (yield)
        listen(self._hear)
        try:
            with LiveLine(fd, self._config, self._text) as self._console.line:
                return (yield)
        finally:
            self._console.line = None
            ignore(self._hear)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        of_criterion = item.get_closest_marker("criterion") is not None
        if not (in_ranks(item) or of_criterion or marks.controller_fixtures(item)):
            return (yield)
        self._progress = "", None, None
        self._started_s, failed = time.monotonic(), item.session.testsfailed
        self._item = item
        try:
            result = yield
        finally:
            self._item = None
        took_s = time.monotonic() - self._started_s
        if took_s >= FIRST_S and item.session.testsfailed == failed:  # else cut short, or hung
            self._durations_s[item.nodeid] = round(took_s, 1)
        return result

    def pytest_sessionfinish(self) -> None:
        if self._durations_s and self._cache is not None:
            self._cache.set(self._key, self._read() | self._durations_s)

    @property
    def _key(self) -> str:
        return f"mnode/durations/{self._shape()}"

    @functools.cached_property
    def _known(self) -> dict[str, float]:
        """Durations of earlier runs, read once because pytest's cache is a file."""
        return self._read()

    def _read(self) -> dict[str, float]:
        known = None if self._cache is None else self._cache.get(self._key, None)
        return known if isinstance(known, dict) else {}

    def _hear(self, text: str, done: int | None, total: int | None) -> None:
        self._progress = (text, *(self._progress[1:] if total is None else (done, total)))

    def _text(self, width: int) -> str:
        """The line's text, called in its thread; "" if none."""
        item, elapsed_s = self._item, time.monotonic() - self._started_s
        if item is None or elapsed_s < FIRST_S:
            return ""
        doing, done, total = self._progress
        question = item.name if doing else ""
        if item.get_closest_marker("criterion") is not None:
            question = criterion_name(item.path.name)
        return live_text(
            Facts(
                question=question,
                doing=doing or item.name,
                elapsed_s=elapsed_s,
                done=done,
                total=total,
                expected_s=self._known.get(item.nodeid),
                limit_s=self._limit_of(item),
                awaited=self._console.awaited(),
            ),
            width,
        )

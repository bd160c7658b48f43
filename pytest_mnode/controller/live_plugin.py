"""The content of the live line: the running test, its elapsed time, its previous duration."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode import marks, progress
from pytest_mnode.certificate.results import criterion_name
from pytest_mnode.controller.console import FIRST_S, LiveLine, terminal_of
from pytest_mnode.other_plugins import in_ranks

if TYPE_CHECKING:
    from pytest_mnode.controller.session import Run


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
    """pytest plugin of the process that has the terminal; keeps durations in pytest's cache."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._cache: Any = getattr(run.config, "cache", None)  # None with -p no:cacheprovider
        self._durations_s: dict[str, float] = {}
        self._item: pytest.Item | None = None
        self._started_s = 0.0
        self._progress: tuple[str, int | None, int | None] = "", None, None
        self._announced = ""
        progress.listen(self._announce)

    def _announce(self, text: str, *_: object) -> None:
        """Write a line about a wait before the first test, such as for a queue."""
        terminal: Any = self._run.config.pluginmanager.getplugin("terminalreporter")
        if text != self._announced and getattr(terminal, "isatty", False):
            self._announced = text
            terminal.write_line(f"mnode: {text}")

    def pytest_unconfigure(self) -> None:
        progress.ignore(self._announce)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        progress.ignore(self._announce)
        fd = terminal_of(self._run.config)
        if fd is None:
            return (yield)
        progress.listen(self._hear)
        console = self._run.console
        try:
            with LiveLine(fd, self._run.config, self._text) as console.line:
                return (yield)
        finally:
            console.line = None
            progress.ignore(self._hear)

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
        return f"mnode/durations/{self._run.nodes}x{self._run.procs_per_node}"

    @functools.cached_property
    def _known(self) -> dict[str, float]:
        """Durations of earlier runs, read once because pytest's cache is a file."""
        return self._read()

    def _read(self) -> dict[str, float]:
        known = None if self._cache is None else self._cache.get(self._key, None)
        return known if isinstance(known, dict) else {}

    def _hear(self, text: str, done: int | None, total: int | None) -> None:
        self._progress = (text, *(self._progress[1:] if total is None else (done, total)))

    def _limit_of(self, item: pytest.Item) -> float | None:
        if in_ranks(item) and self._run.nodes is not None:
            # The mark's limit may be a function; its errors are reported as the test's failure.
            with contextlib.suppress(Exception):
                need = self._run.request_of(item)
                return self._run.seconds_of(need.timeout_s, need)
        return None

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
                awaited=self._run.console.awaited(),
            ),
            width,
        )

"""The content of the live line: the running test, its elapsed time, its previous duration."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode import marks, progress
from pytest_mnode.certificate.results import criterion_name
from pytest_mnode.controller.live_line import FIRST_S, LiveLine, terminal_of
from pytest_mnode.controller.live_text import Facts, live_text

if TYPE_CHECKING:
    from pytest_mnode.controller.session import Run


class LivePlugin:
    """pytest plugin of the process that has the terminal; keeps durations in pytest's cache."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._cache: Any = getattr(run.config, "cache", None)  # None with -p no:cacheprovider
        self._durations_s: dict[str, float] = {}
        self._failed: set[str] = set()
        self._item: pytest.Item | None = None
        self._started_s = 0.0
        self._limit_s: float | None = None
        self._expected_s: float | None = None
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
        in_ranks = marks.runs_in_ranks(item)
        of_criterion = item.get_closest_marker("criterion") is not None
        if not (in_ranks or of_criterion or marks.controller_fixtures(item)):
            return (yield)
        self._progress = "", None, None
        self._expected_s = self._known.get(item.nodeid)
        self._limit_s = None
        if in_ranks and self._run.nodes is not None:
            need = self._run.request_of(item)
            # The mark's limit may be a function; its errors are reported as the test's failure.
            with contextlib.suppress(Exception):
                self._limit_s = self._run.seconds_of(need.timeout_s, need)
        self._started_s = time.monotonic()
        self._item = item
        try:
            result = yield
        finally:
            self._item = None
        self._durations_s[item.nodeid] = round(time.monotonic() - self._started_s, 1)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Keep the durations of passed tests only, because others were cut short or hung."""
        took_s = {
            test: seconds
            for test, seconds in self._durations_s.items()
            if test not in self._failed and seconds >= FIRST_S
        }
        if took_s and self._cache is not None:
            self._cache.set(self._key, self._read() | took_s)

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
                expected_s=self._expected_s,
                limit_s=self._limit_s,
                awaited=self._run.console.awaited(),
            ),
            width,
        )

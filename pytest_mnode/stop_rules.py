"""Order of tests, and criteria that are not run because an earlier test failed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

import pytest

from pytest_mnode import marks

STOPS = "stops"
MARKER = (
    "stops('mesh', 'fabric', …, only_hung=False): when this test fails (only_hung: when it reaches "
    "its limit), tests of those criteria are not run and are inconclusive, with its finding as the "
    "reason. After one hang each of them is run if a small collective in its shape ends"
)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests in run order: `criterion(without_nodes=True)`, those with first=True, all others, and
    those with last=True.

    A test that uses `fabric_ports` comes last in its file: it judges what the others did.
    """

    def place(item: pytest.Item) -> int:
        mark = item.get_closest_marker("criterion")
        given = {} if mark is None else mark.kwargs
        if without_nodes(item):
            return 0
        return 1 if given.get("first", False) else 3 if given.get("last", False) else 2

    items = sorted(items, key=place)
    last = {item.path: index for index, item in enumerate(items)}
    placed = {
        item: (last[item.path], 1) if marks.asks_for(item, marks.PORTS_FIXTURE) else (index, 0)
        for index, item in enumerate(items)
    }
    return sorted(items, key=placed.__getitem__)


def without_nodes(item: pytest.Item) -> bool:
    """Whether a test is to run before the run holds nodes."""
    mark = item.get_closest_marker("criterion")
    return mark is not None and bool(mark.kwargs.get("without_nodes", False))


@dataclass(slots=True)
class _Finding:
    """Why a test failed, in one line. hung: whether it reached its limit."""

    text: str
    hung: bool


class StopRules:
    """pytest plugin: records failures of tests marked `stops`, and which tests they stop.

    A hang may be transient. After one hang each test that it would stop has a trial in its own
    shape, and runs if the trial ends. After a second hang, or two such trials that do not end,
    there are no trials: they do not show what makes tests hang.
    """

    def __init__(self) -> None:
        self.trial: Callable[[pytest.Item], str] | None = None
        """Returns why a test's trial did not end, "" if it did. None if no trial is possible."""
        self._stops: dict[str, list[pytest.Mark]] = {}
        self._found: dict[str, dict[str, _Finding]] = {}
        self._stopped: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._stops = {item.nodeid: list(item.iter_markers(STOPS)) for item in session.items}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hung = getattr(report, "mnode_hung", False)
        # An inconclusive test stops nothing; a hang may also occur in setup, as a group is created.
        counts = report.failed and (hung or report.when == "call")
        marks = self._stops.get(report.nodeid, ()) if counts else ()
        if stopped := stopped_by(marks, hung=hung):
            for criterion in stopped:
                found = _Finding(_shortened(_finding(report)), hung)
                self._found.setdefault(criterion, {})[report.nodeid] = found
        # Culprits come in a report after the failure.
        elif self._found and (culprits := _culprits(report)):
            for tests in self._found.values():
                if report.nodeid in tests:
                    tests[report.nodeid].text = _shortened(", ".join(culprits))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        return self.noted(item, (yield))

    def noted(self, item: pytest.Item, report: pytest.TestReport) -> pytest.TestReport:
        """The report, which says whether its test was stopped."""
        if report.failed and item.nodeid in self._stopped:
            report.mnode_stopped = True  # type: ignore[attr-defined]
        return report

    def stop_reason(self, item: pytest.Item) -> str | None:
        """Why this test is stopped by an earlier failure, in one line; None if it may run."""
        self._stopped.discard(item.nodeid)
        if not self._found or item.get_closest_marker("criterion") is None:
            return None
        from pytest_mnode.certificate.results import criterion_name

        criterion = criterion_name(item.path.name)  # outside the rootdir an id has no file
        found = dict(self._found.get(criterion, {}))
        found.pop(item.nodeid, None)
        if marks.asks_for(item, marks.PORTS_FIXTURE):  # it explains hangs in its own criterion
            found = {test: why for test, why in found.items() if criterion_name(test) != criterion}
        if not found:
            return None
        still = ""
        hung = [finding.hung for finding in found.values()]
        if self.trial is not None and marks.takes_nodes(item) and hung == [True]:
            still = self.trial(item)
            if not still:
                return None
        first, finding = next(iter(found.items()))
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        tried = f"; trial collective after it: {still}" if still else ""
        self._stopped.add(item.nodeid)
        return f"not run: {criterion_name(first)} failed ({finding.text}){more}{tried}"


def _shortened(text: str) -> str:
    from pytest_mnode.certificate.text import first_line

    return first_line(text, 300)


def stopped_by(found: Iterable[pytest.Mark], *, hung: bool = False) -> tuple[str, ...]:
    """Names of the criteria that these `stops` marks name, each once."""
    counting = [mark for mark in found if hung or not mark.kwargs.get("only_hung", False)]
    return tuple(dict.fromkeys(str(name) for mark in counting for name in mark.args))


def _culprits(report: pytest.TestReport) -> list[str]:
    """Culprits of the failed measurements, which come with a test's last report."""
    measured = getattr(report, "mnode", {}).get("measurements", ())
    named = (m["culprit"] for m in measured if m["verdict"] == "fail" and m["culprit"])
    return list(dict.fromkeys(named))


def _finding(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message) if crash is not None else report.longreprtext
    return text.removeprefix("Failed: ")

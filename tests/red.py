"""Red runs: runs of the acceptance suite on nodes with a fault.

Their tests name the cases that the fault turns red by `turns_red`, and fail unless each of them
failed in a certificate of their runs. Runs that were repeated are listed at the end of a session,
and more than a few fail it: a verdict that depends on other work on the cores is no verdict.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any, Protocol

import pytest

MOST_REPEATS = 2
MORE_REPEATS = 10
"""Exit status: the same tests run again would not mend it."""
_MARK, _REPEATED = "turns_red", "repeated red run"


class _Run(Protocol):
    @property
    def certificate(self) -> Mapping[str, Any]: ...


_runs: list[_Run] = []
"""Runs of this process that wrote a certificate, in their order."""
_repeats: list[str] = []
"""Why runs were repeated for the test that is running."""


def turns_red(file: str, *tests: str) -> pytest.MarkDecorator:
    """Mark of a test whose runs turn these tests of acceptance/test_`file`.py red."""
    mark: pytest.MarkDecorator = getattr(pytest.mark, _MARK)
    return mark(*(f"{file}::{test}" for test in tests))


def claimed(test: object) -> set[str]:
    """Cases that a test claims to turn red, such as "mesh::test_sum_is_right"."""
    return _named(getattr(test, "pytestmark", ()))


def register(run: _Run) -> None:
    """Let the test that is running prove its claim by this run."""
    _runs.append(run)


def register_repeat(why: str) -> None:
    """Count one more run for the test that is running."""
    _repeats.append(why)


def failed(certificate: Mapping[str, Any]) -> set[str]:
    """Failed cases of a certificate, without their parameters."""
    return {
        case_name(case["test"])
        for criterion in certificate["criteria"]
        for case in criterion["cases"]
        if case["verdict"] == "fail"
    }


def case_name(test: str) -> str:
    """acceptance/test_mesh.py::test_sum_is_right[4] is mesh::test_sum_is_right."""
    file, _, case = test.partition("[")[0].partition("::")
    return f"{file.rpartition('/')[2].removeprefix('test_').removesuffix('.py')}::{case}"


class RedRuns:
    """pytest plugin that proves claims and counts repeats, of all workers in the controller."""

    def __init__(self) -> None:
        self._repeats: list[str] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", f"{_MARK}(case, …): see tests/red.py")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Generator[None, object, object]:
        """Fail a test with a claim that its runs, or those of its fixtures, do not prove."""
        first = len(_runs)
        result = yield
        if missing := _named(item.iter_markers()):
            given = {id(value) for value in item.funcargs.values()}
            earlier = [run for run in _runs[:first] if id(run) in given]
            for run in (*earlier, *_runs[first:]):
                missing -= failed(run.certificate)
            assert not missing, f"these cases did not fail: {', '.join(sorted(missing))}"
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        item.user_properties += [(_REPEATED, f"{item.name}: {why}") for why in _repeats]
        _repeats.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._repeats += [str(why) for name, why in report.user_properties if name == _REPEATED]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._repeats:
            terminalreporter.section(
                f"{len(self._repeats)} red runs repeated, at most {MOST_REPEATS}"
            )
            for why in self._repeats:
                terminalreporter.write_line(why)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if len(self._repeats) > MOST_REPEATS:
            session.exitstatus = MORE_REPEATS


def _named(marks: Iterable[pytest.Mark]) -> set[str]:
    return {case for mark in marks if mark.name == _MARK for case in mark.args}

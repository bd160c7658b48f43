"""No test for ranks ends without a report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode import marks
from pytest_mnode.controller import rank_tests
from pytest_mnode.controller.rank_tests import Guard

ONE = SimpleNamespace(nodeid="a.py::test_a")


def run(guard: Guard, monkeypatch: pytest.MonkeyPatch, *, ranks: bool, reported: bool) -> list[str]:
    """Errors that are reported of a test after its protocol."""
    monkeypatch.setattr(rank_tests, "in_ranks", lambda _: ranks)
    monkeypatch.setattr(rank_tests, "error_report", lambda _, text: text)
    monkeypatch.setattr(rank_tests, "other_loops", lambda _: ["rerun", "flaky"])
    errors: list[str] = []

    def logreport(report: str) -> None:
        errors.append(report)

    hook = SimpleNamespace(pytest_runtest_logreport=logreport)
    item: Any = SimpleNamespace(**vars(ONE), ihook=hook, config=SimpleNamespace(pluginmanager=None))
    protocol = guard.pytest_runtest_protocol(item)
    next(protocol)
    if reported:
        report: Any = ONE
        guard.pytest_runtest_logreport(report)
    with pytest.raises(StopIteration) as ended:
        protocol.send(True)
    assert ended.value.value is True
    return errors


def test_a_test_for_ranks_without_a_report_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard()
    assert run(guard, monkeypatch, ranks=True, reported=True) == []
    assert run(guard, monkeypatch, ranks=False, reported=False) == []
    [error] = run(guard, monkeypatch, ranks=True, reported=False)  # of its second run
    assert "rerun, flaky may have suppressed it" in error


@pytest.mark.parametrize(
    ("status", "facts", "missing"),
    [
        (0, {}, ["a.py::test_b"]),
        (1, {}, []),
        (0, {"shouldstop": "-x"}, []),
        (0, {"shouldfail": "--maxfail"}, []),
        (0, {"config": SimpleNamespace(workerinput={})}, []),
    ],
)
def test_a_selected_test_that_never_ran_fails_a_run_that_was_not_stopped(
    status: int, facts: dict[str, Any], missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "runs_in_ranks", lambda item: item.nodeid[-1] in "ab")
    guard, report = Guard(), ONE
    guard.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    session: Any = SimpleNamespace(shouldstop="", shouldfail="", config=object(), exitstatus=status)
    session.items = [SimpleNamespace(nodeid=f"a.py::test_{name}") for name in "abc"]
    vars(session).update(facts)
    guard.pytest_sessionfinish(session, status)
    lines: list[str] = []
    guard.pytest_terminal_summary(SimpleNamespace(write_line=lambda line, red: lines.append(line)))
    assert [line.split()[1] for line in lines] == missing
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if missing else status)


def test_lines_of_ranks_are_not_in_testmons_record(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard()
    run(guard, monkeypatch, ranks=True, reported=True)
    lines = {"a.py::test_a": 1, "b.py::test_b": 2}
    report: Any = SimpleNamespace(**vars(ONE), nodes_files_lines=lines)
    guard.pytest_runtest_logreport(report)
    assert lines == {"b.py::test_b": 2}

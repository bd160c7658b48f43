"""pytest plugins of the controller for tests in ranks.

Both are registered when collection has ended, so that they come before all other plugins.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode import marks
from pytest_mnode.other_plugins import other_loops

if TYPE_CHECKING:
    from pytest_mnode.controller.item_runner import ItemRunner
    from pytest_mnode.controller.session import Run
    from pytest_mnode.stop_rules import StopRules


class RankTests:
    """pytest plugin: runs tests in ranks, and reports their outcomes."""

    def __init__(self, run: Run, stop_rules: StopRules) -> None:
        from pytest_mnode.controller.held_worlds import HeldWorlds

        self.run = run
        self.held_worlds = HeldWorlds(run)
        self._stop_rules = stop_rules
        self._runner: ItemRunner | None = None

    def pytest_report_collectionfinish(
        self, config: pytest.Config, items: Sequence[pytest.Item]
    ) -> list[str]:
        names = ", ".join(n for n in other_loops(config.pluginmanager) if _is_used(n, items))
        return [f"mnode: tests in ranks run once each: {names} cannot repeat them"] if names else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if not marks.runs_in_ranks(item) or marks.contradiction(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if item.config.getoption("setupshow", False):
            _show_fixtures(item)
        from pytest_mnode.report_record import error_report

        missing = self._stop_rules.missing_for(item)
        reports = [error_report(item, missing)] if missing else self._run_item(item, nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        if self._runner is not None and self._runner.quits:
            pytest.exit("Quitting debugger")
        _end_what_is_over(item, nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run_item(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        from pytest_mnode.controller.item_runner import ItemRunner

        if self._runner is None:
            self._runner = ItemRunner(self.run, self.held_worlds)
        return self._runner.run(item, nextitem)


class Guard:
    """pytest plugin: a test for ranks without a report is an error."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._never_begun: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reported.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._reported.discard(item.nodeid)
        result = yield
        if marks.runs_in_ranks(item) and item.nodeid not in self._reported:
            from pytest_mnode.report_record import error_report

            text = f"no report of this test came: {_takers(item.config)} may have taken it away"
            item.ihook.pytest_runtest_logreport(report=error_report(item, text))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        stopped = session.shouldstop or session.shouldfail or hasattr(session.config, "workerinput")
        if exitstatus != pytest.ExitCode.OK or stopped:
            return
        ranks = [item.nodeid for item in session.items if marks.runs_in_ranks(item)]
        if missing := [nodeid for nodeid in ranks if nodeid not in self._reported]:
            self._never_begun = missing
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for nodeid in self._never_begun:
            terminalreporter.write_line(f"mnode: {nodeid} was selected and never ran", red=True)


def _is_used(plugin: str, items: Sequence[pytest.Item]) -> bool:
    """False for pytest-rerunfailures where no test is to be run again; of others it is unknown."""
    if plugin != "rerunfailures" or not items:
        return True
    config = items[0].config
    asked = [config.getoption(name, None) for name in ("reruns", "force_reruns")]
    marked = any(item.get_closest_marker("flaky") for item in items)
    return marked or any(asked) or bool(config.inicfg.get("reruns"))


def _takers(config: pytest.Config) -> str:
    return ", ".join(other_loops(config.pluginmanager)) or "another plugin"


def _end_what_is_over(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A test of this process may have left modules and fixtures for those that come after it.

    They wait while tests run in ranks, which use none of them, and end with the last that could.
    """
    state = item.session._setupstate
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    if call.excinfo is not None:
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        item.ihook.pytest_runtest_logreport(report=report)


def _show_fixtures(item: pytest.Item) -> None:
    """With --setup-show: the fixtures of a test that ranks set up, in pytest's own form."""
    if item.config.pluginmanager.has_plugin("terminalreporter"):
        writer = item.config.get_terminal_writer()
        names = ", ".join(sorted(marks.fixture_names(item)))
        writer.line()
        writer.write(f"        {item.nodeid} in ranks (fixtures used: {names})")

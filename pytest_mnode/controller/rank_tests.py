"""pytest plugins of the controller for tests in ranks, registered when collection has ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode import marks
from pytest_mnode.controller import of_plugins
from pytest_mnode.other_plugins import OF_RANKS, in_ranks, other_loops
from pytest_mnode.outcome.added import give_added
from pytest_mnode.report_record import error_report, is_further, raised_by

if TYPE_CHECKING:
    from pytest_mnode.controller.item_runner import ItemRunner
    from pytest_mnode.controller.session import Run
    from pytest_mnode.stop_rules import StopRules


class RankTests:
    """pytest plugin: executes setup, body and teardown of tests in their ranks.

    Every plugin that runs a test, once or several times, runs pytest's own protocol: its setup
    runs the test in ranks from setup to teardown, and each phase returns its merged report.
    """

    def __init__(self, run: Run, stop_rules: StopRules) -> None:
        from pytest_mnode.controller.held_worlds import HeldWorlds

        self.run = run
        self.held_worlds = HeldWorlds(run)
        self._stop_rules = stop_rules
        self._pid = os.getpid()
        self._runner: ItemRunner | None = None
        self._next: pytest.Item | None = None
        self._reports: dict[str, pytest.TestReport] = {}
        """Reports of the running test by phase, without those already returned to pytest."""
        self._further: list[pytest.TestReport] = []
        self._raised: BaseException | None = None
        self._times = 0.0, 0.0
        """When the test began and ended, in seconds since 1970."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, Any, Any]:
        self._next = nextitem
        result = yield
        if self._runner is not None and (nextitem is None or nextitem.path != item.path):
            further = self._runner.only_in_ranks(item)
            if further and hasattr(item.config, "workerinput"):
                text = (
                    f"{', '.join(test.nodeid for test in further)}: only ranks have it; "
                    "pytest-xdist runs no test that it did not collect: run this file without it"
                )
                report = error_report(item, text, "teardown")
                item.ihook.pytest_runtest_logreport(report=report)
                return result
            for test in further:
                if not (item.session.shouldstop or item.session.shouldfail):
                    test.ihook.pytest_runtest_protocol(item=test, nextitem=nextitem)
        return result

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not in_ranks(item):
            return
        item.stash[marks.RUNS] = item.stash.get(marks.RUNS, 0) + 1
        run, missing = self.run, self._out_of_reach() or self._stop_rules.stop_reason(item)
        missing = missing or marks.too_many_nodes(item, run.settings, run.nodes)
        reports = (
            [self._stop_rules.noted(item, error_report(item, missing))]
            if missing
            else self._run_item(item)
        )
        self._further = [report for report in reports if is_further(report)]
        self._reports = {str(r.when): r for r in reports if not is_further(r)}
        own = self._reports.values()
        if not own:
            self._quit_if_asked()
        self._times = min(r.start for r in own), max(r.stop for r in own)
        self._end_as("setup")

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        if in_ranks(item):
            self._end_as("call")

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if in_ranks(item):
            _end_what_is_over(item, nextitem)
            of_plugins.set_times(item.config, *self._times)
            self._quit_if_asked()
            self._end_as("teardown")

    def _quit_if_asked(self) -> None:
        """End the run if the user ended it from the debugger."""
        if self._runner is not None and self._runner.quits:
            pytest.exit("Quitting debugger")

    def _out_of_reach(self) -> str:
        """Why ranks cannot be reached from this thread or process; "" if they can."""
        here = "a thread" if threading.current_thread() is not threading.main_thread() else ""
        here = "a child process" if os.getpid() != self._pid else here
        return here and (
            f"a plugin runs this test in {here} of its own, where its ranks cannot be reached: "
            "run tests in ranks without that plugin"
        )

    def _end_as(self, when: str) -> None:
        """Raise the ranks' error of this phase, so that other plugins see it."""
        if (report := self._reports.get(when)) is not None and not report.passed:
            self._raised = raised_by(report)
            setattr(self._raised, OF_RANKS, report.longrepr)
            raise self._raised

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> pytest.TestReport | None:
        if not in_ranks(item):
            return None
        if call.excinfo is not None and call.excinfo.errisinstance(KeyboardInterrupt):
            raise call.excinfo.value  # with --pdb, pytest would report it as the test's error
        report = self._reports.pop(call.when, None)
        for further in self._further if call.when != "setup" else ():
            item.ihook.pytest_runtest_logreport(report=further)
        self._further = self._further if call.when == "setup" else []
        if call.excinfo is not None and call.excinfo.value is not self._raised:
            return pytest.TestReport.from_item_and_call(item, call)  # another plugin raised it
        runs_body = not item.config.getoption("setuponly", False)
        if report is None and call.when == "call" and runs_body:
            return error_report(item, "its ranks sent no report of the body of this test")
        return report or pytest.TestReport.from_item_and_call(item, call)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        of_plugins.keep_benchmarks(self.run.config, report)

    def _run_item(self, item: pytest.Item) -> list[pytest.TestReport]:
        from pytest_mnode.controller.item_runner import ItemRunner

        if self._runner is None:
            self._runner = ItemRunner(self.run, self.held_worlds)
        return self._runner.run(item, self._next)


class Guard:
    """pytest plugin: makes a test for ranks that has no report an error."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self._of_ranks: set[str] = set()
        self._never_begun: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reported.add(report.nodeid)
        give_added(report)
        # testmon's record of lines, without those of ranks: it then runs these tests always.
        lines = getattr(report, "nodes_files_lines", None) or {}
        for nodeid in self._of_ranks & lines.keys():
            del lines[nodeid]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._reported.discard(item.nodeid)
        if marks.runs_in_ranks(item):
            self._of_ranks.add(item.nodeid)
        result = yield
        if marks.runs_in_ranks(item) and item.nodeid not in self._reported:
            text = (
                f"pytest received no report of this test; {_takers(item.config)} may have "
                "suppressed it"
            )
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
            terminalreporter.write_line(f"mnode: {nodeid} was selected but never ran", red=True)


def _takers(config: pytest.Config) -> str:
    return ", ".join(other_loops(config.pluginmanager)) or "another plugin"


def _end_what_is_over(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tear down modules and fixtures that earlier tests left and that `nextitem` does not use.

    They stay while tests run in ranks, which use none of them, until no later test can use them.
    """
    state = item.session._setupstate
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    if call.excinfo is not None:
        report = pytest.TestReport.from_item_and_call(item, call)
        item.ihook.pytest_runtest_logreport(report=report)

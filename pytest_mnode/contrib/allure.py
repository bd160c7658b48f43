"""allure-pytest: one result per test, with a step per rank that holds the rank's own result.

A rank's results are kept in memory and sent to the controller instead of being written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.contrib import Given, Take
from pytest_mnode.outcome.outcome import Outcome

NAME = "allure"
_LISTENER = "allure_listener"


def pytest_mnode_in_rank(config: pytest.Config, given: Given) -> tuple[str, Take] | None:
    """Keep allure's results of this rank's tests, if the controller wants any."""
    if not given("allure_report_dir") or not config.pluginmanager.hasplugin("allure_pytest"):
        return None
    import allure_commons  # type: ignore[import-not-found]
    from allure_commons.logger import AllureMemoryLogger  # type: ignore[import-not-found]
    from allure_pytest.listener import AllureListener  # type: ignore[import-not-found]

    class Memory(AllureMemoryLogger):  # type: ignore[misc]
        @allure_commons.hookimpl  # type: ignore[untyped-decorator]
        def report_attached_file(self, source: str, file_name: str) -> None:
            self.attachments[file_name] = Path(source).read_bytes()

    listener, memory = AllureListener(config), Memory()
    config.pluginmanager.register(listener, "allure_listener")
    allure_commons.plugin_manager.register(listener)
    allure_commons.plugin_manager.register(memory)

    def take() -> dict[str, Any]:
        """Results since the last call, in the form of allure's own files, and their attachments."""
        taken = {"results": list(memory.test_cases), "attachments": dict(memory.attachments)}
        memory.test_cases.clear()
        memory.test_containers.clear()
        memory.attachments.clear()
        return taken

    return NAME, take


class OfRanks:
    """pytest plugin of the controller."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._times: tuple[float, float] | None = None
        """When the ranks of the running test began and ended, in seconds since 1970."""

    def pytest_mnode_of_ranks(self, nodeid: str, outcome: Outcome) -> None:
        """Add a step for each rank to the result of the running test."""
        test = self._logger.get_test(None)
        if test is None or not nodeid:
            return
        phases = [report.data for s in outcome.states.values() for report in s.reports.values()]
        start = min((one["start"] for one in phases), default=outcome.started)
        self._times = start, max((one["stop"] for one in phases), default=outcome.stopped)
        import allure_commons
        from allure_commons.model2 import Status, TestStepResult  # type: ignore[import-not-found]

        for rank, state in outcome.states.items():
            step = TestStepResult(
                name=f"rank {rank} on {state.node}",
                status=Status.BROKEN,  # stays if the rank sent no result
                start=int(outcome.started * 1000),
                stop=int(outcome.stopped * 1000),
            )
            sent = state.data.get(NAME) or {}
            for result in sent.get("results", ()):
                of_step = ("status", "statusDetails", "steps", "attachments", "start", "stop")
                for name in (name for name in of_step if name in result):
                    setattr(step, name, result[name])
            for name, body in sent.get("attachments", {}).items():
                allure_commons.plugin_manager.hook.report_attached_data(body=body, file_name=name)
            test.steps.append(step)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set the test's times, after the body, of which allure notes those in this process."""
        if report.when != "teardown" or self._times is None:
            return
        if (test := self._logger.get_test(None)) is not None:
            test.start, test.stop = (int(at * 1000) for at in self._times)
        self._times = None


def in_controller(config: pytest.Config) -> OfRanks | None:
    listener: Any = config.pluginmanager.getplugin(_LISTENER)
    return None if listener is None else OfRanks(listener.allure_logger)

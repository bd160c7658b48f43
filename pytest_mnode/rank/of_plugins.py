"""Data of other plugins in a rank: started in the rank's process, and taken after each test.

allure-pytest: a rank's results of a test are sent to the controller instead of being written.

pytest-benchmark: one calibration for all ranks, and the results of each. The number of calls of a
function depends on measured times, which differ between ranks, so a body with collectives would
hang. Therefore the ranks agree on each of these times.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.protocol.hub_messages import Collect
from pytest_mnode.rank import coverage_plugin
from pytest_mnode.rank.rank import Rank

RESULTS = "mnode_benchmarks"
"""Attribute of a report that holds its benchmark results."""
_ALLURE = "mnode-rank-allure"
_NONE = pickle.dumps(None)


def start(config: pytest.Config, rank: Rank, collect: Collect) -> None:
    _start_allure(config, bool(pickle.loads(collect.options.get("allure_report_dir", _NONE))))
    _start_benchmark(config, rank)
    coverage_plugin.start(config, rank.files, collect.coverage)


def taken(config: pytest.Config) -> dict[str, Any]:
    """Fields of TornDown; a field is None if its plugin is not in use."""
    allure: Any = config.pluginmanager.getplugin(_ALLURE)
    return {
        "coverage": coverage_plugin.measured(config),
        "allure": None if allure is None else allure.take(),
    }


def _start_allure(config: pytest.Config, wanted: bool) -> None:
    """Keep allure's results of this rank's tests in memory, if `wanted`."""
    if not wanted or not config.pluginmanager.hasplugin("allure_pytest"):
        return
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
    config.pluginmanager.register(_AllureResults(memory), _ALLURE)


class _AllureResults:
    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def take(self) -> dict[str, Any]:
        """Results since the last call, in the form of allure's own files, and their attachments."""
        memory = self._memory
        taken = {"results": list(memory.test_cases), "attachments": dict(memory.attachments)}
        memory.test_cases.clear()
        memory.test_containers.clear()
        memory.attachments.clear()
        return taken


def _start_benchmark(config: pytest.Config, rank: Rank) -> None:
    """If the plugin is installed, make its fixture use the same times in all ranks."""
    if not hasattr(config, "_benchmarksession"):
        return
    from pytest_benchmark import fixture  # type: ignore[import-not-found]

    if rank.world.size > 1:
        _agree_on_times(fixture, lambda own: rank.votes.on("benchmark").agree(own, max))
    config.pluginmanager.register(_BenchmarkResults(rank), "mnode-rank-benchmarks")


def _agree_on_times(fixture: Any, greatest: Callable[[float], float]) -> None:
    kind = fixture.BenchmarkFixture
    precision_of, calibrate = kind._get_precision, kind._calibrate_timer
    until_precise: Any = getattr(kind, "_run_until_precise", None)

    def calibrate_together(self: Any, runner: Any) -> Any:
        own, fixture.time = fixture.time, SimpleNamespace(time=lambda: greatest(time.time()))
        try:
            return calibrate(self, lambda loops: greatest(runner(loops)))
        finally:
            fixture.time = own

    def until_all_are_precise(self: Any, runner: Any, *args: Any) -> Any:
        return until_precise(self, lambda loops: greatest(runner(loops)), *args)

    kind._get_precision = lambda self, timer: greatest(precision_of(self, timer))
    kind._calibrate_timer = calibrate_together
    if until_precise is not None:
        kind._run_until_precise = until_all_are_precise


class _BenchmarkResults:
    """pytest plugin: adds the results of a test to its report."""

    def __init__(self, rank: Rank) -> None:
        self._place = {"rank": rank.world.rank, "node": rank.world.node}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        used: Any = (getattr(item, "funcargs", None) or {}).get("benchmark")
        if call.when == "call" and report.passed and getattr(used, "stats", None):
            result = used.stats.as_dict(include_data=True)
            setattr(report, RESULTS, [{**result, "place": self._place}])
        return report

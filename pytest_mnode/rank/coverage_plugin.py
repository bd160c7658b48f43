"""Measures the coverage of tests in a rank, by coverage.py, as the controller does.

A rank is ended from outside, so coverage.py could never save its data there: after each test, new
data are sent to the controller with the rank's last report. Programs that a test starts, and
children that it forks, are measured if `patch` in coverage's configuration requests it; their
files are in a directory of this rank and are sent in the same way.
"""

from __future__ import annotations

import contextlib
import os
import sysconfig
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.protocol.rank_files import RankFiles
from pytest_mnode.protocol.rank_messages import CoverageData

_QUIET = ("no-data-collected", "module-not-imported", "module-not-measured", "already-imported")
"""Warnings of coverage.py about a process that measured little, which any rank may be."""
PLUGIN = "mnode-rank-coverage"


class RankCoverage:
    """pytest plugin that measures a rank; created in the rank's own process."""

    def __init__(self, config_data: str, directory: Path, by_test: bool) -> None:
        """config_data: configuration of the controller's coverage. by_test: a context per test."""
        from coverage import Coverage  # type: ignore[import-not-found]

        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._by_test = directory, by_test
        self._cov = Coverage(
            data_file=str(directory / ".coverage"), config_file=f":data:{config_data}"
        )
        quiet = [*(self._cov.get_option("run:disable_warnings") or ()), *_QUIET]
        self._cov.set_option("run:disable_warnings", quiet)
        self._cov.start()
        self._data = self._cov.get_data()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self._switch(f"{item.nodeid}|setup")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        self._switch(f"{item.nodeid}|run")
        if not (item.get_closest_marker("no_cover") or "no_cover" in item.fixturenames):  # type: ignore[attr-defined]
            return (yield)
        self._cov.stop()
        try:
            return (yield)
        finally:
            self._cov.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        self._switch(f"{item.nodeid}|teardown")
        return (yield)

    def _switch(self, context: str) -> None:
        if self._by_test:
            self._cov.switch_context(context)

    def take(self) -> CoverageData:
        """Coverage measured since the last call by this process and by processes that ended."""
        from coverage import CoverageData as Data

        if self._cov.get_option("run:dynamic_context"):
            self._cov.get_data()  # flushes the collected data, and looks for files that did not run
        else:
            self._cov.switch_context("")  # flushes the collected data
        dumps = [self._data.dumps()] if self._data else []
        self._data.erase()
        for path in sorted(self._directory.glob(".coverage.*")):
            with contextlib.suppress(Exception):  # incomplete if its process was killed
                other = Data(str(path))
                other.read()
                dumps.append(other.dumps())
                other.close()
            path.unlink(missing_ok=True)
        return CoverageData(tuple(dumps), sysconfig.get_path("purelib"))


class _Unmeasured:
    """Replaces RankCoverage if a rank cannot measure."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def take(self) -> CoverageData:
        return CoverageData(problem=self._problem)


def start(config: pytest.Config, files: RankFiles, config_data: str) -> None:
    """Measure this rank from now on; do nothing if `config_data` is ""."""
    if not config_data:
        return
    plugin: RankCoverage | _Unmeasured
    by_test = config.getoption("cov_context", None) == "test"
    try:
        plugin = RankCoverage(config_data, files.coverage, by_test)
    except Exception as error:  # this node's Python may lack coverage.py, or have another release
        plugin = _Unmeasured(f"{os.uname().nodename}: {type(error).__name__}: {error}")
    config.pluginmanager.register(plugin, PLUGIN)


def measured(config: pytest.Config) -> CoverageData | None:
    """The new coverage data of a rank with this configuration; None if it does not measure."""
    plugin: Any = config.pluginmanager.getplugin(PLUGIN)
    return None if plugin is None else plugin.take()

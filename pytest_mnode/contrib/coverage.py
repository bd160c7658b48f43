"""coverage: measures ranks as the controller is measured, and adds their data to its own.

A rank is ended from outside, so coverage could never save its data there: after each test, new
data are sent to the controller with the rank's last report. Programs that a test starts, and
children that it forks, are measured if `patch` in coverage's configuration requests it; their
files are in a directory of this rank and are sent in the same way.

The controller's coverage may be pytest-cov's, also in a pytest-xdist worker, or `coverage run`. It
decides what is measured, and combines, maps and reports the ranks' data with its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.contrib import Given, Take
from pytest_mnode.outcome.outcome import Outcome

if TYPE_CHECKING:
    from pytest_mnode.rank.rank import Rank  # imports torch

NAME = "coverage"
_OPTION = "mnode_coverage"
"""Attribute of pytest's options that takes the configuration of coverage to ranks."""
_TOO_OLD = "coverage of ranks is not measured: it needs coverage 7.10.6 or later, and this is {}"
_QUIET = ("no-data-collected", "module-not-imported", "module-not-measured", "already-imported")
"""Warnings of coverage about a process that measured little, which any rank may be."""


@dataclass(frozen=True)
class Measured:
    """The coverage measured in a rank since the last call of `take`, as coverage dumps its data.

    site: directory of the rank's installed Python packages. problem: why nothing was measured.
    """

    dumps: tuple[bytes, ...] = ()
    site: str = ""
    problem: str = ""


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

    def take(self) -> Measured:
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
        return Measured(tuple(dumps), sysconfig.get_path("purelib"))


def pytest_mnode_in_rank(
    config: pytest.Config, rank: Rank, given: Given
) -> tuple[str, Take] | None:
    """Measure this rank from now on, if the controller measures itself."""
    if not (config_data := given(_OPTION)):
        return None
    by_test = config.getoption("cov_context", None) == "test"
    try:
        plugin = RankCoverage(config_data, rank.files.coverage, by_test)
    except Exception as error:  # this node's Python may lack coverage, or have another release
        lost = Measured(problem=f"{os.uname().nodename}: {type(error).__name__}: {error}")
        return NAME, lambda: lost
    config.pluginmanager.register(plugin, "mnode-rank-coverage")
    return NAME, plugin.take


def in_controller(config: pytest.Config) -> RanksCoverage | None:
    """If coverage measures this process, have it measure ranks."""
    coverage = sys.modules.get("coverage")
    if coverage is None or (cov := coverage.Coverage.current()) is None:
        return None
    made = RanksCoverage(cov, config)
    setattr(config.option, _OPTION, made.config_data)
    return made


class RanksCoverage:
    """pytest plugin of a process that measures its own coverage and has tests in ranks."""

    def __init__(self, cov: Any, config: pytest.Config) -> None:
        from coverage import CoverageData as Data

        from pytest_mnode.controller.rank_reports import Warner  # of no use in ranks

        self._cov, self._warner, self._root = cov, Warner(config), str(config.rootpath)
        self._data = Data(no_disk=True)

    @property
    def config_data(self) -> str:
        """The serialized configuration for ranks; "" if this release cannot serialize it."""
        if not hasattr(self._cov.config, "serialize"):
            import coverage

            self._warn(_TOO_OLD.format(coverage.__version__), "")
            return ""
        return str(self._cov.config.serialize())

    def pytest_mnode_of_ranks(self, nodeid: str, outcome: Outcome) -> None:
        """Keep the coverage data of a test's ranks, and warn which ranks' data are lost."""
        sent = {rank: state.data.get(NAME) for rank, state in outcome.states.items()}
        lost = [rank for rank, data in sent.items() if data is None]
        if lost:
            who = outcome.places(lost)
            self._warn(
                f"coverage lacks data of {who} for this test, which did not end there", nodeid
            )
        have = [data for data in sent.values() if data is not None]
        problems = [data.problem for data in have if data.problem]
        try:
            self._add(have)
        except Exception as error:  # data of another coverage release, or of another kind
            problems.append(str(error))
        for problem in dict.fromkeys(problems):
            self._warn(f"coverage lacks data of ranks for this test: {problem}", nodeid)

    def _add(self, sent: Iterable[Measured]) -> None:
        from coverage import CoverageData as Data

        taken: set[bytes] = set()
        for data in sent:
            for dump in data.dumps:
                if dump in taken:  # most ranks run the same lines
                    continue
                taken.add(dump)
                one = Data(no_disk=True)
                one.loads(dump)
                self._data.update(one, map_path=lambda path, site=data.site: mapped(path, site))

    def _warn(self, text: str, nodeid: str) -> None:
        self._warner.warn(b"", text, self._root, 0, "runtest", nodeid, None)

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside pytest-cov's wrapper, which then reports
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self._cov.get_data().update(self._data)


def mapped(path: str, site: str) -> str:
    """This machine's path of a rank's file. site: the rank's directory of Python packages."""
    here = sysconfig.get_path("purelib")
    if site == here or not Path(path).is_relative_to(site):
        return path
    return str(Path(here, Path(path).relative_to(site)))

"""Adds the coverage of ranks to the data that coverage.py measures in this process.

This process's coverage may be pytest-cov's, also in a pytest-xdist worker, or `coverage run`. It
decides what is measured, and combines, maps and reports the ranks' data with its own.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.controller.rank_reports import Warner
from pytest_mnode.outcome.outcome import Outcome, RankState
from pytest_mnode.protocol.rank_messages import CoverageData

_TOO_OLD = "coverage of ranks is not measured: it needs coverage 7.10.6 or later, and this is {}"


class RanksCoverage:
    """pytest plugin of a process that measures its own coverage and has tests in ranks."""

    def __init__(self, cov: Any, config: pytest.Config) -> None:
        from coverage import CoverageData as Data  # type: ignore[import-not-found]

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

    def take(self, nodeid: str, outcome: Outcome) -> None:
        """Keep the coverage data of a test's ranks, and warn which ranks' data are lost."""
        sent = {rank: _of(state) for rank, state in outcome.states.items()}
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

    def _add(self, sent: Iterable[CoverageData]) -> None:
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


def make(config: pytest.Config) -> RanksCoverage | None:
    """A plugin, registered with pytest, if coverage measures this process; else None."""
    coverage: Any = sys.modules.get("coverage")
    cov = coverage.Coverage.current() if coverage is not None else None
    if cov is None:
        return None
    made = RanksCoverage(cov, config)
    config.pluginmanager.register(made, "mnode-coverage")
    return made


def mapped(path: str, site: str) -> str:
    """This machine's path of a rank's file. site: the rank's directory of Python packages."""
    here = sysconfig.get_path("purelib")
    if site == here or not Path(path).is_relative_to(site):
        return path
    return str(Path(here, Path(path).relative_to(site)))


def _of(state: RankState) -> CoverageData | None:
    last = state.torn_down or state.returned
    return last.coverage if last is not None else None

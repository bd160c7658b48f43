"""pytest-benchmark: one calibration for all ranks, and the results of each.

The number of calls of a function depends on measured times, which differ between ranks, so a body
with collectives would hang. Therefore the ranks agree on each of these times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_mnode.rank.rank import Rank  # imports torch

RESULTS = "mnode_benchmarks"
"""Attribute of a report that holds the benchmark results of its ranks."""


def in_controller(config: pytest.Config) -> _Kept | None:
    if (session := getattr(config, "_benchmarksession", None)) is None:
        return None
    if session.disabled:
        # pytest-benchmark disables itself under pytest-xdist, which ranks cannot detect.
        config.option.benchmark_disable, config.option.benchmark_enable = True, False
    return _Kept(session)


def pytest_mnode_in_rank(config: pytest.Config, rank: Rank) -> None:
    """If the plugin is installed, make its fixture use the same times in all ranks."""
    if not hasattr(config, "_benchmarksession"):
        return
    from pytest_benchmark import fixture  # type: ignore[import-not-found]

    if rank.world.size > 1:
        _agree_on_times(fixture, lambda own: rank.votes_on("benchmark").agree(own, max))
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


class _Kept:
    """pytest plugin of the controller: adds the results of ranks to this process's benchmarks."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        results = vars(report).pop(RESULTS, ())
        if not results:
            return
        from pytest_benchmark.stats import Metadata  # type: ignore[import-not-found]

        for result in sorted(results, key=lambda one: one["place"]["rank"]):
            suffix = f"[rank {result['place']['rank']}]"
            of_fixture = SimpleNamespace(
                name=result["name"] + suffix,
                fullname=result["fullname"] + suffix,
                group=result["group"],
                param=result["param"],
                params=result["params"],
                extra_info={**result["extra_info"], **result["place"]},
                cprofile_stats=None,
                has_error=False,
            )
            kept = Metadata(of_fixture, result["stats"]["iterations"], result["options"])
            for duration in result["stats"]["data"]:
                kept.stats.update(duration)
            self._session.benchmarks.append(kept)

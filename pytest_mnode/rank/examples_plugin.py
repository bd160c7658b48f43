"""Finds hypothesis tests in a rank, if hypothesis is installed and used."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_mnode.rank.rank import Rank


class ExamplesPlugin:
    """pytest plugin of a rank: makes all ranks of a world try the same examples."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside hypothesis' own wrapper
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        test = getattr(item, "obj", None)
        test, world = getattr(test, "__func__", test), self._rank.world
        if world.size == 1 or not hasattr(getattr(test, "hypothesis", None), "inner_test"):
            return (yield)
        from pytest_mnode.rank.examples import Examples

        return (yield from Examples(test, self._rank.votes.on("examples"), world.rank).run())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the data of --hypothesis-show-statistics, which hypothesis' plugin only prints."""
        report = yield
        statistics = getattr(item, "hypothesis_statistics", None)
        if call.when == "teardown" and self._rank.world.rank == 0 and statistics:
            from _hypothesis_pytestplugin import STATS_KEY  # type: ignore[import-untyped]

            setattr(report, STATS_KEY, statistics)
        return report

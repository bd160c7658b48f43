"""hypothesis: finds its tests in a rank; `examples` then makes all ranks try the same ones."""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

from pytest_mnode.rank.rank import Rank


def pytest_mnode_in_rank(config: pytest.Config, rank: Rank) -> None:
    """Register the plugin, if a test may use hypothesis."""
    if "hypothesis" in sys.modules:
        config.pluginmanager.register(ExamplesPlugin(rank), "mnode-examples")


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
        from pytest_mnode.contrib.examples import Examples

        return (yield from Examples(item, test, self._rank.votes_on("examples"), world.rank).run())

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

"""Finds tests of hypothesis in a rank, where it is installed and used."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_mnode.rank.process_group import connection
from pytest_mnode.rank.rank import Rank
from pytest_mnode.rank.votes import Votes


class ExamplesPlugin:
    """pytest plugin of a rank: all ranks of a world try the same examples."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._store: Any = None
        self._votes: Votes | None = None

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside of hypothesis' own
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        test = getattr(item, "obj", None)
        test, world = getattr(test, "__func__", test), self._rank.world
        if world.size == 1 or not hasattr(getattr(test, "hypothesis", None), "inner_test"):
            return (yield)
        from pytest_mnode.rank.examples import Examples

        self._store = self._store or connection()
        name = f"{self._rank.reply_to}/{self._rank.ordinal}"
        self._votes = Votes(self._store, name, world.rank, world.size)
        return (yield from Examples(test, self._votes, world.rank).run())

    @pytest.hookimpl
    def pytest_runtest_teardown(self) -> None:
        """All ranks have ended the body."""
        if self._votes is not None:
            self._votes.close()
            self._votes = None

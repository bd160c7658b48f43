"""Reasons why not all tests of the criteria run; a run with such a reason certifies nothing."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import PurePath
from typing import Any

import pytest

from pytest_mnode.measurement import listed

_WHY = "mnode_narrowed"
_TESTS = "mnode_criterion_tests"


class Narrowing:
    """pytest plugin: notes which tests options left out, also in pytest-xdist workers, which
    collect in place of the process that certifies.

    why: reasons such as "3 tests deselected"; set once tests are collected.
    """

    def __init__(self) -> None:
        self.why: tuple[str, ...] = ()
        self._collected: list[pytest.Item] = []
        self._deselected: list[pytest.Item] = []
        self._of_workers: set[str] = set()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Note an item when it is made: any later hook may take it out of the list."""
        self._collected.append(item)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._deselected += (item for item in items if _is_of_a_criterion(item))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        config = session.config
        # --lf leaves out tests of directories and files without reporting them as deselected.
        lf = ["--lf"] if config.pluginmanager.has_plugin("lfplugin-collskip") else []
        number = len(self._deselected)
        deselected = [f"{number} tests deselected"] if number else []
        self.why = (*deselected, *lf)
        if hasattr(config, "workeroutput"):
            config.workeroutput[_WHY] = self.why

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_TESTS] = sorted(self.due())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", None) or {}
        self.why = tuple(dict.fromkeys((*self.why, *output.get(_WHY, ()))))
        self._of_workers.update(output.get(_TESTS, ()))

    def without_result(self, cases: Container[str]) -> str:
        """Names of tests of criteria that were collected and have no result; "" if all have one.

        This is what a plugin leaves behind that shortens pytest's list of items, or runs a part of
        it, such as one that shards a suite. cases: tests with a result.
        """
        missing = [test for test in sorted(self.due() | self._of_workers) if test not in cases]
        if not missing:
            return ""
        named = listed([test.rpartition("/")[2] for test in missing], 4, ", ")
        from pytest_mnode.launchers.node import count  # not for runs without nodes

        return f"{count(len(missing), 'collected test')} without a result (a plugin?): {named}"

    def due(self) -> set[str]:
        """Tests of criteria that were not deselected, by the names that plugins gave them last."""
        known = set(map(id, self._deselected))
        due = (item for item in self._collected if id(item) not in known)
        return {name_of(item.nodeid, item.location[0]) for item in due if _is_of_a_criterion(item)}


def name_of(nodeid: str, file: str) -> str:
    """The name of a test's case; a node id has no file if that is outside of the root directory
    and was given on its own."""
    return PurePath(file).name + nodeid if nodeid.startswith("::") else nodeid


def _is_of_a_criterion(item: pytest.Item) -> bool:
    # testmon deselects objects of its own, whose marks nobody knows.
    return not isinstance(item, pytest.Item) or item.get_closest_marker("criterion") is not None

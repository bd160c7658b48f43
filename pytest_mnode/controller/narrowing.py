"""Reasons why not all tests of the criteria run; a run with such a reason certifies nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

_OUTPUT = "mnode_narrowed"


class Narrowing:
    """pytest plugin: notes which tests options left out, also in pytest-xdist workers, which
    collect in place of the process that certifies.

    why: reasons such as "3 tests deselected"; set once tests are collected.
    """

    def __init__(self) -> None:
        self.why: tuple[str, ...] = ()
        self._deselected = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        # testmon deselects objects of its own, whose marks nobody knows.
        self._deselected += sum(
            not isinstance(i, pytest.Item) or i.get_closest_marker("criterion") is not None
            for i in items
        )

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        config = session.config
        # --lf leaves out tests of directories and files without reporting them as deselected.
        lf = ["--lf"] if config.pluginmanager.has_plugin("lfplugin-collskip") else []
        deselected = [f"{self._deselected} tests deselected"] if self._deselected else []
        self.why = (*deselected, *lf)
        if hasattr(config, "workeroutput"):
            config.workeroutput[_OUTPUT] = self.why

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        found = (getattr(node, "workeroutput", None) or {}).get(_OUTPUT, ())
        self.why = tuple(dict.fromkeys((*self.why, *found)))

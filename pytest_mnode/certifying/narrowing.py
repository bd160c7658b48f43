"""Which tests of criteria were collected, and which of them were left out, in this process or in
workers of pytest-xdist, which collect in place of the process that certifies."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_mnode.certificate.gathered import CaseRecord
    from pytest_mnode.certificate.run_facts import Manifest

_WHY = "mnode_narrowed"
_TESTS = "mnode_criterion_tests"


@dataclass(slots=True)
class _Tests:
    """Names of tests of criteria, as in `Manifest`."""

    collected: set[str] = field(default_factory=set)
    deselected: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)


class Narrowing:
    """pytest plugin: notes every test when it is made, and what leaves it out later.

    why: options that leave out whole files, such as "--lf"; set once tests are collected.
    """

    def __init__(self) -> None:
        self.why: tuple[str, ...] = ()
        self._made: list[pytest.Item] = []
        self._selected: set[int] = set()
        self._deselected: list[pytest.Item] = []
        self._all_selected = False
        self._of_workers = _Tests()
        self._session: pytest.Session | None = None

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside all wrappers, which may drop some
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        self._made += (one for one in report.result if isinstance(one, pytest.Item))
        return report

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._selected.add(id(item))

    def pytest_collection_modifyitems(self) -> None:
        self._all_selected = True  # not if collection was interrupted

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._deselected += items

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._session = session
        # --lf leaves out tests of directories and files without reporting them as deselected.
        lf = session.config.pluginmanager.has_plugin("lfplugin-collskip")
        self.why = ("--lf",) if lf else ()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_WHY] = self.why

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            own = self._tests()
            every = own.collected, own.deselected, own.removed
            session.config.workeroutput[_TESTS] = [sorted(tests) for tests in every]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", None) or {}
        self.why = tuple(dict.fromkeys((*self.why, *output.get(_WHY, ()))))
        if _TESTS in output:
            collected, deselected, removed = output[_TESTS]
            self._of_workers.collected.update(collected)
            self._of_workers.deselected.update(deselected)
            self._of_workers.removed.update(removed)

    def due(self) -> set[str]:
        """Tests of criteria that were not deselected."""
        own = self._tests()
        return own.collected - own.deselected

    def manifest(self, cases: Mapping[str, CaseRecord] | None) -> Manifest:
        """The manifest of the run. cases: what reports say of each test; None before the end."""
        from pytest_mnode.certificate.run_facts import Manifest  # not for runs without nodes

        own, others = self._tests(), self._of_workers
        collected = own.collected | others.collected
        deselected = own.deselected | others.deselected
        ran = {test for test, case in (cases or {}).items() if case.ran}
        removed = (own.removed | others.removed) - deselected - ran
        not_run = set() if cases is None else collected - deselected - removed - ran
        repeated = {test for test, case in (cases or {}).items() if case.repeated}
        lists = (deselected, removed, not_run, repeated)
        return Manifest(len(collected), *(tuple(sorted(tests)) for tests in lists))

    def _tests(self) -> _Tests:
        """Tests of criteria, by the names that plugins gave them last."""
        if (session := self._session) is None:
            return _Tests()
        arguments = session.config.args
        chosen = bool(self.why) or any("::" in argument for argument in arguments)
        known = set(map(id, self._deselected))
        found = _Tests(deselected={_name(one) for one in self._deselected if _of_a_criterion(one)})
        left = {_name(item) for item in session.items}
        for item in filter(_of_a_criterion, self._made):
            name = _name(item)
            found.collected.add(name)
            if id(item) in known:
                continue
            if name in left or not self._all_selected:
                continue
            # One that was never selected was left out by a name in an argument or by --lf; without
            # these, a plugin took it out of the report of its file.
            announced = chosen and id(item) not in self._selected
            (found.deselected if announced else found.removed).add(name)
        return found


def name_of(nodeid: str, file: str) -> str:
    """The name of a test's case; a node id has no file if that is outside of the root directory
    and was given on its own."""
    return PurePath(file).name + nodeid if nodeid.startswith("::") else nodeid


def _name(item: pytest.Item) -> str:
    # testmon deselects objects of its own, which have no place, and whose marks nobody knows.
    return name_of(item.nodeid, item.location[0] if isinstance(item, pytest.Item) else "")


def _of_a_criterion(item: pytest.Item) -> bool:
    return not isinstance(item, pytest.Item) or item.get_closest_marker("criterion") is not None

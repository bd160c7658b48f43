"""Fixtures of a rank that outlive a test (those built on the process group, and those kept), and
whether the teardown of a test ends any but our own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

GROUP_FIXTURE = "process_group"
_OWN_FIXTURES = "pytest_mnode.fixtures"
_PARAMETER = "get_direct_param_fixture_func"
"""The function of the fixture that pytest makes for a parameter of a test."""
_UNNOTICED = {"_pytest", "pytest_mnode", "pytest_timeout", "_hypothesis_pytestplugin"}
"""Packages whose hooks, after a test's body, do nothing that another rank could notice."""
_AFTER_BODY = (
    *("pytest_runtest_teardown", "pytest_fixture_post_finalizer", "pytest_runtest_makereport"),
    "pytest_runtest_protocol",
)


class WideFixtures:
    """The fixtures of wide scope of a rank that are built on the group."""

    def __init__(self) -> None:
        self._on_group: set[pytest.FixtureDef[Any]] = set()
        self._end_group: Callable[[], None] = lambda: None
        self._group_is_used = False

    @property
    def built_on_group(self) -> bool:
        """Whether a wide-scope fixture that is built on the group is set up."""
        return bool(self._on_group)

    def may_keep_group(self, grouped: bool) -> bool:
        """Whether the next test may get the existing process group.

        grouped: the test uses the group's fixture. A test that does not may make its own group,
        unless a fixture is built on the existing one. After such a fixture has ended, its groups
        are destroyed together with the group.
        """
        return not self._group_is_used and (grouped or self.built_on_group)

    def end_built_on_group(self) -> None:
        """Tear down the fixtures built on the process group, which is about to be destroyed."""
        self._end_group()
        self._group_is_used = False

    def begin(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> None:
        """A fixture of wide scope is about to be set up."""
        if fixturedef.func.__module__ == _OWN_FIXTURES:
            if fixturedef.argname == GROUP_FIXTURE:
                self._end_group = lambda: fixturedef.finish(request)
        elif {GROUP_FIXTURE, *(d.argname for d in self._on_group)} & set(fixturedef.argnames):
            self._on_group.add(fixturedef)

    def ended(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if fixturedef in self._on_group:
            self._on_group.discard(fixturedef)
            self._group_is_used = True


def kept_node(chain: Iterable[pytest.Item | pytest.Collector | Any], keep: str | None) -> Any:
    """The innermost collector of `chain` with the node id `keep`; None if there is none."""
    if keep is None:
        return None
    return next((node for node in reversed(list(chain)) if node.nodeid == keep), None)


def following(
    item: pytest.Item, keep: Any, next_nodeid: str | None, items: Mapping[str, pytest.Item]
) -> pytest.Item | None:
    """The test given to pytest as the next one: one that shares the fixtures of `keep`.

    The real next test may run in the controller, and its file may not be collected here.
    """
    if keep is None:
        return None
    if next_nodeid is not None and next_nodeid in items:
        return items[next_nodeid]
    return next(
        (one for one in items.values() if one is not item and keep in one.listchain()), None
    )


def ends_nothing(item: pytest.Item, stack: Mapping[Any, tuple[list[Any], Any]]) -> bool:
    """Whether the teardown of a test does nothing that another rank's body could notice.

    stack: pytest's nodes that are set up, each with its finalizers. Any fixture that is not ours
    counts, also one without a finalizer: its value may be a store or a group, which ends with it;
    so does an instance of the test's class.
    """
    if not isinstance(item, pytest.Function) or item.cls is not None:
        return False
    packages = {
        impl.function.__module__.partition(".")[0]
        for name in _AFTER_BODY
        for impl in getattr(item.ihook, name).get_hookimpls()
        # Another plugin's own loop is not called in ranks; see `one_protocol`.
        if name != "pytest_runtest_protocol" or impl.wrapper or impl.hookwrapper
    }
    return packages <= _UNNOTICED and all(_is_own(f) for found, _ in stack.values() for f in found)


def _is_own(finalizer: Any) -> bool:
    """Whether a finalizer is a collector's or a test's empty one, or ends a fixture of ours."""
    if getattr(finalizer, "__func__", None) is pytest.Item.teardown:
        return True
    method = finalizer.func if isinstance(finalizer, functools.partial) else None
    fixture = getattr(method, "__self__", None)
    if not isinstance(fixture, pytest.FixtureDef):
        return False
    return fixture.func.__module__ == _OWN_FIXTURES or fixture.func.__name__ == _PARAMETER

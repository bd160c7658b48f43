"""Fixtures of a rank that outlive a test: those built on the process group, and those kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

GROUP_FIXTURE = "process_group"


class WideFixtures:
    """pytest plugin of a rank: tracks fixtures of wide scope that are built on the group."""

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

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> None:
        if fixturedef.scope == "function":
            return
        if fixturedef.func.__module__ == "pytest_mnode.fixtures":
            if fixturedef.argname == GROUP_FIXTURE:
                self._end_group = lambda: fixturedef.finish(request)
        elif {GROUP_FIXTURE, *(d.argname for d in self._on_group)} & set(fixturedef.argnames):
            self._on_group.add(fixturedef)

    @pytest.hookimpl
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
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

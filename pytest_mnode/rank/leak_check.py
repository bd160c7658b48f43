"""Finds what each test of a rank leaves behind, and rids the rank of what it can."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pytest_mnode.marks import may_leave
from pytest_mnode.rank import leaks
from pytest_mnode.rank.process_group import GroupKeeper
from pytest_mnode.rank.wide_fixtures import WideFixtures
from pytest_mnode.suites import suite_of


@dataclass(frozen=True, slots=True)
class Left:
    """What a test left. lines: for the user; reusable, new_group: as TornDown has them."""

    lines: tuple[str, ...] = ()
    reusable: bool = True
    new_group: bool = False


class LeakCheck:
    """pytest plugin of a rank."""

    def __init__(self, groups: GroupKeeper, wide: WideFixtures) -> None:
        self._groups = groups
        self._wide = wide
        self._before = leaks.Things()
        self._of_fixtures: dict[pytest.FixtureDef[Any], leaks.Things] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """What a fixture of wide scope holds is its own until it is torn down."""
        __tracebackhide__ = True
        if fixturedef.scope == "function":
            return (yield)
        before = self._things()
        try:
            return (yield)
        finally:
            self._of_fixtures[fixturedef] = self._things() - before

    @pytest.hookimpl
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if (its_own := self._of_fixtures.pop(fixturedef, None)) is not None:
            before = self._before.without(its_own)
            # What it took in this test: the group's device and libraries stay with the process.
            host_bytes = before.host_bytes + its_own.host_bytes
            self._before = replace(before, host_bytes=host_bytes)

    def begin(self) -> None:
        """Before a test."""
        self._before = self._things()
        # Memory of fixtures that are there already is in it, and would count twice.
        for fixturedef, its_own in self._of_fixtures.items():
            self._of_fixtures[fixturedef] = replace(its_own, host_bytes=0, device_bytes=0)

    def end(self, item: pytest.Item, *, all_passed: bool) -> Left:
        """After a test. Groups are no leak: nobody gives those of a device mesh back, and
        `Fabric.launch()` keeps the one that it made. They end here, or with the ranks.
        """
        left = leaks.left_since(self._allowed, self._groups.made, may_leave(item))
        # Keys of groups that end stay in the store of the default group, so that goes too. Where a
        # fixture of wide scope is built on that, they live as long as it does.
        wide = self._wide.built_on_group or any(h.groups for h in self._of_fixtures.values())
        ended = bool(left.groups) and all_passed and not wide and self._groups.end(left.groups)
        lines = tuple(leaks.lines(left, self._allowed))
        if lines and suite_of(getattr(item, "cls", None)):
            return Left(reusable=False)  # its own processes would have ended with the test
        stale = ended or (self._groups.stale_keys and not wide)
        return Left(lines, reusable=ended or wide or not left.groups, new_group=stale)

    def found(self) -> list[str]:
        """What fixtures left that ended between tests, in lines for the user."""
        left = leaks.left_since(self._allowed, self._groups.made, ())
        return leaks.lines(left, self._allowed)

    @property
    def _allowed(self) -> leaks.Things:
        return sum(self._of_fixtures.values(), self._before)

    def _things(self) -> leaks.Things:
        return leaks.things(self._groups.made)

"""Finds what each test of a rank leaves behind, and rids the rank of what it can."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_mnode.marks import may_leave
from pytest_mnode.rank import leaks
from pytest_mnode.rank.process_group import GroupKeeper


@dataclass(frozen=True, slots=True)
class Left:
    """What a test left. lines: for the user; reusable, new_group: as TornDown has them."""

    lines: tuple[str, ...] = ()
    reusable: bool = True
    new_group: bool = False


class LeakCheck:
    """pytest plugin of a rank."""

    def __init__(self, groups: GroupKeeper) -> None:
        self._groups = groups
        self._before = leaks.Things()
        self._of_fixtures: dict[pytest.FixtureDef[Any], leaks.Things] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """What a fixture of wide scope holds is its own until it is torn down."""
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
            self._before = self._before.without(its_own)

    def begin(self) -> None:
        """Before a test."""
        self._before = self._things()

    def end(self, item: pytest.Item, *, all_passed: bool) -> Left:
        """After a test. Groups are no leak: nobody gives those of a device mesh back, and
        `Fabric.launch()` keeps the one that it made. They end here, or with the ranks.
        """
        allowed = sum(self._of_fixtures.values(), self._before)
        left = leaks.left_since(allowed, self._groups.made, may_leave(item))
        ended = bool(left.groups) and all_passed and self._end(left.groups)
        lines = tuple(leaks.lines(left, allowed))
        return Left(lines, reusable=ended or not left.groups, new_group=ended)

    def _end(self, names: frozenset[str]) -> bool:
        """End groups; False where the ranks must go with them.

        Their keys stay in the store of the default group, so that goes too, with its other groups:
        a fixture of wide scope may hold one of those.
        """
        if any(held.groups for held in self._of_fixtures.values()):
            return False
        return self._groups.end(names)

    def _things(self) -> leaks.Things:
        return leaks.things(self._groups.made)

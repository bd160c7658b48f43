"""Finds the leaks of each test in a rank, and removes those that it can."""

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
    """The leaks of a test. lines: text for the user; reusable, new_group: see TornDown."""

    lines: tuple[str, ...] = ()
    reusable: bool = True
    new_group: bool = False


class LeakCheck:
    """pytest plugin of a rank: compares its resources before and after each test."""

    def __init__(self, groups: GroupKeeper, wide: WideFixtures) -> None:
        self._groups = groups
        self._wide = wide
        self._before = leaks.Resources()
        self._of_fixtures: dict[pytest.FixtureDef[Any], leaks.Resources] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """Attribute resources to a wide-scope fixture until it is torn down."""
        __tracebackhide__ = True
        if fixturedef.scope == "function":
            return (yield)
        before = self._resources()
        try:
            return (yield)
        finally:
            self._of_fixtures[fixturedef] = self._resources() - before

    @pytest.hookimpl
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if (its_own := self._of_fixtures.pop(fixturedef, None)) is not None:
            before = self._before.minus(its_own)
            # Memory it took in this test stays with the process: the driver's, and NCCL's.
            host_bytes = before.host_bytes + its_own.host_bytes
            self._before = replace(before, host_bytes=host_bytes)

    def begin(self) -> None:
        """Note the rank's resources before a test."""
        self._before = self._resources()
        # This includes the memory of existing fixtures, which must not count twice.
        for fixturedef, its_own in self._of_fixtures.items():
            self._of_fixtures[fixturedef] = replace(its_own, host_bytes=0, device_bytes=0)

    def end(self, item: pytest.Item, *, all_passed: bool) -> Left:
        """Find a test's leaks. Process groups are none, because nobody destroys those of a device
        mesh, and `Fabric.launch()` keeps its group. They are destroyed here, or with the ranks.
        """
        left = leaks.leaked_since(self._allowed, self._groups.made, may_leave(item))
        # Keys of destroyed groups stay in the store of the default group, so that group is renewed
        # too. If a wide-scope fixture is built on it, the groups live as long as the fixture.
        wide = self._wide.built_on_group or any(h.groups for h in self._of_fixtures.values())
        ended = bool(left.groups) and all_passed and not wide and self._groups.end(left.groups)
        lines = tuple(leaks.lines(left, self._allowed))
        if lines and suite_of(getattr(item, "cls", None)):
            return Left(reusable=False)  # in the suite's own processes they would end with the test
        stale = ended or (self._groups.stale_keys and not wide)
        return Left(lines, reusable=ended or wide or not left.groups, new_group=stale)

    @property
    def has_only_own_group(self) -> bool:
        """Whether there is no process group that `end` would destroy."""
        return self._groups.intact and not leaks.groups(self._groups.made)

    def found(self) -> list[str]:
        """Leaks of fixtures that were torn down between tests, as lines for the user."""
        left = leaks.leaked_since(self._allowed, self._groups.made, ())
        return leaks.lines(left, self._allowed)

    @property
    def _allowed(self) -> leaks.Resources:
        return sum(self._of_fixtures.values(), self._before)

    def _resources(self) -> leaks.Resources:
        return leaks.resources(self._groups.made)

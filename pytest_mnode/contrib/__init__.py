"""Adaptors to other plugins and to suites of other projects, one file each, behind two hooks.

Whatever names a module or attribute of another plugin to make it work with ranks is here. The rest
of the package calls the hooks and knows none of them. What pytest plugins may do where is decided
in `other_plugins`, for all of them alike.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_mnode.outcome.outcome import Outcome
    from pytest_mnode.rank.rank import Rank

_IN_BOTH = ("allure", "benchmark", "coverage")
_IN_RANKS = ("hypothesis", "test_classes")

Take = Callable[[], Any]
"""Returns the data that a plugin gathered in a rank since the last call."""
Given = Callable[[str], Any]
"""The value of an option in the controller, by the name of its attribute; None if there is none."""


def register(config: pytest.Config, *, in_rank: bool) -> None:
    """Register the adaptors; in the controller what their `in_controller` makes, if anything."""
    for name in (*_IN_BOTH, *(_IN_RANKS if in_rank else ())):
        adaptor = importlib.import_module(f"{__name__}.{name}")
        if in_rank:
            config.pluginmanager.register(adaptor, f"mnode-{name}")
        elif (plugin := adaptor.in_controller(config)) is not None:
            config.pluginmanager.register(plugin, f"mnode-ranks-{name}")


class Hooks:
    """The two hooks of adaptors."""

    @staticmethod
    @pytest.hookspec
    def pytest_mnode_in_rank(
        config: pytest.Config, rank: Rank, items: Iterable[pytest.Item], given: Given
    ) -> tuple[str, Take] | None:
        """Called once in the process of a rank, before its first test. items: its tests.

        If a name and a Take are returned, its data is sent with the rank's last report of each test
        or function, and is then in `data` of that report under the name.
        """

    @staticmethod
    @pytest.hookspec
    def pytest_mnode_of_ranks(config: pytest.Config, nodeid: str, outcome: Outcome) -> None:
        """Called in the controller when ranks have ended a test. nodeid: "" for a function."""

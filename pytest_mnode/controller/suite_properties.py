"""Adds properties that ranks recorded by `record_testsuite_property` to the run's junit file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

_ATTRIBUTE = "mnode_suite_properties"


def attach(report: pytest.TestReport, recorded: Sequence[tuple[str, Any]]) -> None:
    """Add properties to a report, which pytest-xdist sends to the process that writes junit."""
    if recorded:
        setattr(report, _ATTRIBUTE, [list(one) for one in recorded])


class SuitePropertiesPlugin:
    """pytest plugin of the process that the user started."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in getattr(report, _ATTRIBUTE, ()):
            for plugin in self._config.pluginmanager.get_plugins():
                if hasattr(plugin, "add_global_property"):  # pytest's own, with --junitxml
                    plugin.add_global_property(name, value)

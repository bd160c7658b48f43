"""conftest.py of every scenario: a healthy test after each broken one, and when reports came."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

_NEXT = "test_next["


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__ == "test_next":
        broken = [n for n in vars(metafunc.module) if n.startswith("test_") and n != "test_next"]
        metafunc.parametrize("after", [name.removeprefix("test_") for name in broken])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    healthy = {item.name: item for item in items if item.name.startswith(_NEXT)}
    broken = [item for item in items if item.name not in healthy]
    items[:] = [
        one
        for item in broken
        for one in (item, healthy[f"{_NEXT}{item.name.removeprefix('test_')}]"])
    ]


class _Clock:
    """In the controller: when each report came."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        line = {"name": report.nodeid.rpartition("::")[2], "when": report.when, "at": time.time()}
        with Path(os.environ["SCENARIO_TIMES"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "passes: not broken")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Clock())

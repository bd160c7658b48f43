"""conftest.py of every scenario: a healthy test after each broken one, and faults from outside."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.controller.session import run_of
from pytest_mnode.protocol.launcher_requests import PowerOff

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


class _PowerCut:
    """In the controller: switches a node off once a test has begun in the ranks."""

    def __init__(self, config: pytest.Config, node: str) -> None:
        self.config = config
        self.node = node

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if nodeid.endswith("test_power_cut"):
            threading.Thread(target=self._cut, name="power-cut", daemon=True).start()

    def _cut(self) -> None:
        begun = Path(os.environ["SCENARIO_NOTES"], "power_cut")
        while not begun.exists():
            time.sleep(0.01)
        time.sleep(0.3)
        pool = run_of(self.config).pool
        assert pool is not None
        rack: Any = pool.launcher
        rack.ask(PowerOff(self.node))


class _LateKill:
    """In the controller: kills a rank after its test, before the next test begins in it."""

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if nodeid.endswith("test_killed_after_its_end"):
            pid = int(Path(os.environ["SCENARIO_NOTES"], "late_pid").read_text())
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("mnode-rank-session"):
        config.pluginmanager.register(_LateKill())
        if node := os.environ.get("SCENARIO_POWER_OFF"):
            config.pluginmanager.register(_PowerCut(config, node))

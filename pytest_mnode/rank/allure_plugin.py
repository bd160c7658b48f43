"""allure-pytest in ranks: what a rank would write of a test goes to the controller instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

PLUGIN = "mnode-rank-allure"


def start(config: pytest.Config, wanted: bool) -> None:
    """Keep allure's results of this rank's tests in memory, where they are wanted."""
    if not wanted or not config.pluginmanager.hasplugin("allure_pytest"):
        return
    import allure_commons  # type: ignore[import-not-found]
    from allure_commons.logger import AllureMemoryLogger  # type: ignore[import-not-found]
    from allure_pytest.listener import AllureListener  # type: ignore[import-not-found]

    class Memory(AllureMemoryLogger):  # type: ignore[misc]
        @allure_commons.hookimpl  # type: ignore[untyped-decorator]
        def report_attached_file(self, source: str, file_name: str) -> None:
            self.attachments[file_name] = Path(source).read_bytes()

    listener, memory = AllureListener(config), Memory()
    config.pluginmanager.register(listener, "allure_listener")
    allure_commons.plugin_manager.register(listener)
    allure_commons.plugin_manager.register(memory)
    config.pluginmanager.register(_Results(memory), PLUGIN)


class _Results:
    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def take(self) -> dict[str, Any]:
        """Results since the last time, as in allure's own files, and their attachments."""
        memory = self._memory
        taken = {"results": list(memory.test_cases), "attachments": dict(memory.attachments)}
        memory.test_cases.clear()
        memory.test_containers.clear()
        memory.attachments.clear()
        return taken


def result(config: pytest.Config) -> dict[str, Any] | None:
    """What allure has of the test that just ended; None where it is not in use."""
    plugin: Any = config.pluginmanager.getplugin(PLUGIN)
    return None if plugin is None else plugin.take()

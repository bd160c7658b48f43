"""pytest's handlers of log records in a rank, attached to loggers once per test.

pytest attaches two of them in each of three phases, and looks each time through all loggers for
those that do not propagate; torch has more than a hundred.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

import _pytest.logging
import pytest

_catching_logs: Any = _pytest.logging.catching_logs


class _AttachedBefore(_catching_logs):  # type: ignore[misc]
    """Attaches nothing where `LogHandlers` has done so, and no logger was made since."""

    loggers_then: dict[logging.Handler, int] = {}  # noqa: RUF012  by handler, of the process

    def __enter__(self) -> logging.Handler:
        handler: logging.Handler = self.handler
        root = logging.getLogger()
        if (
            self.loggers_then.get(handler) != len(root.manager.loggerDict)
            or handler not in root.handlers
        ):
            return super().__enter__()  # type: ignore[no-any-return]
        self.level = None
        return handler


class LogHandlers:
    """pytest plugin of a rank."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugin: Any = config.pluginmanager.getplugin("logging-plugin")
        _pytest.logging.catching_logs = _AttachedBefore  # type: ignore[misc]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        plugin, then = self._plugin, _AttachedBefore.loggers_then
        if plugin is None:  # -p no:logging
            return (yield)
        handlers = plugin.caplog_handler, plugin.report_handler
        attached = _catching_logs(handlers[0], level=plugin.log_level)
        with attached:
            if plugin.log_level is not None:
                handlers[1].setLevel(plugin.log_level)
            loggers = list(attached.attached_loggers)
            for logger in loggers:
                logger.addHandler(handlers[1])
            then.update(dict.fromkeys(handlers, len(logging.root.manager.loggerDict)))
            try:
                return (yield)
            finally:
                for logger in loggers:
                    logger.removeHandler(handlers[1])

"""pytest's handlers of log records, attached once per test: nothing that is logged is missed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import _pytest.logging
import pytest

from pytest_mnode.rank.log_handlers import LogHandlers


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


@contextmanager
def one_test(handlers: LogHandlers) -> Iterator[None]:
    around = handlers.pytest_runtest_protocol()
    next(around)
    yield
    with pytest.raises(StopIteration):
        next(around)


def made_in_the_test(name: str) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.propagate = False
    return logger


def none_left_by_the_test(name: str) -> logging.Logger:
    logging.root.handlers.clear()
    return logging.getLogger(name)


@pytest.mark.parametrize("logger_of", [logging.getLogger, made_in_the_test, none_left_by_the_test])
def test_a_phase_hears_every_logger_that_was_there_when_it_began(
    logger_of: Callable[[str], logging.Logger],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_pytest.logging, "catching_logs", _pytest.logging.catching_logs)
    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))
    listener = Listener()
    plugin = SimpleNamespace(caplog_handler=listener, report_handler=Listener(), log_level=None)
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _: plugin))
    handlers = LogHandlers(config)
    with one_test(handlers):
        with _pytest.logging.catching_logs(listener):
            logging.getLogger("other").error("of setup")
            logger = logger_of(request.node.name)
        with _pytest.logging.catching_logs(listener):
            logger.error("of the body")
    assert listener.heard == ["of setup", "of the body"]
    assert listener not in logging.root.handlers
    assert listener not in logger.handlers


def test_nothing_is_attached_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of all six times is enough, as long as no logger is made."""
    monkeypatch.setattr(_pytest.logging, "catching_logs", _pytest.logging.catching_logs)
    listener = Listener()
    plugin = SimpleNamespace(caplog_handler=listener, report_handler=Listener(), log_level=None)
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _: plugin))
    handlers = LogHandlers(config)
    with one_test(handlers):
        attached = _pytest.logging.catching_logs(listener)
        with attached:
            assert attached.attached_loggers == []
            assert listener in logging.root.handlers
        assert listener in logging.root.handlers
    assert listener not in logging.root.handlers

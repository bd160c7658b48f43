"""Set-up of all tests."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Generator
from types import ModuleType

import pytest
from hypothesis import settings

from pytest_mnode.processes import made_to_stay
from tests.again import Failed
from tests.red import RedRuns

_STARTERS = {"tests.inner", "tests.scenario", "tests.measuring.tools.local", "subprocess"}
"""Modules by which tests start pytest, a rack or other programs."""


def pytest_configure(config: pytest.Config) -> None:
    """Let children be interrupted: a shell that starts a job in the background ignores SIGINT.

    Hypothesis examples have no deadline, because busy machines are slow.
    """
    config.pluginmanager.register(RedRuns())
    config.pluginmanager.register(Failed())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("untimed", settings(), deadline=None)
    settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    if "COLD_WORKERS" in os.environ:  # a missing import shows in a process that has none
        return
    from tests.warm import workers

    workers.use(config.invocation_params.args)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector: it doubles the time of a worker to collect 8,000 tests."""
    with made_to_stay():
        return (yield)


@functools.cache
def _is_long(module: ModuleType) -> bool:
    used = vars(module).values()
    return any(getattr(it, "__module__", getattr(it, "__name__", "")) in _STARTERS for it in used)


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Long files first: a long file at the end would keep one worker busy and the others idle."""
    items.sort(key=lambda item: not _is_long(item.module))

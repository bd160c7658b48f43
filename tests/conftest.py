"""What all tests rely on."""

from __future__ import annotations

import functools
import signal
from collections.abc import Generator
from types import ModuleType

import pytest
from hypothesis import settings

from pytest_mnode.processes import made_to_stay

_STARTERS = {"tests.inner", "tests.scenario", "tests.measuring.tools.local", "subprocess"}
"""Modules by which tests start pytest, a rack or other programs."""


def pytest_configure() -> None:
    """Let children be interrupted: a shell that starts a job in the background ignores SIGINT.

    Examples of hypothesis have no deadline: a busy machine takes its time.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("untimed", settings(), deadline=None)
    settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Each worker collects 8,000 tests; looking for garbage among them takes as long again."""
    with made_to_stay():
        return (yield)


@functools.cache
def _is_long(module: ModuleType) -> bool:
    used = vars(module).values()
    return any(getattr(it, "__module__", getattr(it, "__name__", "")) in _STARTERS for it in used)


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Long files first: one that came last would keep one worker busy, and the others idle."""
    items.sort(key=lambda item: not _is_long(item.module))

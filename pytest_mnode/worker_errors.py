"""What a worker of pytest-xdist finds wrong while it collects: one line, as without workers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

_OUTPUT = "mnode_usage_error"
"""Key of its text, in what a worker tells the process that started it."""


class WorkerErrors:
    """pytest plugin of workers, and of the process that starts them."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        except pytest.UsageError as error:
            getattr(session.config, "workeroutput", {})[_OUTPUT] = str(error)
            raise

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker ended; without this, pytest-xdist says that no workers are left."""
        if text := (getattr(node, "workeroutput", None) or {}).get(_OUTPUT):
            raise pytest.UsageError(text)

"""Reports a usage error of a pytest-xdist worker's collection in one line, as without xdist."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

_OUTPUT = "mnode_usage_error"
"""Key of the error's text in a worker's `workeroutput`."""


class WorkerErrors:
    """pytest plugin of xdist workers and of the xdist controller."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        except pytest.UsageError as error:
            getattr(session.config, "workeroutput", {})[_OUTPUT] = str(error)
            raise

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Raise a worker's usage error; pytest-xdist alone says only that no workers are left."""
        if text := (getattr(node, "workeroutput", None) or {}).get(_OUTPUT):
            raise pytest.UsageError(text)

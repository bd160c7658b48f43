"""Other pytest plugins that matter to tests in ranks."""

from __future__ import annotations

from typing import Any

import pytest

RANK_TESTS = "mnode-rank-tests"
"""Name under which our own plugin for tests in ranks is registered."""


def other_loops(manager: pytest.PytestPluginManager) -> dict[str, Any]:
    """Plugins that run tests in a way of their own, such as several times, by name."""
    return {
        impl.plugin_name: impl.plugin
        for impl in manager.hook.pytest_runtest_protocol.get_hookimpls()
        if not (impl.wrapper or impl.hookwrapper) and impl.plugin_name not in ("runner", RANK_TESTS)
    }

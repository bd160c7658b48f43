"""pytest plugin that gives every test the mnode mark, as a suite's conftest.py would."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.mnode())

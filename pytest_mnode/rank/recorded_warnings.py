"""Warnings of a rank's test, as they travel."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from pytest_mnode.rank import reports


class RecordedWarnings:
    """pytest plugin of a rank."""

    def __init__(self) -> None:
        self._recorded: list[tuple[Any, ...]] = []

    def take(self) -> tuple[tuple[Any, ...], ...]:
        """Those recorded since the last time."""
        taken, self._recorded = self._recorded, []
        return tuple(taken)

    @pytest.hookimpl
    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        where = (when, nodeid, location)
        self._recorded.append((*reports.plain_warning(warning_message), *where))

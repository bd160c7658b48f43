"""`record_testsuite_property` in ranks: the junit file is the controller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_mnode.rank.reports import plain


class SuiteProperties:
    """pytest plugin of a rank; registered before collection, as fixtures must be."""

    def __init__(self) -> None:
        self._recorded: list[tuple[str, Any]] = []

    @pytest.fixture(scope="session")
    def record_testsuite_property(self) -> Callable[[str, object], None]:
        """Add a property to the whole of junit's suite, with the ranks if not all record it."""

        def record(name: str, value: object) -> None:
            if not isinstance(name, str):
                raise TypeError(f"record_testsuite_property: name={name!r} is no string")
            self._recorded.append((name, plain(value)))

        return record

    def take(self) -> tuple[tuple[str, Any], ...]:
        """What was recorded since the last time."""
        taken, self._recorded = self._recorded, []
        return tuple(taken)

"""`--mnode-budget`: no test starts after the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Generator
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from pytest_mnode.certificate.results import criterion_name
from pytest_mnode.measurement import listed
from pytest_mnode.spec.quantity import DURATION

if TYPE_CHECKING:
    from pytest_mnode.controller.session import Run


class Budget:
    """pytest plugin: ends a run between two tests and names the tests that were not run.

    The budget starts when the plugin is created.
    """

    def __init__(self, run: Run, budget_s: float) -> None:
        self._run, self._budget_s = run, budget_s
        self._budget = Fraction(budget_s).limit_denominator(10**6)
        self._started_s = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        result = yield
        over = time.monotonic() - self._started_s >= self._budget_s
        if over and nextitem is not None and not self._run.ended:
            left = f"the budget of {DURATION.text(self._budget)}"
            if not hasattr(item.config, "workerinput"):  # a pytest-xdist worker knows only its own
                items = item.session.items
                others = items[items.index(nextitem) :]
                names = listed((criterion_name(one.path.name) for one in others), 8, ", ")
                left += f": {len(others)} of {len(items)} tests were not run ({names})"
            self._run.end(left)
        return result

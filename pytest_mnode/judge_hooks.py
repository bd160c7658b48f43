"""Hooks by which measurements decide a test's outcome, in ranks and in the controller."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_mnode import marks
from pytest_mnode.skipping import REQUESTED_KEYS


class JudgeHooks:
    """pytest plugin. in_rank: the controller describes the reports, not this process."""

    def __init__(self, *, in_rank: bool) -> None:
        self._in_rank = in_rank

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        REQUESTED_KEYS.clear()
        if marks.asks_for(item, "measure"):
            from pytest_mnode.measure import forget

            forget(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail the test after its body if a measurement breaks its bound."""
        __tracebackhide__ = True  # hides this frame in tracebacks of the item
        result = yield
        __tracebackhide__ = False
        if marks.asks_for(item, "measure"):
            from pytest_mnode.installed import RequestedKeys
            from pytest_mnode.measure import judged, kept_by, measure_of
            from pytest_mnode.measurement import Verdict

            if REQUESTED_KEYS:
                measure_of(item, "").chart(RequestedKeys(tuple(REQUESTED_KEYS)))
            if failing := judged(kept_by(item), Verdict.FAIL):
                pytest.fail(failing, pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Report an error if a value could not be measured: inconclusive never passes."""
        __tracebackhide__ = True  # hides this frame in tracebacks of the item
        result = yield
        __tracebackhide__ = False
        if marks.asks_for(item, "measure"):
            from pytest_mnode.measure import judged, kept_by
            from pytest_mnode.measurement import Verdict

            if missing := judged(kept_by(item), Verdict.INCONCLUSIVE):
                pytest.fail(f"inconclusive: {missing}", pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown" and not self._in_rank:
            criterion = item.get_closest_marker("criterion") is not None
            if criterion or marks.asks_for(item, "measure"):
                from pytest_mnode.measure import charts_kept_by, kept_by
                from pytest_mnode.report_record import describe

                nodes = item.stash.get(marks.NODE_OF_TEST, ())
                describe(report, item, kept_by(item), nodes, charts_kept_by(item))
        return report

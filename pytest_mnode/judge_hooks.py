"""Hooks by which measurements decide a test's outcome, in ranks and in the controller."""

from __future__ import annotations

import unittest
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_mnode import marks
from pytest_mnode.skipping import REQUESTED_KEYS

if TYPE_CHECKING:
    from pytest_mnode.measurement import Verdict

_SKIPS = (pytest.skip.Exception, unittest.SkipTest)
_OF_ERRORS = ("mnode_lacks", "mnode_by_bounds")
"""Attributes of errors that their reports keep: what the certificate has to know of them."""
_REPORTED = pytest.StashKey[int]()
"""How many measurements the report of the body answers for: it failed, or was expected to fail."""


class JudgeHooks:
    """pytest plugin. in_rank: the controller describes the reports, not this process.

    Whatever a test has recorded is judged, however it got `measure`: at the end of its body, and
    again after its teardown, whose fixtures may measure. A skip does not take a broken bound back.
    """

    def __init__(self, *, in_rank: bool) -> None:
        self._in_rank = in_rank

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        REQUESTED_KEYS.clear()
        if marks.MEASURES in item.stash:  # it runs again
            from pytest_mnode.measure import forget

            forget(item)
            item.stash[_REPORTED] = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail the test after its body if a measurement breaks its bound."""
        item.stash[marks.RUNS] = item.stash.get(marks.RUNS, 0) + 1
        __tracebackhide__ = True  # hides this frame in tracebacks of the item
        result, skip = None, None
        try:
            result = yield
        except _SKIPS as error:
            skip = error
        __tracebackhide__ = False
        if REQUESTED_KEYS:
            from pytest_mnode.installed import RequestedKeys
            from pytest_mnode.measure import measure_of

            # Of a test without measurements too, which then answers a promise by asserting.
            measure_of(item, "").chart(RequestedKeys(tuple(REQUESTED_KEYS)))
        if marks.MEASURES in item.stash:
            from pytest_mnode.measurement import Verdict

            if failing := _judged(item, Verdict.FAIL):
                raise _broken(failing)
        if skip is not None:
            raise skip
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Report an error if a bound was broken since the body ended, or a value could not be
        measured: inconclusive never passes."""
        __tracebackhide__ = True  # hides this frame in tracebacks of the item
        result, skip = None, None
        try:
            result = yield
        except _SKIPS as error:
            skip = error
        __tracebackhide__ = False
        if marks.MEASURES in item.stash:
            from pytest_mnode.measure import ENDED
            from pytest_mnode.measurement import Verdict

            item.stash[ENDED] = True
            failing = _judged(item, Verdict.FAIL, item.stash.get(_REPORTED, 0))
            missing = _judged(item, Verdict.INCONCLUSIVE)
            if text := "\n".join(filter(None, [failing, missing and f"inconclusive: {missing}"])):
                raise _broken(text)
        if skip is not None:
            raise skip
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        for name in _OF_ERRORS:
            if hasattr(error := call.excinfo and call.excinfo.value, name):
                setattr(report, name, getattr(error, name))
        measures = marks.MEASURES in item.stash
        if measures and call.when == "call" and (report.failed or hasattr(report, "wasxfail")):
            from pytest_mnode.measure import kept_by

            item.stash[_REPORTED] = len(kept_by(item))
        if call.when == "teardown" and not self._in_rank:
            criterion = item.get_closest_marker("criterion") is not None
            if criterion or measures:
                from pytest_mnode.measure import charts_kept_by, kept_by
                from pytest_mnode.report_record import describe

                nodes = item.stash.get(marks.NODE_OF_TEST, ())
                describe(report, item, kept_by(item), nodes, charts_kept_by(item))
        return report


def _broken(text: str) -> BaseException:
    """The failure of a test whose body passed, and whose measurements did not."""
    failure = pytest.fail.Exception(text, pytrace=False)
    failure.mnode_by_bounds = True  # type: ignore[attr-defined]
    return failure


def _judged(item: pytest.Item, verdict: Verdict, after: int = 0) -> str:
    """Lines about the measurements with this verdict, without the first `after`."""
    from pytest_mnode.measure import judged, kept_by

    return judged(kept_by(item)[after:], verdict)

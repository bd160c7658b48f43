"""Records on test reports for the certificate, and exceptions of ranks for other plugins."""

from __future__ import annotations

import builtins
import re
import time
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from pytest_mnode import marks
from pytest_mnode.charts import Chart
from pytest_mnode.measurement import Measurement

FURTHER = "mnode_further"
"""Attribute of an extra report besides setup, body and teardown, such as a subtest's."""
_SUITE_PROPERTIES = "mnode_suite_properties"
_ERROR = re.compile(r"(?:[\w.]*\.)?([A-Z]\w*)(?:: (.*))?$", re.DOTALL)


def describe(
    report: pytest.TestReport,
    item: pytest.Item,
    measurements: Sequence[Measurement],
    nodes: Sequence[str],
    charts: Sequence[Chart] = (),
) -> None:
    """Attach the certificate's record to a test's last report; it survives pytest-xdist."""
    function = getattr(item, "obj", None)
    question = (getattr(function, "__doc__", None) or "").strip().partition("\n")[0]
    report.mnode = {  # type: ignore[attr-defined]
        "question": question,
        "runs": item.stash.get(marks.RUNS, 0),
        "nodes": list(nodes),
        "measurements": [],
        "charts": [],
    }
    if measurements or charts:
        from pytest_mnode.certificate import measurement_properties
        from pytest_mnode.certificate.results import charts_to_json, measurements_to_json

        report.user_properties.extend(measurement_properties(measurements))
        report.mnode |= {  # type: ignore[attr-defined]
            "measurements": measurements_to_json(measurements),
            "charts": charts_to_json(charts),
        }


def error_report(
    item: pytest.Item,
    text: str,
    when: Literal["setup", "teardown"] = "setup",
    began: float | None = None,
) -> pytest.TestReport:
    """A failed report. began: when the test did, in seconds since 1970; None: now."""
    now = time.time()
    start = now if began is None else began
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when=when,
        duration=now - start,
        start=start,
        stop=now,
    )
    describe(report, item, (), ())
    return report


def attach_suite_properties(report: pytest.TestReport, recorded: Sequence[tuple[str, Any]]) -> None:
    """Add what ranks recorded by `record_testsuite_property` to a report, which pytest-xdist sends
    to the process that writes junit."""
    if recorded:
        setattr(report, _SUITE_PROPERTIES, [list(one) for one in recorded])


class SuitePropertiesPlugin:
    """pytest plugin of the process that the user started: adds them to the run's junit file."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in getattr(report, _SUITE_PROPERTIES, ()):
            for plugin in self._config.pluginmanager.get_plugins():
                if hasattr(plugin, "add_global_property"):  # pytest's own, with --junitxml
                    plugin.add_global_property(name, value)


def is_further(report: pytest.TestReport) -> bool:
    return bool(getattr(report, FURTHER, False))


def raised_by(report: pytest.TestReport) -> BaseException:
    """An exception for other plugins, with the name and text of the first rank's exception.

    Its base is Python's own class of that name if there is one, else Exception.
    """
    if report.skipped and not hasattr(report, "wasxfail"):
        longrepr: Any = report.longrepr
        text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        return pytest.skip.Exception(text.removeprefix("Skipped: "))
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    line = crash.message.partition(": ")[2] if crash is not None else report.longreprtext
    if line.startswith("assert"):
        return AssertionError(line)
    found = _ERROR.match(line)
    if found is None:
        return pytest.fail.Exception(line, pytrace=False)
    own = getattr(builtins, found[1], None)
    base = own if isinstance(own, type) and issubclass(own, Exception) else Exception
    kind = type(found[1], (base,), {"__module__": "builtins"})
    try:
        error: BaseException = kind(found[2] or "")
    except TypeError:  # its class requires more arguments than a text
        error = type(found[1], (Exception,), {})(found[2] or "")
    return error

"""Reports with what a certificate needs of a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from pytest_mnode.measurement import Curve, Measurement


def describe(
    report: pytest.TestReport,
    item: pytest.Item,
    measurements: Sequence[Measurement],
    nodes: Sequence[str],
    curves: Sequence[Curve] = (),
) -> None:
    """Attach to a test's last report what a certificate needs of it; survives pytest-xdist."""
    from pytest_mnode.certificate import measurement_properties
    from pytest_mnode.certificate.results import curves_to_json, measurements_to_json

    if measurements:
        report.user_properties.extend(measurement_properties(measurements))
    function = getattr(item, "obj", None)
    question = (getattr(function, "__doc__", None) or "").strip().partition("\n")[0]
    report.mnode = {  # type: ignore[attr-defined]
        "question": question,
        "nodes": list(nodes),
        "measurements": measurements_to_json(measurements),
        "curves": curves_to_json(curves),
    }


def error_report(
    item: pytest.Item, text: str, when: Literal["setup", "teardown"] = "setup"
) -> pytest.TestReport:
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when=when,
    )
    describe(report, item, (), ())
    return report

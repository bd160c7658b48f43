"""What a run tells pytest of its ranks: reports with what a certificate needs, and warnings."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_mnode.measurement import Curve, Measurement


class Warner:
    """Hands warnings of ranks to pytest, equal ones of several ranks once."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._told: set[str] = set()

    def warn(  # noqa: PLR0917  the fields of a warning as the rank sent them
        self,
        blob: bytes,
        text: str,
        filename: str,
        lineno: int,
        when: str,
        nodeid: str,
        location: Any,
    ) -> None:
        key = f"{text}{filename}{lineno}{nodeid}"
        if key in self._told:  # the same from another rank
            return
        self._told.add(key)
        message, category = _warning(blob, text)
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(message, category, filename, lineno),
                "when": when,
                "nodeid": nodeid,
                "location": location,
            }
        )


def describe(
    report: pytest.TestReport,
    item: pytest.Item,
    measurements: Sequence[Measurement],
    nodes: Sequence[str],
    curves: Sequence[Curve] = (),
) -> None:
    """Attach to a test's last report what a certificate needs of it; survives pytest-xdist."""
    from pytest_mnode.certificate import measurement_properties

    if measurements:
        report.user_properties.extend(measurement_properties(measurements))
    function = getattr(item, "obj", None)
    question = (getattr(function, "__doc__", None) or "").strip().partition("\n")[0]
    report.mnode = {  # type: ignore[attr-defined]
        "question": question,
        "nodes": list(nodes),
        "measurements": [m.to_dict() for m in measurements],
        "curves": [curve.to_dict() for curve in curves],
    }


def _warning(blob: bytes, text: str) -> tuple[Warning, type[Warning]]:
    """A rank's warning; by its text where its class exists in ranks only."""
    try:
        message, category = pickle.loads(blob)
    except Exception:  # unpickling runs the user's own classes
        return UserWarning(text), UserWarning
    return message, category


def error_report(item: pytest.Item, text: str) -> pytest.TestReport:
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when="setup",
    )
    describe(report, item, (), ())
    return report

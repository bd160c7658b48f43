"""How a test says that it has nothing to judge, because the spec leaves the question open."""

from __future__ import annotations

from typing import NoReturn

import pytest

NOT_PROMISED = "not promised"


def not_promised(question: str = "") -> NoReturn:
    """End the test as not promised: on the certificate it is neither passed nor missing.

    question: what the spec leaves open, in a few words.
    """
    said = f"{NOT_PROMISED} by the spec"
    pytest.skip(f"{said}: {question}" if question else said)


def skip_reason(report: pytest.TestReport) -> str:
    """Why a test was skipped, without pytest's own words."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")

"""Skips a test as not promised: the spec leaves its question open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from pytest_mnode.spec import Spec

NOT_PROMISED = "not promised"


def not_promised(question: str = "", *, key: str = "") -> NoReturn:
    """End the test as not promised: on the certificate it is neither passed nor missing.

    question: what the spec leaves open, in a few words. key: key of the spec that would promise it,
    as for `promised`; with another spec that has it, the test has not been run.
    """
    __tracebackhide__ = True
    reason = f"{NOT_PROMISED} by the spec"
    skip = pytest.skip.Exception(": ".join(filter(None, [reason, question or key])))
    skip.mnode_lacks = key  # type: ignore[attr-defined]
    raise skip


def promised(spec: Spec, key: str) -> Any:
    """The spec's value for `key`, such as "restart.kills"; skips as not promised if it has none.

    key: below `criteria`, or else from the top of the spec. Raises AttributeError for a key that
    no spec can have.
    """
    REQUESTED_KEYS[key] = None
    if (value := spec.value_of(key)) is None:
        not_promised(key=key)
    return value


def skip_if_waived(spec: Spec, key: str) -> None:
    """End the test as not promised if the spec lists its key under `not_promised`."""
    for one in spec.not_promised:
        if one.question == key:
            not_promised(f"{key}: {one.reason}", key=key)


REQUESTED_KEYS: dict[str, None] = {}
"""Keys that the running test has requested, in order; `JudgeHooks` keeps them with the test."""


def skip_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Why a test or a module was skipped, without pytest's own words."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")

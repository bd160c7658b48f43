"""Values that plugins and tests add to the reports of ranks, merged for one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from pytest_mnode.outcome.describe import ranks_text

ADDED = "mnode_added"
"""Attribute of a merged report: values to add to it once no plugin changes it any more."""
OF_A_PLAIN_PASS = frozenset(vars(pytest.TestReport("", ("", None, ""), {}, "passed", None, "call")))
OF_EVERY_REPORT = OF_A_PLAIN_PASS | {"wasxfail", "mnode_by_bounds"}


def added(reports: Iterable[pytest.TestReport]) -> dict[str, Any]:
    """Merged attributes of all ranks' reports that plain pytest reports do not have."""
    values: dict[str, list[Any]] = {}
    for report in {id(report): report for report in reports}.values():
        for name in vars(report).keys() - OF_EVERY_REPORT:
            values.setdefault(name, []).append(getattr(report, name))
    return {name: joined(of_ranks) for name, of_ranks in sorted(values.items())}


def joined(values: Sequence[Any]) -> Any:
    """Maps merged by key; lists and whole lines concatenated, equal ones once; else the first value
    that is not None."""
    if all(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: joined([value[key] for value in values if key in value]) for key in keys}
    if all(isinstance(value, list) for value in values):
        entries: list[Any] = []
        for entry in (entry for value in values for entry in value):
            if entry not in entries:
                entries.append(entry)
        return entries
    if all(isinstance(value, str) and value.endswith("\n") for value in values):
        return "".join(dict.fromkeys(values))
    return next((value for value in values if value is not None), None)


def give_added(report: pytest.TestReport) -> None:
    """Add the values of ranks' plugins to their merged report, before values added here."""
    for name, value in vars(report).pop(ADDED, {}).items():
        own = getattr(report, name, None)
        setattr(report, name, value if own is None else joined([value, own]))


Recorded = Sequence[tuple[str, Any]]


def recorded_by_all(by_rank: Mapping[int, Recorded], ranks: int) -> list[tuple[str, Any]]:
    """Every value, in the order of the first rank that has it.

    A value that all ranks recorded keeps its name; otherwise the recording ranks are added to the
    name. ranks: number of all ranks, including those that died and so recorded nothing.
    """
    found: dict[tuple[str, str, int], tuple[Any, list[int]]] = {}
    for rank, recorded in by_rank.items():
        met: Counter[tuple[str, str]] = Counter()
        for name, value in recorded:
            met[name, repr(value)] += 1
            key = (name, repr(value), met[name, repr(value)])
            found.setdefault(key, (value, []))[1].append(rank)
    return [
        (name if len(those) == ranks else f"{name} ({ranks_text(those)})", value)
        for (name, _, _), (value, those) in found.items()
    ]

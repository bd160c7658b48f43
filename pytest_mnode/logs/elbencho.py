"""Reads the results that elbencho appends to a file: `--csvfile`, or `--jsonfile` (from 2.2 on).

The columns `[last]` are of all threads; those `[first]` end with the fastest. JSON has one object
a line, all of whose values are texts. Source: elbencho, docs/csv-docs.md and source/Statistics.cpp.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase, such as WRITE, READ, MKDIRS, RMFILES. A value is None if the phase has none.

    time_s: until the last thread ended.
    """

    operation: str
    time_s: float | None
    bytes_s: float | None


def read_elbencho(text: str) -> list[Phase]:
    """The phases in a file of results, in their order; [] if there are none. Raises nothing."""
    lines = [line for line in text.splitlines() if line.strip()]
    if any(line.lstrip().startswith("{") for line in lines):
        return [phase for line in lines if (phase := _of_json(line)) is not None]
    return [*_of_csv(lines)]


def _of_json(line: str) -> Phase | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None  # cut
    last = found.get("last_done") if isinstance(found, dict) else None
    if not isinstance(last, dict):
        return None
    return Phase(
        str(found.get("phase_type", "")).upper(),
        _seconds(last, "elapsed_time_ms"),
        _scaled(last, "bytes/s"),
    )


def _of_csv(lines: list[str]) -> Iterator[Phase]:
    columns: list[str] = []
    for cells in csv.reader(lines):
        if "operation" in [cell.strip().lower() for cell in cells]:
            columns = [cell.strip().lower() for cell in cells]
            continue
        if len(cells) <= (columns.index("operation") if columns else len(cells)):
            continue  # no labels before it, or cut
        found = dict(zip(columns, cells, strict=False))
        time_s, mib = _seconds(found, "time ms [last]"), _scaled(found, "mib [last]", _MIB)
        # MiB/s is a whole number, which says little of a slow or short phase.
        whole = _scaled(found, "mib/s [last]", _MIB)
        yield Phase(
            found["operation"].strip().upper(),
            time_s,
            mib / time_s if mib and time_s else whole,
        )


def _seconds(found: Mapping[str, Any], key: str) -> float | None:
    time_ms = _scaled(found, key)
    return None if time_ms is None else time_ms / 1000


def _scaled(found: Mapping[str, Any], key: str, unit: float = 1.0) -> float | None:
    try:
        return float(str(found[key]).strip()) * unit
    except (KeyError, ValueError):
        return None

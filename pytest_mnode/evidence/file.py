"""The evidence of a run: rows appended to one file as they arrive, and read back.

A line of `evidence.jsonl` is one row: a JSON object that names its `kind`. The first names the
version. Only the controller writes, and each row reaches the operating system whole before the run
goes on, so that a controller that is killed loses none. A last line without an end was cut by that,
or by a full disk.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.row import Row

NAME = "evidence.jsonl"
VERSION = 1
_SYNC_S = 1.0
"""A sync of the disk takes milliseconds, and a preflight of a large cluster has 30,000 cases."""

HEADER, RUN, COLLECTED, BEGAN, TEST, ROWS, END, TORN = (
    *("evidence", "run", "collected", "began", "test", "rows", "end"),
    "torn",
)
"""Kinds of lines. TORN is none of the file: `read` gives it for a last line without an end."""

EARLIER: pytest.StashKey[tuple[list[Row], str]] = pytest.StashKey()
"""Stash key of a config: rows that this evidence took over from the run before, or why not."""

RECORD: pytest.StashKey[Callable[[str, Iterable[Row]], None]] = pytest.StashKey()
"""Stash key of a config: where rows of checks go; missing in a run without a report."""


def record_rows(config: pytest.Config, check: str, rows: Iterable[Row]) -> None:
    """Keep rows that a check read in the evidence of the run. check: its key.

    Does nothing without --mnode-report. A worker of pytest-xdist sends them with its next report.
    """
    if (record := config.stash.get(RECORD, None)) is not None:
        record(check, rows)


class EvidenceFile:
    """Writes the evidence of one run into a directory, and replaces that of an earlier run."""

    def __init__(self, directory: Path, kept: Iterable[Mapping[str, Any]] = ()) -> None:
        """kept: rows of checks to begin with. Raises OSError if the file cannot be written."""
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / NAME
        # Under another name until it has the rows that are only in the file that it replaces.
        made = directory / f"{NAME}.new"
        self._file = made.open("wb", buffering=0)
        self._synced = time.monotonic()
        self.append(HEADER, {"version": VERSION})
        self.append(ROWS, *kept)
        made.replace(self.path)

    def append(self, kind: str, *every: Mapping[str, Any]) -> None:
        """Append a row for each of these plain values. Raises OSError, and ValueError for NaN.

        Afterwards they outlive this process; at most a second later also a loss of power.
        """
        dated = {} if kind == ROWS else {"at": time.time()}
        lines = (
            json.dumps(
                {"kind": kind, **dated, **values},
                ensure_ascii=False,
                allow_nan=False,
                separators=(",", ":"),
            )
            for values in every
        )
        # A lone surrogate, from output that was not UTF-8, cannot be encoded.
        data = "".join(f"{line}\n" for line in lines).encode(errors="replace")
        while data:
            data = data[self._file.write(data) :]
        if (now := time.monotonic()) > self._synced + _SYNC_S:
            self._synced = now
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Raises OSError if the last rows cannot be written."""
        with self._file:
            os.fsync(self._file.fileno())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All rows after the header, in the order of their arrival, at last TORN if the end is torn.

    Raises UsageError, one line, for a file that is no evidence, or is damaged before its end.
    """
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    yield {"kind": TORN, "bytes": len(line)}
                    return
                values = _object(line)
                if number > 1:
                    yield values
                elif (values["kind"], values.get("version")) != (HEADER, VERSION):
                    raise ValueError(f"kind {values['kind']}, version {values.get('version')}")
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise UsageError(f"{path}: {reason}; accepted: an {NAME}, or its directory") from None
    except ValueError as error:
        raise UsageError(
            f"{path}: line {number}: {error}; accepted: evidence of version {VERSION}"
        ) from None
    if number == 0:
        raise UsageError(f"{path}: empty; accepted: evidence of version {VERSION}")


def rows_to_keep(path: Path, check: str, digest: str) -> tuple[list[dict[str, Any]], str]:
    """Rows of a check in the evidence of an earlier run with this spec, or why there are none.

    ("" if that run had none.) digest: of the spec.
    """
    rows, digests = list[dict[str, Any]](), set[str]()
    try:
        for values in read(path) if path.is_file() else ():
            if values["kind"] == ROWS and values.get("check") == check:
                rows.append({name: value for name, value in values.items() if name != "kind"})
            elif values["kind"] == RUN:
                digests.add(str(values["facts"]["spec"]["digest"]))
    except (UsageError, KeyError, TypeError) as error:
        return [], f"the evidence of the run before cannot be read ({error})"
    if rows and digests != {digest}:
        return [], "the run before had another spec"
    return rows, ""


def _object(line: bytes) -> dict[str, Any]:
    """Raises ValueError, in words, for a line that is no row."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise ValueError("no row")
    return values


_PLAIN = {one.name: one.default for one in fields(Row)}


def rows_to_json(check: str, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Plain values of a check's rows, without empty ones."""
    for row in rows:
        values = {name: getattr(row, name) for name in _PLAIN}
        if isinstance(row.value, float) and not math.isfinite(row.value):
            values |= {"value": None, "why": row.why or f"read {row.value}"}
        found = {name: value for name, value in values.items() if value != _PLAIN[name]}
        yield {"check": check, **found}


def rows_from_json(values: Mapping[str, Any]) -> tuple[str, Row]:
    """The check of a row of the file, and the row. Raises UsageError for one that is none."""
    try:
        return str(values["check"]), Row(**{k: v for k, v in values.items() if k in _PLAIN})
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"a row of {NAME}: {error}; accepted: a check and the keys of Row"
        ) from None

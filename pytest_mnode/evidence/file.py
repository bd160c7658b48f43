"""The evidence of a run: rows appended to one file as they arrive, and read back.

A line of `evidence.jsonl.gz` is one row: a JSON object that names its `kind`. The first names the
version. Only the controller writes, and each row reaches the operating system whole before the run
goes on, so that a controller that is killed loses none: the compressed stream is flushed after each
(`Z_SYNC_FLUSH`), and `zcat` shows it so far. A last line without an end was cut by a full disk. The
last row of a run that ended has the checksum of all before it, so that no row of theirs is missed.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.row import Row, finite

NAME = "evidence.jsonl.gz"
VERSION = 1
_GZIP = zlib.MAX_WBITS | 16
_SYNC_S = 1.0
"""A sync of the disk takes milliseconds, and a preflight of a large cluster has 30,000 cases."""

HEADER, RUN, COLLECTED, BEGAN, TEST, ROWS, END, TORN = (
    *("evidence", "run", "collected", "began", "test", "rows", "end"),
    "torn",
)
"""Kinds of lines. TORN is none of the file: `read` gives it for a last line without an end, and for
a stream that does not end after END."""

EARLIER: pytest.StashKey[tuple[list[Row], str]] = pytest.StashKey()
"""Stash key of a config: rows that this evidence took over from the run before, or why not."""

RECORD: pytest.StashKey[Callable[[Iterable[Mapping[str, Any]]], None]] = pytest.StashKey()
"""Stash key of a config: where rows of checks go, in plain values; missing in a run without a
report."""


def record_rows(config: pytest.Config, check: str, rows: Iterable[Row]) -> None:
    """Keep rows that a check read in the evidence of the run. check: its key.

    Does nothing without --mnode-report. A worker of pytest-xdist sends them with its next report.
    """
    record(config, rows_to_json(check, rows))


def record(config: pytest.Config, values: Iterable[Mapping[str, Any]]) -> None:
    """As `record_rows`, of plain values, each with a "check"."""
    if (append := config.stash.get(RECORD, None)) is not None:
        append(values)


class EvidenceFile:
    """Writes the evidence of one run into a directory, and replaces that of an earlier run."""

    def __init__(self, directory: Path, kept: Iterable[Mapping[str, Any]] = ()) -> None:
        """kept: rows of checks to begin with. Raises OSError if the file cannot be written."""
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / NAME
        # Under another name until it has the rows that are only in the file that it replaces.
        made = directory / f"{NAME}.new"
        self._file = made.open("wb", buffering=0)
        self._stream = zlib.compressobj(wbits=_GZIP)
        self._synced = time.monotonic()
        self._crc32 = 0
        self.append(HEADER, {"version": VERSION})
        self.append(ROWS, *kept)
        made.replace(self.path)

    def append(self, kind: str, *every: Mapping[str, Any]) -> None:
        """Append a row for each of these plain values. Raises OSError, and ValueError for NaN.

        Afterwards they outlive this process; at most a second later also a loss of power.
        """
        dated: dict[str, Any] = {} if kind == ROWS else {"at": time.time()}
        if kind == END:
            dated["crc32"] = self._crc32
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
        text = "".join(f"{line}\n" for line in lines).encode(errors="replace")
        self._crc32 = zlib.crc32(text, self._crc32)
        self._write(self._stream.compress(text) + self._stream.flush(zlib.Z_SYNC_FLUSH))
        if (now := time.monotonic()) > self._synced + _SYNC_S:
            self._synced = now
            os.fsync(self._file.fileno())

    def _write(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]

    def close(self) -> None:
        """Raises OSError if the last rows cannot be written."""
        with self._file:
            self._write(self._stream.flush())
            os.fsync(self._file.fileno())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All rows after the header, in the order of their arrival, at last TORN if the end is torn.

    Raises UsageError, one line, for a file that is no evidence, or is damaged before its end.
    """
    number, rest, kind, crc32 = 0, b"", "", 0
    try:
        with path.open("rb") as file:
            for data in _decompressed(file):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    number += 1
                    values = _object(line)
                    kind = values["kind"]
                    if kind == END and values.get("crc32", crc32) != crc32:
                        raise ValueError("rows before it are not those of the run")
                    crc32 = zlib.crc32(line + b"\n", crc32)
                    if number > 1:
                        yield values
                    elif (kind, values.get("version")) != (HEADER, VERSION):
                        raise ValueError(f"kind {kind}, version {values.get('version')}")
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise UsageError(f"{path}: {reason}; accepted: an {NAME}, or its directory") from None
    except ValueError as error:
        raise UsageError(
            f"{path}: line {number}: {error}; accepted: evidence of version {VERSION}"
        ) from None
    except zlib.error as error:
        if kind in ("", END):  # else a machine went down, and its disk has no more of it
            raise UsageError(
                f"{path}: {error}; accepted: evidence of version {VERSION}, compressed by gzip"
            ) from None
        rest = rest or b"?"
    except EOFError:  # while a run goes on, or of one that was killed
        rest = rest or b"?" * (kind == END)
    if rest:
        yield {"kind": TORN, "bytes": len(rest)}
    elif number == 0:
        raise UsageError(f"{path}: empty; accepted: evidence of version {VERSION}")


def _decompressed(file: IO[bytes]) -> Iterator[bytes]:
    """Its content as far as it can be read; then, if it is damaged there, raises zlib.error, and
    EOFError if it does not end there."""
    stream = zlib.decompressobj(wbits=_GZIP)
    while data := file.read(1 << 16):
        before = stream.copy()
        try:
            yield stream.decompress(data)
        except zlib.error:  # without what this call had read so far
            for byte in data:
                yield before.decompress(bytes([byte]))
    if not stream.eof:
        raise EOFError


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
    for row in map(finite, rows):
        values = {name: getattr(row, name) for name in _PLAIN}
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

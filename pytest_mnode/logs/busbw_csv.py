"""Reader of tables of sizes and rates that people keep as CSV. Pure.

Columns are identified by their heading: a size, and at least one of time, algbw and busbw. A unit
stands in the heading or in a size's cell; without one it is that of nccl-tests: bytes, microseconds
and 10^9 bytes per second. What could mean two things is refused.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import islice

from pytest_mnode.errors import UsageError
from pytest_mnode.logs.lines import plain_lines, without_prefix
from pytest_mnode.logs.nccl_log.text import plain_text
from pytest_mnode.logs.nccl_tests_rows import heading as nccl_heading
from pytest_mnode.spec.quantity import SIZE

ACCEPTED = "a heading such as size_bytes,time_us,algbw_gbytes_s,busbw_gbytes_s"

_SIDE = r"(?:(?P<place>inplace|ip)|outofplace|oop)?(?:avg|average|mean|median|(?P<most>peak|max))?"
_LAST_SIDE = re.compile(r"(?i)(.+?)(outofplace|oop|inplace)$")
_COLUMNS = {
    "size": re.compile(r"(?i:(?:message|msg|data|buffer|at)?(?:size|bytes))(?:in)?(?P<unit>.*)"),
    "time": re.compile(rf"(?i:{_SIDE}(?:time|latency|duration|elapsed))(?:in)?(?P<unit>.*)"),
    "algbw": re.compile(rf"(?i:{_SIDE}alg(?:o|orithm)?(?:bw|bandwidth))(?:in)?(?P<unit>.*)"),
    "busbw": re.compile(rf"(?i:{_SIDE}bus(?:bw|bandwidth))(?:in)?(?P<unit>.*)"),
    "wrong": re.compile(r"(?i:(?:outofplace|oop)?#?(?:num|n)?(?:wrong|errors?))(?P<unit>)"),
    "status": re.compile(r"(?i:(?:exit|return)?(?:status|code)|results?|state|rc)(?P<unit>)"),
    "collective": re.compile(r"(?i:collective|coll|operation|test|program|name)(?P<unit>)"),
    "in_place": re.compile(r"(?i:inplace)(?P<unit>)"),
    "ranks": re.compile(r"(?i:#?n?(?:um)?_?(?:ranks|gpus|procs)|np|worldsize)(?P<unit>)"),
    "per_rank": re.compile(r"(?i:gpusperrank)(?P<unit>)"),
    "nodes": re.compile(r"(?i:#?n?(?:um)?_?(?:nodes|hosts))(?P<unit>)"),
}
_OK = frozenset({"ok", "okay", "pass", "passed", "success", "succeeded", "completed", "0"})
_MAY_BE_HEADING = re.compile(r"size|bytes", re.IGNORECASE)
_WORD = re.compile(r"\s*(?:\[\d+,\d+\]<std\w+>: ?|\S+\s+)", re.ASCII)
_MOST_WORDS = 6
"""Words of a prefix, such as those of a journal: day, time, host and program."""
_LONGEST_PREFIX = 2000
_MOST_BYTES = 1 << 60
_FEW = 3
"""Words between blanks are a heading from this many known columns on; fewer may be a sentence."""
_JOINTS = re.compile(r"[\s_()\[\]{}.-]+")
_MICROSECONDS = {
    **dict.fromkeys(("", "us", "µs", "μs", "usec", "microseconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1e3),
    **dict.fromkeys(("s", "sec", "seconds"), 1e6),
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1e-3),
}
_PREFIXES = {"K": 1e3, "Ki": 1 << 10, "M": 1e6, "Mi": 1 << 20, "G": 1e9, "Gi": 1 << 30}
_RATE = re.compile(r"(?P<prefix>(?i:[kmg]i?))(?P<what>B|b|(?i:bytes?|bits?))(?i:/|p)?(?i:s|sec)")
_SHORT_SIZE = re.compile(r"([\d.]+) ?([kKMGT])i?", re.ASCII)
"""As nccl-tests takes it (-b 1G): 2^30 bytes."""
_THOUSANDS = re.compile(r"\d{1,3}(?:([ ,'_\u202f])\d{3})(?:\1\d{3})*(?:\.\d+)?", re.ASCII)
_WHOLE_GROUPS = re.compile(r"\d{1,3}(?:([ ,.'_\u202f])\d{3})(?:\1\d{3})*", re.ASCII)
"""A size with separators of thousands: it is whole, so that a comma or a point is one."""
_TWO_MEANINGS = re.compile(r"\d{1,3},\d{3}", re.ASCII)
_DECIMAL_COMMA = re.compile(r"\d+,\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line. busbw_gbytes_s, algbw_gbytes_s, time_us: None if the table lacks it.

    in_place: by a column that says so for each line, as rccl-tests write it. ok: false if a column
    such as status has anything but a word of success, also if it has nothing.
    """

    line: int
    size_bytes: int
    time_us: float | None
    algbw_gbytes_s: float | None
    busbw_gbytes_s: float | None
    wrong: int | None
    in_place: bool = False
    ok: bool = True


@dataclass(frozen=True, slots=True)
class CsvTable:
    """Lines of one collective over one number of ranks, each None if no column has it."""

    collective: str | None
    ranks: int | None
    nodes: int | None
    rows: tuple[CsvRow, ...]


def read_csv(output: str | bytes, *, alone: bool = True) -> tuple[CsvTable, ...]:
    """The tables in a text, by collective and ranks; empty if no line is a heading of one.

    Separators are commas, semicolons, tabs, bars or blanks. Lines above the heading, comments and
    lines whose size has no digit, such as averages, are ignored.

    alone: false if output of nccl-tests or perftest was read in the same text. A table has commas,
    semicolons, tabs or bars then, and ends with the first line without them.

    Raises UsageError, which names line and value, for a line that does not fit its heading and
    for a value or unit that could mean two things.
    """
    heading: _Heading | None = None
    found: dict[tuple[str | None, int | None, int | None], list[CsvRow]] = {}
    lines = plain_lines(output)
    lines = (_of_json(output) or _unprefixed(lines)) if alone else lines
    for number, line in enumerate(lines, 1):
        if (columns := _heading(line, number, alone=alone)) or (
            heading and not alone and heading.separator not in line
        ):
            heading = columns
        elif heading is None or line.lstrip().startswith("#") or not line.strip(" |-:+,;\t"):
            continue
        elif read := heading.row(line, number):
            key, row = read
            found.setdefault(key, []).append(row)
    return tuple(CsvTable(*key, tuple(rows)) for key, rows in found.items())


def _of_json(output: str | bytes) -> list[str]:
    """Lines of objects that are rows, in a list or one a line; empty for any other text."""
    lines = [line for line in plain_text(output).lines if line.strip()]
    try:
        several = len(lines) > 1 and lines[0].startswith("{") and lines[0].rstrip().endswith("}")
        rows = json.loads("[" + ",".join(lines) + "]" if several else "\n".join(lines))
    except (ValueError, RecursionError):
        return []
    if isinstance(rows, dict):
        rows = next((value for value in rows.values() if isinstance(value, list)), None)
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        return []
    written = StringIO()
    table = csv.DictWriter(written, rows[0], extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return written.getvalue().splitlines()


def _unprefixed(lines: list[str]) -> list[str]:
    """Lines without a prefix, by the words before the first heading that make it one, or more of
    one: of `n0: collective,size,busbw` one column is hidden."""
    for number, line in enumerate(lines, 1):
        if not _MAY_BE_HEADING.search(line):
            continue
        begins = [
            0,
            *(word.end() for word in islice(_WORD.finditer(line[:_LONGEST_PREFIX]), _MOST_WORDS)),
        ]
        found = [(at, _heading(line[at:], number)) for at in begins]
        columns = [(len(one.columns), -at) for at, one in found if one]
        if columns:
            return without_prefix(lines, line[: -max(columns)[1]])
    return lines


@dataclass(frozen=True, slots=True)
class _Heading:
    """columns: by quantity, the position of its cell and its unit. cells: their number."""

    separator: str
    columns: Mapping[str, tuple[int, str]]
    cells: int

    def row(
        self, line: str, number: int
    ) -> tuple[tuple[str | None, int | None, int | None], CsvRow] | None:
        cells = _cells(line, self.separator)
        size = cells[self.columns["size"][0]] if len(cells) > self.columns["size"][0] else line
        if not any(map(str.isdigit, size)):
            return None
        if len(cells) != self.cells:
            raise UsageError(
                f"line {number}: {len(cells)} cells, but the heading has {self.cells}: {line!r}"
            )
        given = {name: cells[at] for name, (at, _) in self.columns.items()}
        units = {name: unit for name, (_, unit) in self.columns.items()}

        def scaled(name: str, factor: Callable[[str], float]) -> float | None:
            return _scaled(given[name], factor(units[name])) if name in given else None

        rated = not given.keys().isdisjoint(("algbw", "busbw"))
        if rated and _TWO_MEANINGS.fullmatch(given.get("time", "")):
            del given["time"]  # 17,219 is not needed beside a rate

        try:
            row = CsvRow(
                number,
                _size(given["size"], units["size"]),
                scaled("time", _microseconds),
                scaled("algbw", _gbytes_s),
                scaled("busbw", _gbytes_s),
                _whole(given.get("wrong")),
                given.get("in_place", "").lower() in {"1", "true", "yes"},
                given.get("status", "ok").lower() in _OK,
            )
        except ValueError as error:
            raise UsageError(f"line {number}: {error}") from None
        collective, ranks = given.get("collective") or None, _whole(given.get("ranks"))
        ranks = ranks and ranks * (_whole(given.get("per_rank")) or 1)
        return (collective, ranks, _whole(given.get("nodes"))), row


def _heading(line: str, number: int, *, alone: bool = True) -> _Heading | None:
    if not _MAY_BE_HEADING.search(line) or (not alone and nccl_heading(line.replace("|", " "))):
        return None
    for separator in ("\t", ";", "|", ",", ""):
        if separator not in line or not (separator or alone) or (not separator and "|" in line):
            continue
        cells = _cells(line.lstrip().removeprefix("#"), separator)
        columns, in_place, most = (dict[str, tuple[int, str]]() for _ in range(3))
        for at, cell in enumerate(cells):
            joined = _LAST_SIDE.sub(r"\2\1", _JOINTS.sub("", cell))
            for name, pattern in _COLUMNS.items():
                if match := pattern.fullmatch(joined):
                    of = match.groupdict()
                    side = most if of.get("most") else in_place if of.get("place") else columns
                    side.setdefault(name, (at, match["unit"]))
        columns = most | in_place | columns  # a largest rate counts where there is no usual one
        enough = bool(separator) or len(columns) >= min(_FEW, len(cells))
        if (
            enough
            and "size" in columns
            and not columns.keys().isdisjoint(("time", "algbw", "busbw"))
        ):
            try:
                for name, (_, unit) in columns.items():
                    _check_unit(name, unit)
            except ValueError as error:
                raise UsageError(f"line {number}: {error}") from None
            return _Heading(separator, columns, len(cells))
    return None


def _cells(line: str, separator: str) -> list[str]:
    if not separator:
        return line.split()
    if separator == "|":
        line = line.strip().removeprefix("|").removesuffix("|").replace("**", "")
    try:
        [cells] = csv.reader([line], delimiter=separator, skipinitialspace=True)
    except (csv.Error, ValueError):
        return []
    return [cell.strip() for cell in cells]


def _check_unit(name: str, unit: str) -> None:
    match name:
        case "time":
            _microseconds(unit)
        case "algbw" | "busbw":
            _gbytes_s(unit)
        case "size":
            _size("1", unit)


def _size(cell: str, unit: str) -> int:
    """Bytes of a cell that has a unit itself, or that of its heading."""
    text = cell.strip()
    if _WHOLE_GROUPS.fullmatch(text):
        text = re.sub(r"\D", "", text)
    if short := _SHORT_SIZE.fullmatch(text):
        return int(SIZE.parse(f"{short[1]} {short[2].upper()}iB"))
    if not re.fullmatch(r"[\d.]+(?:[eE]\+?\d+)?", text):
        return int(SIZE.parse(text))
    if unit.lower() in {"", "b", "byte", "bytes"}:
        return _exact(float(text), cell)
    symbol = {one.lower(): one for one in SIZE.units}.get(unit.lower(), f"{unit}iB")
    if symbol not in SIZE.units:
        raise ValueError(f"size in {unit!r}; accepted: {', '.join(SIZE.units)}")
    return _exact(float(text) * float(SIZE.units[symbol]), cell)


def _exact(size: float, cell: str) -> int:
    if not 1 <= size < _MOST_BYTES or size != int(size):
        raise ValueError(f"size {cell!r} is no whole number of bytes above 0")
    return int(size)


def _microseconds(unit: str) -> float:
    if (factor := _MICROSECONDS.get(unit.lower())) is None:
        raise ValueError(f"time in {unit!r}; accepted: us, ms, s")
    return factor


def _gbytes_s(unit: str) -> float:
    """Factor to GB/s. The letter alone tells bits from bytes: gbps may mean either."""
    if not unit:
        return 1.0
    match = _RATE.fullmatch(unit)
    if match is None:
        raise ValueError(f"bandwidth in {unit!r}; accepted: GB/s, MB/s, GiB/s, Gbit/s")
    what, prefix = match["what"], match["prefix"]
    if what == "b" and not prefix[0].isupper():
        raise ValueError(f"bandwidth in {unit!r} may be in bytes or bits; accepted: GB/s or Gbit/s")
    bits = what == "b" or what.lower().startswith("bit")
    return _PREFIXES[prefix[0].upper() + prefix[1:].lower()] / 1e9 / (8 if bits else 1)


def _scaled(cell: str, factor: float) -> float | None:
    if cell.strip().lower() in {"", "n/a", "na", "nan", "-", "null", "none"}:
        return None
    value = float(_plain(cell))
    if not 0 <= value < float("inf"):
        raise ValueError(f"{cell!r} is no number of 0 or more")
    return value * factor


def _whole(cell: str | None) -> int | None:
    text = (cell or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _plain(cell: str) -> str:
    """A number without separators of thousands, with a point; refused if it may mean two."""
    text = cell.strip()
    if found := _THOUSANDS.fullmatch(text):
        groups = text.partition(".")[0].split(found[1])
        if found[1] == "," and len(groups) == 2 and "." not in text:
            raise ValueError(f"{cell!r} may be {text.replace(',', '')} or {text.replace(',', '.')}")
        return text.replace(found[1], "")
    return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text

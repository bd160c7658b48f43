"""Tests of nccl-tests, and the rows of their tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from pytest_mnode.logs.lines import number, whole
from pytest_mnode.logs.nvls import NvlsFacts
from pytest_mnode.spec.alpha_beta import Nvls

_SAME_COLUMN = {
    **{"bytes": "size", "N": "count", "op": "redop", "res": "error", "size(B)": "size"},
    **{"count(elems)": "count", "time(us)": "time", "algbw(GB/s)": "algbw"},
    **{"busbw(GB/s)": "busbw", "errors": "#wrong"},
}
"""By other programs of the kind, such as nccom-test of AWS Neuron, and in notes."""
_NO_NUMBER = re.compile(r"[+-]?(?:nan|inf|N/A)", re.IGNORECASE)
_ONE_BYTE = re.compile(r"u?int8|f(?:p|loat)?8|f8")
_NO_FACTS = NvlsFacts({})
_TIMES = ("time", "cputime")
_DAY_AND_TIME = re.compile(r"(?<=\s)(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)$", re.ASCII)
_RANK_IN_A_ROW = re.compile(r"(?<=[\w.])\[\d{1,6}\](?=\s)", re.ASCII)
"""A row is written in parts, and mpiexec -prepend-rank puts the rank before each part."""
_NCCL_LOG = re.compile(
    r"(?:\[[^\[\]]{0,60}\](?:<\w+>:)? ?)?[A-Za-z][\w.-]{0,255}:\d+:\d+ \[-?\d+\] "
    r".*?NCCL (?:INFO|WARN).*"
)
_BLOCK = ("time", "algbw", "busbw")
_USUAL_COLUMNS = tuple(
    (*("size", "count", "type"), *named, *_BLOCK, wrong, *_BLOCK, wrong)
    for named, wrong in ((("redop", "root"), "#wrong"), (("redop",), "error"), ((), "error"))
)
"""Columns of the versions since 2.13, and of older ones: for rows that are pasted without them."""
_DTYPE = re.compile(r"(?<=\d)\s+(?:b?float|half|double|u?int|f(?:p|loat)?8|bf)\w*\s")
_BEGUN = re.compile(r"(?<!\S)\d+\s+\d+\s+[a-z]\w*\s.*")


@dataclass(frozen=True, slots=True)
class Timing:
    """Results of one block of a row; None if the table has N/A.

    busbw_gbytes_s: in 10^9 bytes per second. wrong: number of wrong values; None if results were
    not checked. deviation: largest deviation of a value, in versions that print it instead.
    algbw_gbytes_s: as printed; None if it is not.
    """

    busbw_gbytes_s: float | None
    wrong: int | None
    deviation: float | None = None
    algbw_gbytes_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class NcclTestsRow:
    """Results of one message size. in_place is None if the table has only one block.

    dtype: of its values, as printed, such as float or fp8_e4m3; "" if it is not. reduces: whether
    an operation such as sum is printed; None without that column. root: -1 for none; None likewise.
    """

    size_bytes: int
    out_of_place: Timing
    in_place: Timing | None = None
    dtype: str = field(default="", compare=False)
    reduces: bool | None = field(default=None, compare=False)
    root: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class NcclTest:
    """One test's table and the lines around it.

    program: such as all_reduce_perf, by its output or the command line above it. nccl: what the
    heading and NCCL's log say of NVLS. ranks: number
    listed under "Using devices", else that of NCCL's log, 0 if both are missing. hosts: hosts of
    the ranks, each once. nodes: their number, else that of NCCL's log, 0 if both are missing.
    groups: number of independent groups of ranks. group_hosts: number of hosts of the first.
    settings: NCCL's variables and their values, by the command line and NCCL's log.
    separate_runs: several processes had the same rank, as in a build without MPI: each ran alone,
        and no rate is one of the fabric.
    validated: whether results were checked. out_of_bounds: the closing count of wrong values; None
        if the test did not reach it. failed: that line says FAILED.
    closed: a closing line was printed, so that no row is missing. faults: lines of an abort,
        without those of a launcher about the exit status of a test with wrong results.
    """

    program: str | None = None
    version: str | None = None
    nccl: NvlsFacts = _NO_FACTS
    ranks: int = 0
    groups: int = 1
    group_hosts: int = 1
    hosts: tuple[str, ...] = ()
    nodes: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    separate_runs: bool = False
    validated: bool | None = None
    rows: tuple[NcclTestsRow, ...] = ()
    out_of_bounds: int | None = None
    failed: bool = False
    closed: bool = False
    faults: tuple[str, ...] = ()

    @property
    def pins_ring(self) -> bool:
        """Whether NCCL was told to use a ring."""
        return self.settings.get("NCCL_ALGO", "").lower() == "ring"

    def nvls(self, *, across: bool) -> Nvls:
        """Whether NCCL let the switches of NVLink reduce: not values of one byte, which the
        instruction for it, multimem.ld_reduce, lacks on Hopper (PTX ISA).

        across: over several NVLink domains.
        """
        if small := next((row.dtype for row in self.rows if _ONE_BYTE.match(row.dtype)), None):
            return Nvls(used=False, why=f"values of {small}")
        return replace(self.nccl, settings=self.settings).used(across=across)

    @property
    def wrong(self) -> int | None:
        """Wrong values over all rows, in and out of place; None if results were not checked.

        Old versions print a deviation instead of a count: their closing line decides.
        """
        if self.failed and not self.out_of_bounds:
            return None
        total = max(sum(self.wrong_by_size.values()), self.out_of_bounds or 0)
        if self.validated is False:
            return total or None
        if all(row.out_of_place.wrong is not None for row in self.rows):
            return total if self.rows else None
        if self.out_of_bounds is not None and all(
            row.out_of_place.deviation is not None for row in self.rows
        ):
            return total
        return total or None

    @property
    def wrong_by_size(self) -> dict[int, int]:
        """Wrong values of each size in bytes that has any, in and out of place."""
        found: dict[int, int] = {}
        for row in self.rows:
            wrong = sum(t.wrong or 0 for t in (row.out_of_place, row.in_place) if t)
            if wrong:
                found[row.size_bytes] = found.get(row.size_bytes, 0) + wrong
        return found

    @property
    def only_cut_off(self) -> bool:
        """Whether rows were read, and nothing is wrong but a missing end."""
        return bool(self.rows) and not (self.closed or self.faults or self.separate_runs)

    @property
    def is_excerpt(self) -> bool:
        """Whether somebody took rows from the middle of an output: neither what the program prints
        above them nor what it prints below is there, so that nothing says that it was cut off."""
        opened = bool(self.ranks) or self.validated is not None or self.version is not None
        return self.only_cut_off and not opened

    @property
    def why_without_shape(self) -> str | None:
        """Reason why no rate of the table is one of a collective, whatever it was; else None."""
        alone = self.separate_runs or self.ranks == 1
        return self.why_incomplete if alone or not self.rows else None

    @property
    def why_incomplete(self) -> str | None:
        """Reason why the table must not be used; None if it can be used."""
        if self.faults:
            return f"aborted: {self.faults[0]}"
        if not self.rows:
            return "no row of results"
        if self.separate_runs:
            return "every process ran alone, as rank 0: nccl-tests was built without MPI"
        if self.ranks == 1:
            return "one rank, which sends nothing"
        if not self.closed:
            return f"cut off after {self.rows[-1].size_bytes} bytes: no closing line"
        return None


@dataclass(slots=True)
class Table:
    """A table with these columns, which a heading named if `headed`.

    guess: whether columns are those that a row fits if no heading names them.
    part: cells of a row whose end is missing. nccl-tests writes the beginning of a row, then runs,
    then writes each block of results, and NCCL may write its log between these parts.
    """

    columns: tuple[str, ...] = ()
    guess: bool = True
    headed: bool = False
    part: list[str] = field(default_factory=list)

    def read(self, line: str) -> tuple[tuple[str, ...], NcclTestsRow] | None:
        """Cells and row that end with this line; None if no row does."""
        if not self.columns:
            self.guess = self.guess and "busbw" not in line  # of a damaged heading
            if not (self.guess and _DTYPE.search(line)):
                return None
            fitting = (columns for columns in _USUAL_COLUMNS if _row_of(line, columns))
            self.columns = next(fitting, ())
        line = _NCCL_LOG.sub("", line) if "NCCL" in line else line
        if row := _row_of(line, self.columns):
            self.part = []
            return row
        if begun := _BEGUN.search(line):
            self.part = begun[0].split()
        elif len(self.part) in _starts(self.columns):
            self.part += reversed([*takewhile(_is_number, reversed(line.split()))])
            return _row_of(" ".join(self.part), self.columns)
        return None


def heading(line: str) -> tuple[str, ...]:
    """Column names of a table's heading; empty for any other line."""
    names = [_SAME_COLUMN.get(name, name) for name in line.replace("#wrong", " #wrong ").split()]
    if names[:1] == ["#"]:
        del names[0]
    times = sum(names.count(name) for name in _TIMES)
    whole_blocks = times and all(names.count(name) == times for name in ("algbw", "busbw"))
    return tuple(names) if names[:3] == ["size", "count", "type"] and whole_blocks else ()


def _row_of(line: str, columns: Sequence[str]) -> tuple[tuple[str, ...], NcclTestsRow] | None:
    """Cells and row of a table with these columns; None if the line is not a complete row of it.

    Its cells are the last of the line, because schedulers and collectors put words before them.
    """
    # rccl-tests marks errors past its bound with an asterisk.
    line = _DAY_AND_TIME.sub(r"\1T\2", line.replace("*", ""))
    cells = _RANK_IN_A_ROW.sub("", line).split()
    if len(cells) == len(columns) - 1 and "redop" in columns:
        # Some versions leave the operation of a collective that reduces nothing blank.
        columns = [name for name in columns if name != "redop"]
    cells = cells[max(0, len(cells) - len(columns)) :]
    if not columns or len(cells) != len(columns) or not all(map(_fits, columns, cells)):
        return None
    size_bytes, count = int(cells[0]), int(dict(zip(columns, cells, strict=True)).get("count", 0))
    blocks = list(_blocks(columns, cells))
    if blocks[0] is None or (count and size_bytes % count):
        return None
    in_place = blocks[1] if len(blocks) > 1 else None
    named = dict(zip(columns, cells, strict=True))
    return tuple(cells), NcclTestsRow(size_bytes, blocks[0], in_place, *about(named))


def about(row: Mapping[str, Any]) -> tuple[str, bool | None, int | None]:
    """Type, whether it reduces, and root of a row, by the names of its columns."""
    root = str(row.get("root", ""))
    reduces = row["redop"] != "none" if "redop" in row else None
    return str(row.get("type", "")), reduces, -1 if root == "-1" else whole(root.lstrip("-"))


def _fits(column: str, cell: str) -> bool:
    """Whether a cell fits its column; with a cell lost or added, the following ones do not."""
    if column in ("size", "count"):
        return cell.isascii() and cell.isdigit()
    if column == "timestamp":
        return True
    return _is_number(cell) != (column in ("type", "redop")) and not cell.startswith("#")


def _is_number(cell: str) -> bool:
    return number(cell) is not None or _NO_NUMBER.fullmatch(cell) is not None


def _starts(columns: Sequence[str]) -> list[int]:
    """Positions at which blocks of results begin."""
    return [i for i, name in enumerate(columns) if name in _TIMES]


def _blocks(columns: Sequence[str], cells: Sequence[str]) -> Iterator[Timing | None]:
    """The results of each block; None for a block without a time."""
    starts = _starts(columns)
    for start, end in zip(starts, [*starts[1:], len(columns)], strict=True):
        block = dict(zip(columns[start:end], cells[start:end], strict=True))
        if number(cells[start]) is None:
            yield None
            continue
        busbw = number(block["busbw"])
        yield Timing(
            busbw if busbw is not None and busbw >= 0 else None,
            whole(block.get("#wrong", "")),
            number(block.get("error", "")),
            _algbw(int(cells[0]), number(cells[start]), number(block["algbw"]), busbw),
        )


def _algbw(
    size_bytes: int, time_us: float | None, algbw: float | None, busbw: float | None
) -> float | None:
    """The algorithm's bandwidth in GB/s; of all-gathers and the like in versions of 2020 and
    earlier, which print the bus bandwidth in its place, from the time."""
    timed = size_bytes / time_us / 1e3 if time_us else 0.0
    if algbw and algbw == busbw and 0.49 < busbw / (timed or algbw) < 0.985:
        return timed
    return algbw

"""Reader of the output of nccl-tests (all_reduce_perf and others) and rccl-tests; never raises.

Columns are identified by the table's own heading, so that versions with and without root, with an
error or a #wrong column, with one or two blocks of results are all read. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_mnode.logs.lines import began_in_tmp, number, plain_lines, whole

_OURS = re.compile(
    r"#\s*(?=(?:size|bytes|Rank|nThread)\s"
    r"|Out of bounds|Avg bus|Collective test|nccl-tests version)"
)
"""Beginning of a line of nccl-tests, after any prefix."""
_DEVICE = re.compile(
    r"#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\b"
)
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)")
_STARTING = re.compile(r"#?\s*Collective test starting:\s*(\w+)")
_CLOSING = re.compile(r"#?\s*(?:Avg bus bandwidth\s*:\s*\S|Collective test concluded\b)")
_VERSION = re.compile(r"\b(?:nccl-tests v|rccl-tests: V)ersion\s+(\S+)")
_ITERATIONS = re.compile(r"\biters: (\d+).*\bvalid\w*: (\d+)")
_FAULT = re.compile(
    r"(?:.*[: ])?Test (?:NCCL|CUDA|HIP|failure)\b.*|.*(?:NCCL|CUDA|RCCL|HIP|MPI) failure.*"
    r"|.*\b(?:unhandled (?:system|cuda|hip) error|remote process exited).*"
    r"|.*\b(?:Segmentation fault|Killed|core dumped|SIGTERM|CANCELLED AT|DUE TO TIME LIMIT)\b.*"
    r"|(?:.*[\s:>])?(?:mpirun|prterun)\b.*\b(?:noticed|exited|abort\w*|detected)\b.*"
    r"|(?:.*[\s:>])?(?:(?:srun|slurmstepd): error: |MPI_ABORT\b).*"
    r"|.*\bsymbol lookup error\b.*|.*error while loading shared libraries.*"
)
_EXIT = re.compile(
    r"(?:.*[\s:>])?(?:mpirun|prterun|srun|slurmstepd|MPI_ABORT)\b.*|.*\bexited with\b.*"
)
"""Lines of launchers about ranks that exit with a status, as ranks do after wrong results."""
_SAME_COLUMN = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
_NO_NUMBER = re.compile(r"[+-]?(?:nan|inf|N/A)", re.IGNORECASE)
_TIMES = ("time", "cputime")
_DAY_AND_TIME = re.compile(r"(?<=\s)(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)$", re.ASCII)
_RANK_IN_A_ROW = re.compile(r"(?<=[\w.])\[\d{1,6}\](?=\s)", re.ASCII)
"""A row is written in parts, and mpiexec -prepend-rank puts the rank before each part."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Results of one block of a row; None if the table has N/A.

    busbw_gbytes_s: in 10^9 bytes per second. wrong: number of wrong values; None if results were
    not checked. deviation: largest deviation of a value, in versions that print it instead.
    """

    busbw_gbytes_s: float | None
    wrong: int | None
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class NcclTestsRow:
    """Results of one message size. in_place is None if the table has only one block."""

    size_bytes: int
    out_of_place: Timing
    in_place: Timing | None = None


@dataclass(frozen=True, slots=True)
class NcclTest:
    """One test's table and the lines around it.

    program: such as all_reduce_perf. ranks: number listed under "Using devices", 0 if the list is
    missing. hosts: hosts of the ranks, each once. groups: number of independent groups of ranks.
    separate_runs: several processes had the same rank, as in a build without MPI: each ran alone,
        and no rate is one of the fabric.
    validated: whether results were checked. out_of_bounds: the closing count of wrong values; None
        if the test did not reach it. failed: that line says FAILED.
    closed: a closing line was printed, so that no row is missing. faults: lines of an abort,
        without those of a launcher about the exit status of a test with wrong results.
    """

    program: str | None = None
    version: str | None = None
    ranks: int = 0
    groups: int = 1
    hosts: tuple[str, ...] = ()
    separate_runs: bool = False
    validated: bool | None = None
    rows: tuple[NcclTestsRow, ...] = ()
    out_of_bounds: int | None = None
    failed: bool = False
    closed: bool = False
    faults: tuple[str, ...] = ()

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
        counted_at_the_end = self.validated and self.out_of_bounds is not None
        if counted_at_the_end and all(row.out_of_place.deviation is not None for row in self.rows):
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
    def why_incomplete(self) -> str | None:
        """Reason why the table must not be used; None if it can be used."""
        if self.faults:
            return f"aborted: {self.faults[0]}"
        if not self.rows:
            return "no row of results"
        if self.separate_runs:
            return "every process ran alone, as rank 0: nccl-tests was built without MPI"
        if not self.closed:
            return f"cut off after {self.rows[-1].size_bytes} bytes: no closing line"
        return None


def read_nccl_tests(output: str | bytes) -> tuple[NcclTest, ...]:
    """The tests in `output`, in order; empty if it has no output of nccl-tests.

    Reads any text: prefixes of schedulers, doubled lines and other programs' lines are skipped.

    Source: nccl-tests, src/common.cu, which prints the table; doc/PERFORMANCE.md for its columns.
    """
    reader = _Reader()
    for line in plain_lines(output):
        reader.read(line)
    return reader.finished()


class _Reader:
    def __init__(self) -> None:
        self._done: list[NcclTest] = []
        self._begin()

    def _begin(self) -> None:
        self._test = NcclTest()
        self._rows: dict[tuple[str, ...], NcclTestsRow] = {}
        self._columns: tuple[str, ...] = ()
        self._devices: dict[tuple[str, ...], None] = {}
        self._faults: dict[str, None] = {}
        self._exits: dict[str, None] = {}
        self._anything = False

    def finished(self) -> tuple[NcclTest, ...]:
        self._end()
        return tuple(self._done)

    def _end(self) -> None:
        if self._anything:
            ranks = {(group, rank) for rank, group, _, _ in self._devices}
            test = replace(self._test, rows=tuple(self._rows.values()))
            exits = () if test.wrong or test.failed else self._exits
            self._done.append(
                replace(
                    test,
                    ranks=len(ranks),
                    groups=max(1, len({group for group, _ in ranks})),
                    hosts=tuple(dict.fromkeys(host for *_, host in self._devices)),
                    separate_runs=len(self._devices) > len(ranks),
                    faults=(*self._faults, *exits),
                )
            )
        self._begin()

    def read(self, line: str) -> None:
        text = line.strip()
        if not text:
            return
        if ours := _OURS.search(text):
            text = text[ours.start() :]
        if match := _STARTING.match(text):
            if self._test.program not in (None, match[1]) or self._begun():
                self._end()
            self._note(program=match[1])
        elif match := _DEVICE.match(text):
            if self._test.closed:
                self._end()  # another test in the same output
            self._anything = True
            self._devices[match[1], match[2] or "0", match[3], match[4]] = None
        elif facts := _facts_of(text):
            self._note(**facts)
        elif columns := _heading(text):
            if self._test.closed:
                self._end()
            self._anything = True
            self._columns = columns
        elif row := _row_of(text, self._columns):
            self._anything = True
            self._rows.update([row])  # a scheduler may print a line twice
        elif _FAULT.fullmatch(text) and not began_in_tmp(text):
            self._anything = self._anything or "Test " in text
            ended = self._test.closed and _EXIT.fullmatch(text)
            (self._exits if ended else self._faults)[text] = None

    def _begun(self) -> bool:
        """Whether a line of the test itself was read, not only lines above it."""
        return bool(self._rows or self._devices or self._columns or self._faults)

    def _note(self, **facts: Any) -> None:
        self._anything = True
        self._test = replace(self._test, **facts)


def _facts_of(line: str) -> dict[str, Any]:
    """Fields of the test in a line outside the table; empty for any other line."""
    if match := _VERSION.search(line):
        return {"version": match[1]}
    if match := _BOUNDS.match(line):
        return {"out_of_bounds": int(match[1]), "failed": match[2] == "FAILED", "closed": True}
    if _CLOSING.match(line):
        return {"closed": True}
    if (match := _ITERATIONS.search(line)) and "minBytes" in line:
        return {"validated": match[2] != "0"}
    return {}


def _heading(line: str) -> tuple[str, ...]:
    """Column names of a table's heading; empty for any other line."""
    names = [_SAME_COLUMN.get(name, name) for name in line.replace("#wrong", " #wrong ").split()]
    if names[0] == "#":
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
    return tuple(cells), NcclTestsRow(size_bytes, blocks[0], in_place)


def _fits(column: str, cell: str) -> bool:
    """Whether a cell fits its column; with a cell lost or added, the following ones do not."""
    if column in ("size", "count"):
        return cell.isascii() and cell.isdigit()
    if column == "timestamp":
        return True
    is_number = number(cell) is not None or _NO_NUMBER.fullmatch(cell) is not None
    return is_number != (column in ("type", "redop")) and not cell.startswith("#")


def _blocks(columns: Sequence[str], cells: Sequence[str]) -> Iterator[Timing | None]:
    """The results of each block; None for a block without a time."""
    starts = [i for i, name in enumerate(columns) if name in _TIMES]
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
        )

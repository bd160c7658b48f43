"""Reads what nccl-tests (all_reduce_perf and its like, rccl-tests too) print. Pure and total.

Columns are taken by the names in the table's own heading, so that versions with and without root,
with an error or a #wrong column, with one or two blocks of results are read alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from pytest_mnode.logs.lines import lines_of, number
from pytest_mnode.logs.nccl_table import Row, Timing, heading, row_of

__all__ = ["NcclTest", "Row", "Timing", "read_nccl_tests"]

_OURS = re.compile(
    r"#\s*(?=(?:size|bytes|Rank|nThread)\s"
    r"|Out of bounds|Avg bus|Collective test|nccl-tests version)"
)
"""Where a line of the program's own begins, whatever was put before it."""
_DEVICE = re.compile(
    r"#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\b"
)
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)")
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*(\S+)")
_STARTING = re.compile(r"#?\s*Collective test starting:\s*(\w+)")
_CONCLUDED = re.compile(r"#?\s*Collective test concluded\b")
_VERSION = re.compile(r"#?\s*nccl-tests version\s+(\S+)")
_ITERATIONS = re.compile(r"\biters: (\d+).*\bvalid\w*: (\d+)")
_FAULT = re.compile(
    r"(?:.*[: ])?Test (?:NCCL|CUDA|HIP|failure)\b.*|.*(?:NCCL|CUDA|RCCL|HIP|MPI) failure.*"
    r"|.*\b(?:unhandled (?:system|cuda|hip) error|remote process exited).*"
    r"|.*\b(?:Segmentation fault|Killed|core dumped|SIGTERM|CANCELLED AT|DUE TO TIME LIMIT)\b.*"
    r"|(?:mpirun|prterun)\b.*\b(?:noticed|exited|abort\w*|detected)\b.*"
    r"|(?:srun|slurmstepd): error: .*|MPI_ABORT\b.*"
    r"|.*\bsymbol lookup error\b.*|.*error while loading shared libraries.*"
)
_EXIT = re.compile(r"(?:mpirun|prterun|srun|slurmstepd|MPI_ABORT)\b.*|.*\bexited with\b.*")
"""What a launcher says of ranks that end with a status, as they do after wrong results."""


@dataclass(frozen=True, slots=True)
class NcclTest:
    """One test's table and what stood around it.

    program: such as all_reduce_perf, where the output says so.
    ranks: as listed under "Using devices", 0 where they are not; hosts: theirs, each once.
    groups: into how many the ranks were split, each running alone.
    separate_runs: several processes took themselves for the same rank, as a build without MPI does:
        each ran alone, and no rate is one of the fabric.
    validated: whether results were checked. out_of_bounds: the closing count of wrong values; None
        where the test did not come so far. failed: that line calls it so.
    closed: a closing line was printed, so that no row is missing. faults: lines that tell of an
    abort; not those of a launcher that a test with wrong results ended with a status.
    """

    program: str | None = None
    version: str | None = None
    ranks: int = 0
    groups: int = 1
    hosts: tuple[str, ...] = ()
    separate_runs: bool = False
    validated: bool | None = None
    rows: tuple[Row, ...] = ()
    out_of_bounds: int | None = None
    failed: bool = False
    average_busbw_gbytes_s: float | None = None
    closed: bool = False
    faults: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the test came to its closing lines, as one run, with rows and without a fault."""
        return self.why_incomplete is None

    @property
    def wrong(self) -> int | None:
        """Wrong values over all rows, in and out of place; None where results were not checked.

        Old versions print a deviation instead of a count: there the closing line decides.
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
        """What stands against using the table, in words; None where nothing does."""
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
    """The tests in `output`, in order; none where it holds nothing of nccl-tests.

    Takes any text: prefixes of schedulers, doubled lines and other programs' lines are passed over.

    Source: nccl-tests, src/common.cu, which prints the table; doc/PERFORMANCE.md for its columns.
    """
    reader = _Reader()
    for line in lines_of(output):
        reader.read(line)
    return reader.finished()


class _Reader:
    def __init__(self) -> None:
        self._done: list[NcclTest] = []
        self._begin()

    def _begin(self) -> None:
        self._test = NcclTest()
        self._rows: dict[Row, None] = {}
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
            test = replace(self._test, rows=tuple(self._rows))
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
        told = line.strip()
        if not told:
            return
        if ours := _OURS.search(told):
            told = told[ours.start() :]
        if match := _STARTING.match(told):
            if self._test.program not in (None, match[1]) or self._begun():
                self._end()
            self._note(program=match[1])
        elif match := _DEVICE.match(told):
            if self._test.closed:
                self._end()  # another test in the same output
            self._anything = True
            self._devices[match[1], match[2] or "0", match[3], match[4]] = None
        elif facts := _facts(told):
            self._note(**facts)
        elif columns := heading(told):
            if self._test.closed:
                self._end()
            self._anything = True
            self._columns = columns
        elif row := row_of(told, self._columns):
            self._anything = True
            self._rows[row] = None  # a scheduler may print a line twice
        elif _FAULT.fullmatch(told):
            self._anything = self._anything or "Test " in told
            ended = self._test.closed and _EXIT.fullmatch(told)
            (self._exits if ended else self._faults)[told] = None

    def _begun(self) -> bool:
        """Whether more is known of this test than what stands above its first line."""
        return bool(self._rows or self._devices or self._columns or self._faults)

    def _note(self, **facts: Any) -> None:
        self._anything = True
        self._test = replace(self._test, **facts)


def _facts(line: str) -> dict[str, Any]:
    """Fields of the test that a line outside the table tells; empty for any other line."""
    if match := _VERSION.match(line):
        return {"version": match[1]}
    if match := _BOUNDS.match(line):
        return {"out_of_bounds": int(match[1]), "failed": match[2] == "FAILED", "closed": True}
    if match := _AVERAGE.match(line):
        return {"average_busbw_gbytes_s": number(match[1]), "closed": True}
    if _CONCLUDED.match(line):
        return {"closed": True}
    if (match := _ITERATIONS.search(line)) and "minBytes" in line:
        return {"validated": match[2] != "0"}
    return {}

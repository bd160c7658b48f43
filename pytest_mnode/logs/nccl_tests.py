"""Reader of the output of nccl-tests (all_reduce_perf and others) and rccl-tests; never raises.

Columns are identified by the table's own heading, so that versions with and without root, with an
error or a #wrong column, with one or two blocks of results are all read. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_mnode.logs.lines import began_in_tmp, plain_lines
from pytest_mnode.logs.nccl_tests_json import JsonTest, read_json
from pytest_mnode.logs.nccl_tests_rows import NcclTestsRow, Table, Timing, heading
from pytest_mnode.logs.nvls import NvlsFacts
from pytest_mnode.spec.alpha_beta import Nvls

__all__ = ["NcclTest", "NcclTestsRow", "Timing", "read_nccl_tests"]

_OURS = re.compile(
    r"#\s*(?=(?:size|bytes|Rank|nThread)\s"
    r"|Out of bounds|Avg bus|Collective test|nccl-tests version)"
)
"""Beginning of a line of nccl-tests, after any prefix."""
_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err|diag)>:", re.ASCII)
"""Rank and stream, as mpirun --tag-output puts them before a line."""
_DEVICE = re.compile(
    r"#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\b"
)
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)")
_STARTING = re.compile(r"#?\s*Collective test starting:\s*(\w+)")
_NAMED = re.compile(r"\b([a-z_]+_perf)(?:\s+-{1,2}\w|\s*$)")
"""A program in a command line: older versions do not print which one they are."""
_COMM = re.compile(r"\bNCCL INFO .*\bn[rR]anks (?P<ranks>\d+)\b(?:.*? nNodes (?P<nodes>\d+)\b)?")
_SETTING = re.compile(r"\b(NCCL_[A-Z0-9_]+)(?:=| set by environment to )[\"']?([\w,:^-]+)")
_ONE_BYTE = re.compile(r"u?int8|f(?:p|loat)?8|f8")
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

_NO_FACTS = NvlsFacts({})


@dataclass(frozen=True, slots=True)
class NcclTest:
    """One test's table and the lines around it.

    program: such as all_reduce_perf, by its output or the command line above it. nccl: what the
    heading and NCCL's log say of NVLS. ranks: number
    listed under "Using devices", else that of NCCL's log, 0 if both are missing. hosts: hosts of
    the ranks, each once. nodes: their number, else that of NCCL's log, 0 if both are missing.
    groups: number of independent groups of ranks. settings: NCCL's variables and their values, by
    the command line and NCCL's log.
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
    def only_cut_off(self) -> bool:
        """Whether rows were read, and nothing is wrong but a missing end."""
        return bool(self.rows) and not (self.closed or self.faults or self.separate_runs)

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
    Results as JSON are read too, as a file or among other lines; they come last.

    Source: nccl-tests, src/common.cu, which prints the table; doc/PERFORMANCE.md for its columns.
    """
    reader = _Reader()
    lines = plain_lines(output)
    for line in lines:
        reader.read(line)
    return (*reader.finished(), *map(_of_json, read_json("\n".join(lines))))


def _of_json(test: JsonTest) -> NcclTest:
    faults = test.errors if not test.rows else ()
    if test.damaged:
        faults = (*faults, "its JSON has no end")
    return NcclTest(
        program=test.program,
        ranks=test.ranks,
        groups=test.groups,
        hosts=test.hosts,
        nodes=len(test.hosts),
        separate_runs=test.separate_runs,
        validated=test.validated,
        rows=test.rows,
        out_of_bounds=test.out_of_bounds,
        failed=test.failed,
        closed=test.closed,
        faults=faults,
    )


class _Reader:
    def __init__(self) -> None:
        self._done: list[NcclTest] = []
        self._named: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._test = NcclTest()
        self._rows: dict[tuple[str, ...], NcclTestsRow] = {}
        self._table = Table()
        self._devices: dict[tuple[str, ...], None] = {}
        self._faults: dict[str, None] = {}
        self._exits: dict[str, None] = {}
        self._anything = False
        self._in_log = (0, 0)

    def finished(self) -> tuple[NcclTest, ...]:
        self._end()
        return tuple(self._done)

    def _end(self) -> None:
        if self._anything:
            ranks = {(group, rank) for rank, group, _, _ in self._devices}
            hosts = tuple(dict.fromkeys(host for *_, host in self._devices))
            test = replace(self._test, rows=tuple(self._rows.values()))
            exits = () if test.wrong or test.failed else self._exits
            self._done.append(
                replace(
                    test,
                    program=test.program or self._named,
                    ranks=len(ranks) or self._in_log[0],
                    groups=max(1, len({group for group, _ in ranks})),
                    hosts=hosts,
                    nodes=len(hosts) or self._in_log[1],
                    separate_runs=len(self._devices) > len(ranks),
                    faults=(*self._faults, *exits),
                )
            )
        self._begin()

    def read(self, line: str) -> None:
        text = _TAG.sub("", line.strip(), count=1).strip()
        if not text:
            return
        self._learn(text)
        if ours := _OURS.search(text):
            text = text[ours.start() :]
        else:
            self._around(text)
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
        elif columns := heading(text):
            if self._test.closed:
                self._end()
            self._anything = True
            self._table = Table(columns)
        elif row := self._table.read(text):
            self._anything = True
            self._rows.update([row])  # a scheduler may print a line twice
        elif _FAULT.fullmatch(text) and not began_in_tmp(text):
            self._anything = self._anything or "Test " in text
            ended = self._test.closed and _EXIT.fullmatch(text)
            (self._exits if ended else self._faults)[text] = None

    def _learn(self, line: str) -> None:
        """What a line says of NCCL itself, wherever it stands."""
        if (facts := self._test.nccl.with_log([line])) is not self._test.nccl:
            self._test = replace(self._test, nccl=facts)

    def _around(self, line: str) -> None:
        """Facts in command lines and in NCCL's log, which are no output of the test."""
        named, set_here = _NAMED.search(line), dict(_SETTING.findall(line))
        if (named or set_here) and self._test.closed:
            self._end()  # the command line of the next test
        if named:
            self._named = named[1]
        if set_here:
            self._test = replace(self._test, settings={**self._test.settings, **set_here})
        if match := _COMM.search(line):
            # Communicators that are split off have fewer.
            read = (int(match["ranks"]), int(match["nodes"] or 0))
            self._in_log = max(self._in_log, read)

    def _begun(self) -> bool:
        """Whether a line of the test itself was read, not only lines above it."""
        return bool(self._rows or self._devices or self._table.columns or self._faults)

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

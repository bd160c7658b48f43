"""Reader of the output of nccl-tests (all_reduce_perf and others) and rccl-tests; never raises.

Columns are identified by the table's own heading, so that versions with and without root, with an
error or a #wrong column, with one or two blocks of results are all read. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from pytest_mnode.logs.lines import began_in_tmp, number, plain_lines, whole
from pytest_mnode.logs.nccl_log.text import plain_text
from pytest_mnode.logs.nccl_tests_rows import (
    NcclTest,
    NcclTestsRow,
    Table,
    Timing,
    about,
    heading,
)

__all__ = ["NcclTest", "NcclTestsRow", "Timing", "read_nccl_tests"]

_OURS = re.compile(
    r"#\s*(?=(?:size|bytes|Rank|nThread)\s"
    r"|Out of bounds|Avg bus|Collective test|nccl-tests version)"
)
"""Beginning of a line of nccl-tests, after any prefix."""
_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err|diag)>:", re.ASCII)
"""Rank and stream, as mpirun --tag-output puts them before a line."""
_DEVICE = re.compile(
    r"#?\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+(\d+)\s+)?on\s+(\S+)\s+device\b"
)
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)")
_STARTING = re.compile(r"#?\s*Collective test starting:\s*(\w+)")
NAMED_IN_A_COMMAND = re.compile(r"\b([a-z_]+_perf)(?:_mpi)?(?:\s+-{1,2}\w|\s*$)")
"""A program in a command line: older versions do not print which one they are."""
_COMM = re.compile(r"\bNCCL INFO .*\bn[rR]anks (?P<ranks>\d+)\b(?:.*? nNodes (?P<nodes>\d+)\b)?")
_SETTING = re.compile(r"\b(NCCL_[A-Z0-9_]+)(?:=| set by environment to )[\"']?([\w,:^-]+)")
_CLOSING = re.compile(r"#?\s*(?:Avg bus bandwidth\s*:\s*\S|Collective test concluded\b)")
_VERSION = re.compile(r"\b[nr]ccl-tests:? [vV]ersion\s+(\S+)")
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
_MARK = re.compile(r'"(?:out_of_place|average_bus_bandwidth|nccl-tests structured output|busBw)"')
_RCCL = '"busBw"'
"""In rows of rccl-tests, which `busbw_csv` reads."""
_BEGIN = re.compile(r"[\[{]\s*[\"{\[]")
_DAMAGED = NcclTest(faults=("its JSON has no end",))


def read_nccl_tests(output: str | bytes) -> tuple[NcclTest, ...]:
    """The tests in `output`, in order; empty if it has no output of nccl-tests.

    Reads any text: prefixes of schedulers, doubled lines and other programs' lines are skipped.
    Results as JSON are read too, as a file or among other lines; they come last.

    Source: nccl-tests, src/common.cu, which prints the table; doc/PERFORMANCE.md for its columns.
    """
    lines = plain_lines(output)
    tests = _tests(lines)
    if tests and not any(test.rows for test in tests):
        tests = _tests(_rejoined(lines))
    return (*tests, *read_json("\n".join(plain_text(output).lines)))


def _tests(lines: Sequence[str]) -> tuple[NcclTest, ...]:
    reader = _Reader()
    for line in lines:
        reader.read(line)
    return reader.finished()


def _rejoined(lines: Sequence[str]) -> list[str]:
    """Lines without the breaks of a terminal, from which they were copied, at its width."""
    width, joined = max(map(len, lines)), [""]
    for line in lines:
        joined[-1] += line
        if len(line) < width:
            joined.append("")
    return joined


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
            ranks = {(group, int(rank)) for rank, group, _, _ in self._devices}
            # Groups number their ranks from 0: people leave out the lines in between.
            number = sum(last + 1 for last in dict(sorted(ranks)).values())
            hosts = tuple(dict.fromkeys(host for *_, host in self._devices))
            hosts = hosts if number == len(ranks) else ()
            test = replace(self._test, rows=tuple(self._rows.values()))
            exits = () if test.wrong or test.failed else self._exits
            self._done.append(
                replace(
                    test,
                    program=test.program or _that_reduces(self._named, test.rows),
                    ranks=number or self._in_log[0],
                    groups=max(1, len({group for group, _ in ranks})),
                    group_hosts=max(
                        1, len({host for _, of, _, host in self._devices if of == "0"})
                    ),
                    hosts=hosts,
                    nodes=len(hosts) or self._in_log[1],
                    separate_runs=len(self._devices) > len(ranks),
                    faults=(*self._faults, *exits),
                )
            )
        self._begin()

    def read(self, line: str) -> None:
        text = _TAG.sub("", line.strip(), count=1).replace("|", " ").strip(" \t\"',")
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
            headed = self._table.headed and self._rows
            if self._test.closed or headed:
                self._end()  # another test in the same output, also if this one broke off
            self._anything = True
            self._devices[match[1], match[2] or "0", match[3], match[4]] = None
        elif facts := _facts_of(text):
            self._note(**facts)
        elif columns := heading(text):
            if self._test.closed:
                self._end()
            self._anything = True
            self._table = Table(columns, headed=True)
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
        named, set_here = NAMED_IN_A_COMMAND.search(line), dict(_SETTING.findall(line))
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


def _that_reduces(named: str | None, rows: Sequence[NcclTestsRow]) -> str | None:
    """The program of a command line; None if rows of another one stand below it."""
    nothing_reduced = bool(rows) and all(row.reduces is False for row in rows)
    return None if nothing_reduced and "reduce" in (named or "") else named


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


def read_json(text: str) -> list[NcclTest]:
    """The tests in a text that has JSON anywhere; empty for any other text."""
    if _MARK.search(text) is None:
        return []
    found: list[NcclTest] = []
    for value in _values(text):
        if value is None:
            found.append(_DAMAGED)
        elif isinstance(value, dict):
            found += [test for test in (_of_file(value), _of_fork(value)) if test is not None]
    return found if found or _RCCL in text else [_DAMAGED]


def _values(text: str) -> Iterator[Any]:
    """JSON values that begin in the text; None for the rest from a mark on that is none."""
    decoder, at = json.JSONDecoder(), 0
    while (begin := _BEGIN.search(text, at)) is not None:
        try:
            value, at = decoder.raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            end = text.find("\n", begin.start())
            line_end = len(text) if end < 0 else end
            if _MARK.search(text, begin.start(), line_end):
                yield None
                at = line_end
            else:
                at = begin.start() + 1
            continue
        yield value


def _of_file(file: Mapping[str, Any]) -> NcclTest | None:
    results, config = file.get("results"), _object(file.get("config"))
    if not isinstance(results, list) or not all(isinstance(row, dict) for row in results):
        return None
    devices = [one for one in _list(config.get("devices")) if isinstance(one, dict)]
    # Of the ranks of a process, the file lists the first one.
    per_process = (_int(config.get("nthreads")) or 1) * (_int(config.get("ngpus")) or 1)
    places = {(_int(one.get("group")), _int(one.get("rank"))) for one in devices}
    bounds = _object(file.get("out_of_bounds"))
    validation = _int(config.get("validation"))
    rows = (
        _row(
            row.get("size"),
            [_timing(row.get(key)) for key in ("out_of_place", "in_place")],
            row,
        )
        for row in results
    )
    argv, found = _list(file.get("args")), tuple(row for row in rows if row is not None)
    hosts = tuple(dict.fromkeys(str(one.get("hostname")) for one in devices))
    return NcclTest(
        rows=found,
        program=PurePath(str(argv[0])).name if argv else None,
        ranks=len(places) * per_process,
        groups=max(1, len({group for group, _ in places})),
        hosts=hosts,
        nodes=len(hosts),
        separate_runs=len(devices) > len(places),
        validated=None if validation is None else validation > 0,
        out_of_bounds=_int(bounds.get("count")),
        failed=str(bounds.get("okay")).lower() == "false",
        closed="average_bus_bandwidth" in file,
        faults=() if found else tuple(str(one) for one in _list(file.get("errors")) if one),
    )


def _timing(block: Any) -> Timing | None:
    if not isinstance(block, dict):
        return None
    algbw = _rate(block.get("alg_bw"))
    return Timing(_rate(block.get("bus_bw")), *_wrong(block.get("nwrong")), algbw)


def _of_fork(file: Mapping[str, Any]) -> NcclTest | None:
    sizes = file.get("benchmark")
    if not isinstance(sizes, list):
        return None
    rows = [
        _row(
            size,
            [
                Timing(
                    _rate(row[f"{side}_busbw"]),
                    *_wrong(row.get(f"{side}_errors", row.get(f"{side}_error"))),
                    _rate(row.get(f"{side}_algbw")),
                )
                if f"{side}_busbw" in row
                else None
                for side in ("oop", "ip")
            ],
            row,
        )
        for by_size in sizes
        if isinstance(by_size, dict)
        for size, row in by_size.items()
        if isinstance(row, dict)
    ]
    return NcclTest(rows=tuple(row for row in rows if row is not None), closed=True)


def _row(size: Any, blocks: Sequence[Timing | None], row: Mapping[str, Any]) -> NcclTestsRow | None:
    """blocks: out of place and in place. row: whatever else the file says of it."""
    size_bytes = _int(size)
    if size_bytes is None or not any(blocks):
        return None
    out_of_place, in_place = blocks
    return NcclTestsRow(size_bytes, out_of_place or Timing(None, None), in_place, *about(row))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: Any) -> int | None:
    return None if value is None else whole(str(value).strip())


def _rate(value: Any) -> float | None:
    rate = number(str(value))
    return rate if rate is not None and rate >= 0 else None


def _wrong(value: Any) -> tuple[int | None, float | None]:
    """Number of wrong values, or their deviation; both None if results were not checked."""
    count = _int(value)
    return count, number(str(value)) if count is None else None

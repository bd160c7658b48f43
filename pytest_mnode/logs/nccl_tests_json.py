"""Results of nccl-tests and rccl-tests as JSON. Pure; never raises.

Three forms: the file of nccl-tests (`-J`, src/util.cu), the "structured output" of its forks, which
has one object per size, and the rows of rccl-tests (`-Z json`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pytest_mnode.logs.lines import number, whole
from pytest_mnode.logs.nccl_tests_rows import NcclTest, NcclTestsRow, Timing

_MARK = re.compile(r'"(?:out_of_place|average_bus_bandwidth|nccl-tests structured output|busBw)"')
_BEGIN = re.compile(r"[\[{]\s*[\"{\[]")
_DAMAGED = NcclTest(faults=("its JSON has no end",))
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def read_json(text: str) -> list[NcclTest]:
    """The tests in a text that has JSON anywhere; empty for any other text."""
    if _MARK.search(text) is None:
        return []
    found, rows_of_rccl, closed = [], list[Mapping[str, Any]](), False
    for value in _values(text):
        if value is None:
            found.append(_DAMAGED)
        elif isinstance(value, list) and all(map(_is_row_of_rccl, value)):
            rows_of_rccl, closed = rows_of_rccl + value, True
        elif _is_row_of_rccl(value):
            rows_of_rccl.append(value)
        elif isinstance(value, dict):
            found += [test for test in (_of_file(value), _of_fork(value)) if test is not None]
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows_of_rccl:
        by_name.setdefault(str(row.get("name")), []).append(row)
    found += [_of_rccl(name, rows, closed) for name, rows in by_name.items()]
    return found or [_DAMAGED]


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


def _is_row_of_rccl(value: Any) -> bool:
    return isinstance(value, dict) and {"busBw", "size", "inPlace"} <= value.keys()


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
            str(row.get("type", "")),
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
            str(row.get("type", "")),
        )
        for by_size in sizes
        if isinstance(by_size, dict)
        for size, row in by_size.items()
        if isinstance(row, dict)
    ]
    return NcclTest(rows=tuple(row for row in rows if row is not None), closed=True)


def _of_rccl(name: str, rows: Sequence[Mapping[str, Any]], closed: bool) -> NcclTest:
    blocks: dict[int, dict[bool, Timing]] = {}
    for row in rows:
        if (size := _int(row["size"])) is not None:
            wrong = _wrong(row.get("#wrong", row.get("wrong")))
            timing = Timing(_rate(row["busBw"]), *wrong, _rate(row.get("algBw")))
            blocks.setdefault(size, {})[bool(_int(row["inPlace"]))] = timing
    dtype = str(rows[0].get("type", ""))
    found = (_row(size, [both.get(False), both.get(True)], dtype) for size, both in blocks.items())
    ranks = (_int(rows[0].get("ranks")) or 1) * (_int(rows[0].get("gpusPerRank")) or 1)
    return NcclTest(
        rows=tuple(row for row in found if row is not None),
        program=f"{_CAPITAL.sub('_', name).lower()}_perf",
        ranks=_int(rows[0].get("gpus")) or ranks,
        closed=closed,
    )


def _row(size: Any, blocks: Sequence[Timing | None], dtype: str) -> NcclTestsRow | None:
    """blocks: out of place and in place."""
    size_bytes = _int(size)
    if size_bytes is None or not any(blocks):
        return None
    out_of_place, in_place = blocks
    return NcclTestsRow(size_bytes, out_of_place or Timing(None, None), in_place, dtype)


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

"""The table of results that nccl-tests prints: its heading and its rows, as values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_mnode.logs.lines import number, whole

_SAME = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
_NEEDED = frozenset(("size", "algbw", "busbw"))
_TIMES = ("time", "cputime")
_DAY = re.compile(r"(?<=\s)(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Timing:
    """Results of one block of a row; None where the table has N/A.

    time_us: the host's where the table says cputime. Rates are GB/s of 10^9 bytes. wrong: values
    that were not right; None where none were checked.
    deviation: the largest of a value, by versions that print that instead of a count.
    """

    time_us: float | None
    algbw_gbytes_s: float | None
    busbw_gbytes_s: float | None
    wrong: int | None
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One size. in_place is None where the table has one block only."""

    size_bytes: int
    count: int | None
    dtype: str
    redop: str
    root: int | None
    out_of_place: Timing
    in_place: Timing | None


def heading(line: str) -> tuple[str, ...]:
    """Column names of a table's heading; empty for any other line."""
    names = [_SAME.get(name, name) for name in line.replace("#wrong", " #wrong ").split()]
    if names[0] == "#":
        del names[0]
    return tuple(names) if _is_heading(names) else ()


def _is_heading(names: list[str]) -> bool:
    return names[:1] == ["size"] and set(names) >= _NEEDED and bool({*_TIMES} & {*names})


def row_of(line: str, columns: Sequence[str]) -> Row | None:
    """A row of the table with these columns; None for a line that is no whole row of it.

    Its cells are the last of the line, for schedulers and collectors put words before them.
    """
    cells = _DAY.sub(r"\1T\2", line).split()
    if len(cells) == len(columns) - 1 and "redop" in columns:
        # Of what reduces nothing, some versions leave the operation blank.
        columns = [name for name in columns if name != "redop"]
        if any(
            number(cell) is None and cell != "N/A"
            for name, cell in zip(columns, cells, strict=True)
            if name not in ("type", "timestamp")
        ):
            return None
    cells = cells[max(0, len(cells) - len(columns)) :]
    if not columns or len(cells) != len(columns) or not cells[0].isdigit():
        return None
    if any(
        name in ("type", "redop") and cell[:1].isdigit()
        for name, cell in zip(columns, cells, strict=True)
    ):
        return None  # not its cells: some are cut off
    blocks = list(_blocks(columns, cells))
    first = dict(zip(columns, cells, strict=True))
    if not blocks or blocks[0].time_us is None:
        return None
    return Row(
        size_bytes=int(cells[0]),
        count=whole(first.get("count", "")),
        dtype=first.get("type", ""),
        redop=first.get("redop", ""),
        root=whole(first.get("root", "")),
        out_of_place=blocks[0],
        in_place=blocks[1] if len(blocks) > 1 else None,
    )


def _blocks(columns: Sequence[str], cells: Sequence[str]) -> Iterator[Timing]:
    starts = [i for i, name in enumerate(columns) if name in _TIMES]
    for start, end in zip(starts, [*starts[1:], len(columns)], strict=True):
        block = dict(zip(columns[start:end], cells[start:end], strict=True))
        yield Timing(
            number(block.get("time", block.get("cputime", ""))),
            number(block.get("algbw", "")),
            number(block.get("busbw", "")),
            whole(block.get("#wrong", "")),
            number(block.get("error", "")),
        )

"""Plain-text tables of rows and of measurements."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from pytest_mnode.measurement import Measurement, Verdict

Paint = Callable[[str], str]
"""Colours a verdict, padded by blanks, for a terminal."""
VERDICT = 3
"""The column of verdicts, in every table."""
_GAP = "  "
_HEADINGS = ("measurement", "measured", "expected", "verdict", "culprit or note")


def plain(text: str) -> str:
    """`text` itself, for a terminal without colours."""
    return text


def aligned(
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    shrinks: Mapping[int, int] | None = None,
    paint: Paint = plain,
) -> list[str]:
    """Lines of a table whose first row has the headings, and whose column VERDICT has verdicts.

    width: columns of the terminal; longer cells are wrapped. None if unlimited.
    shrinks: columns that may shrink, with the least width of each; the widest shrinks first.
    paint: colours a verdict.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    gaps = len(_GAP) * (len(widths) - 1)
    while width is not None and sum(widths) + gaps > width:
        wide = [i for i, least in (shrinks or {}).items() if widths[i] > least]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return [line for row in rows for line in _wrapped(row, widths, paint)]


def measurement_table(
    measurements: Iterable[Measurement], width: int | None = None, paint: Paint = plain
) -> list[str]:
    """One row per distinct measurement, with the number of equal ones."""
    counted: dict[tuple[str, ...], int] = {}
    for one in measurements:
        counted[_row(one)] = counted.get(_row(one), 0) + 1
    rows = [_HEADINGS, *(_with_count(row, count) for row, count in counted.items())]
    return aligned(rows, width, {0: 20, 2: 12, 4: 12}, paint)


def _row(one: Measurement) -> tuple[str, ...]:
    verdict = "recorded" if one.verdict is None else one.verdict.value
    return (
        one.name,
        one.measured,
        one.expected.short(one.unit) if one.expected else "",
        "FAIL" if one.verdict is Verdict.FAIL else verdict,
        "; ".join(filter(None, (one.culprit, _shown(one), one.note))),
    )


def _shown(one: Measurement) -> str:
    return one.doubt or (f"detection limit {one.detection.text}" if one.detection else "")


def _with_count(row: tuple[str, ...], count: int) -> tuple[str, ...]:
    return row if count == 1 else (f"{row[0]} ({count} times)", *row[1:])


def _wrapped(row: Sequence[str], widths: Sequence[int], paint: Paint) -> Iterator[str]:
    """Lines of one row; nothing is cut."""
    cells = [textwrap.wrap(cell, size or 1) for cell, size in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = [p.ljust(size) for p, size in zip(parts, widths, strict=True)]
        if not any(parts[VERDICT + 1 :]):
            padded = [*padded[:VERDICT], parts[VERDICT]]
        if parts[VERDICT]:
            padded[VERDICT] = paint(padded[VERDICT])
        yield _GAP.join(padded).rstrip()

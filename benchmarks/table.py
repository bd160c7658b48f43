"""Tables for the terminal and for Markdown, and the statistics in their cells."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def terminal(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns, the first one left-aligned."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join((first, *others)).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join((title, "", line(head), rule, *(line(row) for row in rows), ""))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[c.replace("|", "\\|").replace("\n", " ") for c in row] for row in (head, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join((lines[0], "|" + " --- |" * len(head), *lines[1:]))


def ms(values: Sequence[float]) -> str:
    """Median of `values` in seconds, as milliseconds."""
    return number(statistics.median(values) * 1e3) if values else "-"


def spread_ms(values: Sequence[float]) -> str:
    """10th to 90th percentile of `values` in seconds, as milliseconds."""
    if len(values) < 2:
        return "-"
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return f"{number(cuts[0] * 1e3)} – {number(cuts[-1] * 1e3)}"


def ratio(values: Sequence[float], to: Sequence[float]) -> str:
    """Median of `values` divided by median of `to`."""
    if not values or not to:
        return "-"
    return f"{statistics.median(values) / statistics.median(to):.2f} ×"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"

"""A text table of a scaling job by rank, and its charts. Pure."""

from __future__ import annotations

from pytest_mnode.charts import Bars, Chart, Level, Lines, Part, Series
from pytest_mnode.criteria.scaling.judge import PART_NAMES, ScalingResult
from pytest_mnode.criteria.scaling.timings import PARTS
from pytest_mnode.launchers.node import count

_MOST_RANKS = 16


def table(found: ScalingResult) -> str:
    """Each rank's step on all nodes, in ms, of the ranks that are the slowest most often: what the
    measurements of all ranks do not say."""
    one, timings = found.counts[-1], found.timings
    heads = ("rank", "node", "step", *PARTS, "slowest in")
    rows: list[tuple[str, ...]] = [heads]
    ranks = sorted(one.parts.ranks, key=lambda rank: -rank.slowest_in)
    for rank in sorted(ranks[:_MOST_RANKS], key=lambda rank: rank.rank):
        times = (rank.step.wall_s, *rank.step.parts)
        ms = (f"{seconds * 1e3:.1f}" for seconds in times)
        rows.append((str(rank.rank), rank.node, *ms, f"{rank.slowest_in:.0%}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{found.how}, {timings.gradient_bytes} B of gradients per step in "
        f"{len(timings.calls)} collectives; {timings.backend} on {timings.device}",
        f"each rank on {one.row.count} nodes, ms per step:",
    ]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells))
    return "\n".join(lines)


def charts(found: ScalingResult) -> list[Chart]:
    """The scaling curve with its 95 % interval and bounds, and the loss split by its parts."""
    more = [one for one in found.counts if one.row.count > 1]
    if not more:
        return []

    def series(name: str, values: list[float]) -> Series:
        points = zip((one.row.count for one in more), values, strict=True)
        return Series(name, ((1, 1.0), *points))

    bounds = dict.fromkeys((one.bound, one.source) for one in more)
    return [
        Lines(
            f"Efficiency by nodes: {found.how}",
            "nodes",
            "efficiency",
            (
                series("measured", [one.row.efficiency for one in more]),
                series("95 % interval, low", [one.row.low for one in more]),
                series("95 % interval, high", [one.row.high for one in more]),
            ),
            tuple(Level("bound", bound) for bound, _ in bounds),
        ),
        Bars(
            "Where the time of a step is lost, more than on one node",
            "ms of a step of the mean rank",
            tuple(count(one.row.count) for one in more),
            tuple(
                Part(name, tuple(one.parts.lost[n] * 1e3 for one in more))
                for n, name in enumerate(PART_NAMES)
            ),
        ),
    ]

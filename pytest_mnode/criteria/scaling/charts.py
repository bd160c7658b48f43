"""Charts of scaling: efficiency over nodes, and the loss in each part of a step. Pure."""

from __future__ import annotations

from pytest_mnode.charts import Bars, Chart, Level, Lines, Part, Series
from pytest_mnode.criteria.scaling.judge import PART_NAMES, ScalingResult
from pytest_mnode.criteria.scaling.plan import nodes


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
            tuple(nodes(one.row.count) for one in more),
            tuple(
                Part(name, tuple(one.parts.lost[n] * 1e3 for one in more))
                for n, name in enumerate(PART_NAMES)
            ),
        ),
    ]

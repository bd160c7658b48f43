"""Text tables of a scaling job, by number of nodes and by rank, and its charts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mnode.charts import Bars, Chart, Level, Lines, Part, Series
from pytest_mnode.criteria.scaling.judge import PART_NAMES, CountResult, ScalingResult
from pytest_mnode.criteria.scaling.plan import nodes
from pytest_mnode.criteria.scaling.timings import PARTS

_HEADS = ("nodes", "ms/step", "mean", "samples/s", "tokens/s", "efficiency", "±")
_MOST_RANKS = 16


def table(found: ScalingResult) -> str:
    """Text tables: scaling, where the time of a step goes, and each rank's step."""
    timings, promise = found.timings, found.promise
    model = promise.model
    lines = [
        f"{promise.kind} scaling, {promise.parallel}, {timings.parameters} parameters in "
        f"{model.layers} layers, {timings.gradient_bytes} B of gradients per step in "
        f"{len(timings.calls)} collectives; {timings.backend} on "
        f"{timings.device}; medians of {promise.steps} steps in each of {timings.rounds} rounds, "
        f"{promise.warmup} dropped before them"
    ]
    if promise.compute_s is not None:
        lines.append(
            f"emulated: forward and backward take {promise.compute_s * 1e3:g} ms, as declared; "
            "gradients, buckets and collectives are real"
        )
    lines += ["", *_aligned([_HEADS, *(_row(one) for one in found.counts)])]
    lines += ["", "ms per step of the mean rank, and (more than on one node):"]
    lines += _aligned([("nodes", *PART_NAMES), *(_parts(one) for one in found.counts)])
    for one in found.counts:
        if one.row.count > 1:
            causes = one.description or "almost nothing"
            lines += ["", f"{one.row.count} nodes lose {_ms(one.row.lost_s)} ms per step: {causes}"]
    if found.slow_links:
        lines.append(f"slow links: {found.slow_links}")
    if found.counts:
        lines += ["", f"each rank on {found.counts[-1].row.count} nodes, ms per step:"]
        lines += _aligned(_ranks(found.counts[-1]))
    return "\n".join(lines)


def _row(one: CountResult) -> tuple[str, ...]:
    row, mean = one.row, one.measured.by_mean()
    efficiency = (
        ("1", "") if row.count == 1 else (f"{row.efficiency:.3f}", f"{row.uncertainty:.3f}")
    )
    rates = (f"{row.samples_s:.4g}", f"{row.tokens_s:.4g}")
    return (str(row.count), _ms(one.measured.step_s), _ms(mean.step_s), *rates, *efficiency)


def _parts(one: CountResult) -> tuple[str, ...]:
    pairs = zip(one.parts.parts, one.parts.lost, strict=True)
    more = one.row.count > 1
    return (
        str(one.row.count),
        *(f"{_ms(path)} ({lost * 1e3:+.1f})" if more else _ms(path) for path, lost in pairs),
    )


def _ranks(one: CountResult) -> list[tuple[str, ...]]:
    heads = ("rank", "node", "step", *PARTS, "of it waiting", "slowest in")
    rows: list[tuple[str, ...]] = [heads]
    ranks = sorted(one.parts.ranks, key=lambda rank: -rank.slowest_in)
    for rank in sorted(ranks[:_MOST_RANKS], key=lambda rank: rank.rank):
        parts = (_ms(float(getattr(rank, name))) for name in PARTS)
        last = (_ms(rank.waiting_s), f"{rank.slowest_in:.0%}")
        rows.append((str(rank.rank), rank.node, _ms(rank.step_s), *parts, *last))
    return rows


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


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

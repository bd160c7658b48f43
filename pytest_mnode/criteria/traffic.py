"""Judges the traffic of today's jobs: experts, groups at the same time, two jobs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING

from pytest_mnode.charts import Bars, Part
from pytest_mnode.culprit import Culprit
from pytest_mnode.intervals import interval_of, quantile_interval
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.measurement import (
    Bound,
    HeadlineMark,
    Measurement,
    at_least,
    at_most,
    listed,
)
from pytest_mnode.spec.quantity import SIZE
from pytest_mnode.spec.traffic import CALLS_FOR_P99

if TYPE_CHECKING:
    from pytest_mnode.measuring.lanes import Experts, LaneTimes, Together, Tokens
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec.traffic import ExpertsPromise, JobsPromise, ParallelPromise

_KEY = "criteria.traffic"
_CONFIDENCE = 0.98
"""Of both sides together: the true value is beyond one end in at most 1 of 100 cases."""
SLOW_PATH = 0.7
"""[choice] A path that by itself carries less of the line than this is to blame, if another one
carries more: TCP by one connection reaches 0.9 of it."""
_APART = 1.3
"""[choice] A group that takes this many times as long as the median one stands apart."""


def slow_paths(rates: Mapping[tuple[str, str], float], line_gbits_s: float) -> Culprit | None:
    """Paths that are slow by themselves: their common node if all of them have one, or the paths;
    None if none is, or all are."""
    slow = {path: rate for path, rate in rates.items() if rate < SLOW_PATH * line_gbits_s}
    if not slow or len(slow) == len(rates):
        return None
    words = listed(f"{a}→{b} alone {rate:.4g} Gbit/s" for (a, b), rate in slow.items())
    for end, way in ((0, "tx"), (1, "rx")):
        nodes = {path[end] for path in slow}
        others = [path for path in rates if path[end] in nodes and path not in slow]
        if len(nodes) == 1 and len(slow) > 1 and not others:
            [node] = nodes
            return Culprit(f"{node} {way} ({words})", node)
    return Culprit.path(words, *slow)


def _ratio(  # noqa: PLR0917  the parts of a measurement
    name: str,
    ratios: list[float],
    bound: Bound | None,
    source: str,
    culprit: Culprit | None,
    note: str,
    mark: HeadlineMark | None = None,
) -> Measurement:
    kept = interval_of(ratios, _CONFIDENCE)
    if kept is None:
        return Measurement(name, None, "", bound, source, note=note or "too few rounds")
    value = (kept.low * kept.high) ** 0.5
    interval = kept.low, kept.high
    return Measurement(
        name, value, "", bound, source, culprit, note, interval=interval, headline=mark
    )


def _group(one: LaneTimes, world: World) -> Culprit | None:
    """The slowest group, if it stands apart from the others."""
    usual, slowest = median(one.by_group_s), max(one.by_group_s)
    if len(one.by_group_s) < 2 or slowest < _APART * usual:
        return None
    ranks = one.lane.groups[one.by_group_s.index(slowest)]
    nodes = [*dict.fromkeys(world.nodes[rank // world.local_size] for rank in ranks)]
    times = f"{1e3 * slowest:.3g} ms, others {1e3 * usual:.3g}"
    words = f"{one.lane.name} group of ranks {listed(map(str, ranks), 16, ', ')} ({times})"
    return Culprit(f"{words} on {compress(nodes)}", either=[nodes])


def judge_parallel(
    found: Together, promise: ParallelPromise, world: World
) -> Iterator[Measurement]:
    """Each dimension against the model, and beside the others; all against their sum."""
    path = slow_paths(found.paths_gbits_s, found.line_gbits_s)
    least, key = promise.at_least_fraction, "traffic.parallel.at_least_fraction"
    for one in found.lanes:
        name, alone = f"{found.title}: {one.lane.name}", median(one.alone_s)
        together = median(one.together_s)
        if one.expected_s is not None:
            bound = None if least is None else at_least(least).of(f"criteria.{key}", least)
            rates = [f"{8e-9 * one.busiest_bytes / s:.4g}" for s in (alone, together)]
            note = f"{one.lane.kind} of {SIZE.text(one.lane.size_bytes)} in {len(one.by_group_s)} "
            note += f"groups; busiest node {rates[0]} Gbit/s alone, {rates[1]} beside the others"
            yield _ratio(
                f"{name}, rate alone over the model's",
                [one.expected_s / s for s in one.alone_s],
                bound,
                "" if least is None else f"{key} {least:g}",
                path or _group(one, world),
                note,
            )
        ratios = [a / b for a, b in zip(one.alone_s, one.together_s, strict=True)]
        yield _ratio(f"{name}, rate beside the others over alone", ratios, None, "", None, "")
    share, key = promise.together_at_least_fraction, "traffic.parallel.together_at_least_fraction"
    yield _ratio(
        f"{found.title}: one after the other over all at once",
        found.overlaps,
        None if share is None else at_least(share).of(f"criteria.{key}", share),
        "" if share is None else f"{key} {share:g}",
        path,
        f"sum {1e3 * median(found.sums_s):.4g} ms, at once {1e3 * median(found.whole_s):.4g} ms",
        HeadlineMark("all groups at once"),
    )


def judge_jobs(found: Together, promise: JobsPromise, world: World) -> Iterator[Measurement]:
    """What each job loses to the other."""
    most, key = promise.loss_at_most, "traffic.jobs.loss_at_most"
    nodes = [
        [*dict.fromkeys(world.nodes[rank // world.local_size] for rank in one.lane.groups[0])]
        for one in found.lanes
    ]
    shared = Culprit(
        f"what {' and '.join(map(compress, nodes))} share", either=[[*nodes[0], *nodes[1]]]
    )
    for one, mine in zip(found.lanes, nodes, strict=True):
        bound = None if most is None else at_least(1 - most).of(f"criteria.{key}", 1 - most)
        rates = [
            f"{8e-9 * one.busiest_bytes / median(s):.4g}" for s in (one.alone_s, one.together_s)
        ]
        yield _ratio(
            f"{one.lane.name}, rate beside the other over alone",
            [a / b for a, b in zip(one.alone_s, one.together_s, strict=True)],
            bound,
            "" if most is None else f"1 - {key} {most:g}",
            shared,
            f"on {compress(mine)}, busiest node {rates[0]} Gbit/s alone, {rates[1]} beside",
            HeadlineMark(one.lane.name, "beside another"),
        )


def judge_experts(found: Experts, promise: ExpertsPromise, world: World) -> Iterator[Measurement]:
    """Median and 99th percentile of dispatch and combine, by size."""
    path = slow_paths(found.paths_gbits_s, found.line_gbits_s)
    for order, one in enumerate(found.tokens):
        size = f"experts, {SIZE.text(one.size_bytes)} × skew {found.skew:g}"
        yield Measurement(f"{size}, p50", 1e6 * one.p50_s, "µs", note=f"{len(one.calls_s)} calls")
        yield Measurement(f"{size}, p99", 1e6 * one.p99_s, "µs")
        if one.expected_s is not None:
            most, key = promise.p50_at_most_times, "traffic.experts.p50_at_most_times"
            blocks = [median(one.calls_s[n::5]) / one.expected_s for n in range(5)]
            yield _ratio(
                f"{size}, p50 over the model's",
                blocks,
                None if most is None else at_most(most).of(f"criteria.{key}", most),
                "" if most is None else f"{key} {most:g} × model {1e6 * one.expected_s:.4g} µs",
                path or _hot(one.calls_s, one.hot, world),
                "",
                HeadlineMark("experts", "of the model's time", order=order),
            )
        yield _tail(f"{size}, p99 over p50", one, promise.p99_at_most_times, path, world)


def _tail(
    name: str, one: Tokens, most: float | None, path: Culprit | None, world: World
) -> Measurement:
    """The 99th percentile over the median, between the calls that it may be by their number."""
    key = "traffic.experts.p99_at_most_times"
    kept = quantile_interval(one.calls_s, 0.99, _CONFIDENCE)
    value, interval, note = one.p99_s / one.p50_s, None, ""
    if kept:
        interval = kept.low / one.p50_s, kept.high / one.p50_s
    elif most:
        note = f"{len(one.calls_s)} calls do not say it: {CALLS_FOR_P99} are needed; "
    calls = [*zip(one.calls_s, one.hot, strict=True)]
    beyond = [rank for took_s, rank in calls if most and took_s > most * one.p50_s]
    late = beyond or [rank for took_s, rank in calls if took_s >= one.p99_s]
    return Measurement(
        name,
        None if note else value,
        "",
        None if most is None else at_most(most).of(f"criteria.{key}", most),
        "" if most is None else f"{key} {most:g}",
        path or _late(late, world),
        f"{note}slowest calls with hot rank {listed(map(str, late), 8, ', ')}",
        interval=interval,
    )


def _late(hot: list[int], world: World) -> Culprit | None:
    """The node that was hot in most of the slow calls, which is only suspected; None if none was,
    or there are too few nodes or calls to tell."""
    by_node = Counter(world.nodes[rank // world.local_size] for rank in hot)
    [(node, count)] = by_node.most_common(1)
    if len(world.nodes) < 3 or len(hot) < 3 or 2 * count <= len(hot):
        return None
    return Culprit(f"{node}: hot in {count} of {len(hot)} slow calls", node).suspected


def _hot(calls_s: tuple[float, ...], hot: tuple[int, ...], world: World) -> Culprit | None:
    """The node whose experts take longest when they are chosen most, if it stands apart."""
    by_node: dict[str, list[float]] = {}
    for took_s, rank in zip(calls_s, hot, strict=True):
        by_node.setdefault(world.nodes[rank // world.local_size], []).append(took_s)
    medians = {node: median(times) for node, times in by_node.items()}
    slowest = max(medians, key=medians.__getitem__)
    if len(medians) < 3 or medians[slowest] < _APART * median(medians.values()):
        return None
    return Culprit(f"{slowest}: tokens to its experts take longest", slowest)


def chart(found: Together) -> Bars:
    """Rates of the busiest node, alone and beside the others."""
    crossing = [one for one in found.lanes if one.busiest_bytes]
    alone, beside = (
        [8e-9 * one.busiest_bytes / median(s) for one, s in zip(crossing, every, strict=True)]
        for every in ([one.alone_s for one in crossing], [one.together_s for one in crossing])
    )
    lost = tuple(a - b for a, b in zip(alone, beside, strict=True))
    parts = Part("beside the others", tuple(beside)), Part("lost to the others", lost)
    labels = tuple(one.lane.name for one in crossing)
    return Bars(f"{found.title}: rate of the busiest node", "Gbit/s", labels, parts)

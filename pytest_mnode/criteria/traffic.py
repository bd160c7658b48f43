"""Judges traffic of many nodes at once: experts, groups at the same time, two jobs; bisection,
incast, congestion. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median, median_high, median_low
from typing import TYPE_CHECKING

from pytest_mnode.charts import Bars, Part
from pytest_mnode.criteria.port_counters.judging import judge as judge_ports
from pytest_mnode.criteria.port_counters.rises import rises
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.detection import estimate
from pytest_mnode.intervals import interval_of, quantile_interval
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.measurement import (
    Bound,
    HeadlineMark,
    Measurement,
    Term,
    all_of,
    at_least,
    at_most,
    equals,
    listed,
)
from pytest_mnode.spec.quantity import SIZE
from pytest_mnode.spec.traffic import CALLS_FOR_P99

if TYPE_CHECKING:
    from pytest_mnode.measuring.at_once import Beside, Bisection, Incast
    from pytest_mnode.measuring.lanes import Experts, LaneTimes, Together, Tokens
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec.inventory import Fabric
    from pytest_mnode.spec.traffic import (
        BisectionPromise,
        CongestionPromise,
        Counted,
        ExpertsPromise,
        IncastPromise,
        JobsPromise,
        ParallelPromise,
    )


_KEY = "criteria.traffic"
_CONFIDENCE = 0.98
"""Of both sides together: the true value is beyond one end in at most 1 of 100 cases."""
SLOW_PATH = 0.7
"""[choice] A path that by itself carries less of the line than this is to blame, if another one
carries more: TCP by one connection reaches 0.9 of it."""
_APART = 1.3
"""[choice] A group that takes this many times as long as the median one stands apart."""


def slow_paths(rates: Mapping[tuple[str, str], tuple[float, float]]) -> Culprit | None:
    """Paths that are slow by themselves: their common node if all of them have one, and two of its
    partners are fast with others; or the paths; None if none is, or all are. rates: each with its
    own line's, Gbit/s."""
    slow = {path: rate for path, (rate, line) in rates.items() if rate < SLOW_PATH * line}
    if not slow or len(slow) == len(rates):
        return None
    words = listed(f"{a}→{b} alone {rate:.4g} Gbit/s" for (a, b), rate in slow.items())
    for end, way in ((0, "tx"), (1, "rx")):
        nodes = {path[end] for path in slow}
        others = [path for path in rates if path[end] in nodes and path not in slow]
        healthy = {path[1 - end] for path in rates if path not in slow}
        if len(nodes) == 1 and len({path[1 - end] for path in slow} & healthy) > 1 and not others:
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


def _groups(one: LaneTimes, world: World) -> Culprit | None:
    """The groups that stand apart from the others, the slowest first."""
    usual, found = median(one.by_group_s), list[Culprit]()
    each = sorted(zip(one.by_group_s, one.lane.groups, strict=True), reverse=True)
    for took_s, ranks in each if len(each) > 1 else ():
        if took_s >= _APART * usual:
            nodes = [*dict.fromkeys(world.nodes[rank // world.local_size] for rank in ranks)]
            times = f"{1e3 * took_s:.3g} ms, others {1e3 * usual:.3g}"
            words = f"{one.lane.name} group of ranks {listed(map(str, ranks), 16, ', ')} ({times})"
            found.append(Culprit(f"{words} on {compress(nodes)}", either=[nodes]))
    return all_of(found)


def judge_parallel(
    found: Together, promise: ParallelPromise, world: World
) -> Iterator[Measurement]:
    """Each dimension against the model, and beside the others; all against their sum."""
    path = slow_paths(found.paths_gbits_s)
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
                path or _groups(one, world),
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
    path = slow_paths(found.paths_gbits_s)
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
    """The nodes whose experts take longest when they are chosen most, if they stand apart."""
    by_node: dict[str, list[float]] = {}
    for took_s, rank in zip(calls_s, hot, strict=True):
        by_node.setdefault(world.nodes[rank // world.local_size], []).append(took_s)
    medians = {node: median(times) for node, times in by_node.items()}
    if len(medians) < 3:
        return None
    usual = median_low(medians.values())
    slow = [node for node, took_s in medians.items() if took_s >= _APART * usual]
    found = [Culprit(f"{node}: tokens to its experts take longest", node) for node in slow]
    return all_of(
        one if len(by_node[node]) > 2 else one.suspected
        for node, one in zip(slow, found, strict=True)
    )


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


_MARKS = ("np_cnp_sent", "np_ecn_marked_roce_packets")


def judge_bisection(found: Bisection, promise: BisectionPromise) -> list[Measurement]:
    """The sum over all pairs. If each pair alone is fast enough, what they share is to blame."""
    fraction, blocking = promise.at_least_fraction, promise.oversubscription
    limit = fraction * found.line_gbits_s / blocking
    value = estimate(found.gbits_s)
    names = [compress(half) for half in found.halves]
    text = f"{names[0]} and {names[1]}"
    each = fraction * found.line_gbits_s / len(found.halves[0])
    slow = {pair: rate for pair, rate in found.alone_gbits_s.items() if rate < each / blocking}
    shown = listed(f"{a} and {b} alone {rate:.4g}" for (a, b), rate in slow.items())
    culprit = Culprit(
        f"uplinks between {text}: each pair alone is fast enough",
        either=[[node for half in found.halves for node in half]],
    )
    if slow:
        culprit = Culprit.merged(shown, [Culprit.path(shown, (a, b), (b, a)) for a, b in slow])
    bound = at_least(limit).of("criteria.fabric.bisection.at_least_fraction", fraction)
    return [
        Measurement(
            "bisection, all pairs at once, both ways",
            value.value if value else None,
            "Gbit/s",
            bound,
            f"fabric.bisection: at_least_fraction {fraction:g} × line rate of "
            f"{2 * len(found.halves[0])} nodes' NICs {found.line_gbits_s:g} Gbit/s / "
            f"oversubscription {blocking:g}",
            culprit,
            f"between {text}; {len(found.gbits_s)} communicators",
            interval=value.interval if value else None,
        )
    ]


def judge_incast(found: Incast, promise: IncastPromise, fabric: Fabric) -> list[Measurement]:
    """What the slowest node received in its turn, and what ports counted meanwhile."""
    fraction = promise.at_least_fraction
    limit = fraction * found.line_gbits_s
    slow = {node: rate for node, rate in found.gbits_s.items() if rate < limit}
    worst = min(found.gbits_s, key=found.gbits_s.__getitem__)
    if (lost := promise.lost_at_most_fraction) is not None:
        fabric = fabric.model_copy(update={"lost_at_most_fraction": lost})
    key, own = "fabric.lost_at_most_fraction", "fabric.incast.lost_at_most_fraction"
    ports = [
        one
        if lost is None or key not in one.source or one.expected is None
        else replace(
            one,
            expected=replace(
                one.expected,
                terms=tuple(Term(f"criteria.{own}", term.value) for term in one.expected.terms),
            ),
            source=one.source.replace(key, own),
        )
        for one in judge_ports([*rises(found.before, found.after, fabric.interfaces)], fabric)
    ]
    if lost is None and fabric.by_kernel:
        ports = [
            replace(one, expected=None, source="recorded: TCP finds its rate by losses")
            if key in one.source
            else one
            for one in ports
        ]
    return [
        Measurement(
            "incast, node that received least",
            found.gbits_s[worst],
            "Gbit/s",
            at_least(limit).of("criteria.fabric.incast.at_least_fraction", fraction),
            f"fabric.incast.at_least_fraction {fraction:g} × line rate of its NICs "
            f"{found.line_gbits_s:g} Gbit/s",
            _receivers(slow, found),
            f"{worst}, from {found.senders} nodes at once; {len(found.gbits_s)} nodes in turns",
        ),
        *(replace(one, name=f"{one.name}, in an incast") for one in ports),
        *_counted("pause frames in an incast", "pause", promise.pause, found.pauses),
        *_counted("congestion marks in an incast", "ecn", promise.ecn, _marks(found)),
    ]


def _receivers(slow: Mapping[str, float], found: Incast) -> Culprit | None:
    """Nodes that received less than the median one; of those that received as much anybody may be
    to blame: a node that sends slowly slows all others."""
    usual = median_high(found.gbits_s.values())
    names = {node: f"{node} received {rate:.4g} Gbit/s" for node, rate in slow.items()}
    apart = [
        node for node, rate in slow.items() if len(found.gbits_s) > 2 and _APART * rate < usual
    ]
    culprit = all_of(Culprit(names[node], node) for node in apart)
    if len(apart) == len(slow):
        return culprit
    rest = listed(text for node, text in names.items() if node not in apart)
    return all_of([culprit, Culprit(rest, either=[{*found.gbits_s, *found.after}])])


def _marks(found: Incast) -> dict[str, int | str]:
    """Marks and notifications that each node counted; of several counters the largest."""
    counts: dict[str, int | str] = {}
    for node, after in found.after.items():
        before = found.before[node].ports
        rises = [
            now - start
            for port, counters in after.ports.items()
            for name in _MARKS
            if (now := counters.get(name)) is not None
            and (start := before.get(port, {}).get(name)) is not None
        ]
        counts[node] = max(rises) if rises else "its NICs do not count marks"
    return counts


def _counted(
    name: str, key: str, wanted: Counted, counts: dict[str, int | str] | object
) -> list[Measurement]:
    """The sum over nodes, judged if it must be or must not be; what nobody counts is inconclusive
    where it is judged, and left out where it is not."""
    assert isinstance(counts, dict)
    known = {node: count for node, count in counts.items() if isinstance(count, int)}
    why = listed(f"{node}: {count}" for node, count in counts.items() if isinstance(count, str))
    source = f"fabric.incast.{key} {wanted}"
    total = sum(known.values())
    if wanted == "may":
        return [Measurement(name, total, "", note=why)] if known else []
    bound = at_least(1) if wanted == "must" else equals(0)
    if why and not (total if wanted == "must" else any(known.values())):
        return [Measurement.unknown(name, why, expected=bound, source=source)]
    guilty = [node for node, count in known.items() if bool(count) is (wanted == "never")]
    # A switch or another node makes a node count.
    culprit = Culprit(f"{compress(guilty)}: {'none' if wanted == 'must' else 'some'}", guilty)
    culprit = culprit if wanted == "must" else culprit.suspected
    return [Measurement(name, total, "", bound, source, culprit, why)]


def judge_congestion(found: Beside, promise: CongestionPromise) -> list[Measurement]:
    """The victims' loss: over the rounds, of the ratio of times alone and beside the aggressors."""
    ratios = [one / both for one, both in zip(found.alone_s, found.beside_s, strict=True)]
    kept = interval_of(ratios, _CONFIDENCE)
    name, most = "loss of an all-reduce beside other traffic", promise.loss_at_most
    bound = None if most is None else at_most(100 * most)
    if bound is not None and most is not None:
        bound = bound.of("criteria.fabric.congestion.loss_at_most", most)
    source = "recorded" if most is None else f"fabric.congestion.loss_at_most {most:g}"
    text = f"all-reduce over {compress(found.victims)}, exchange over {compress(found.aggressors)}"
    if kept is None:
        return [Measurement.unknown(name, text, unit="%", expected=bound, source=source)]
    low, high = 100 * (1 - kept.high), 100 * (1 - kept.low)
    early = sum(last < both for last, both in zip(found.lasted_s, found.beside_s, strict=True))
    notes = [text, f"{len(ratios)} rounds"]
    notes += [f"in {early} of them the other traffic ended first: it costs more"] if early else []
    culprit = all_of(
        [
            Culprit(
                f"what {compress(found.victims)} and {compress(found.aggressors)} share",
                either=[[*found.victims, *found.aggressors]],
                parts=Parts(),
            )
        ]
    )
    value = min(max(100 * (1 - (kept.low * kept.high) ** 0.5), low), high)
    return [
        Measurement(name, value, "%", bound, source, culprit, listed(notes), interval=(low, high))
    ]

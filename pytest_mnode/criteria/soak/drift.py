"""Judges whether a node, or all of them, lose speed during a soak. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_mnode.criteria.soak.found import Round
from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import Detection
from pytest_mnode.intervals import interval_of
from pytest_mnode.measurement import Bound, Measurement, all_of, at_least
from pytest_mnode.spec.soak import SoakCriterion

FALSE_ALARM = 0.01
"""Chance that noise calls any node of a healthy cluster slower than before, by any of its rates."""
FEWEST_AT_AN_END, MOST_AT_AN_END = 3, 6
"""Values that are compared between the first quarter and the last: rounds, or medians of rounds
that follow each other, as these have more in common than rounds of different minutes."""
_PEERS = 3
"""Nodes from which on a rate is compared with that of the median node of the same round."""
_SLOWER = 0.1
_MOST_CORRELATED = 0.9
NAMED = 16


@dataclass(frozen=True, slots=True)
class _Trend:
    """How a rate went from the first quarter to the last. node: "" for all of them.

    ratio: of the last to the first. limit: below it a loss of more than is tolerated is sure.
    """

    node: str
    ratio: float
    limit: float
    half: float


def drift(
    rounds: Sequence[Round], promise: SoakCriterion | None, *, shared: bool = False
) -> list[Measurement]:
    """By kind of rate: the node that lost most of it from the first quarter of rounds to the last.

    Rounds with a failure do not count, nor does the first round, in which caches are cold. Where
    there are other nodes, a rate is divided by that of the median node of the same round, and that
    median is judged by itself: what all nodes lose alike has another cause. The bound is what is
    tolerated, less what the scatter of the compared values explains with FALSE_ALARM, which all
    nodes and kinds share: t-intervals of logarithms (`intervals.interval_of`), not trimmed, which
    would not quite keep such a confidence, as much wider as rounds are correlated with the one
    before. Simulated, of 2 and 4 nodes, nothing tolerated: 0.7 to 1.2 % of soaks of 20 and 60
    rounds, with a correlation of 0 to 0.7; of 8 rounds, which hardly tell it, up to 2.1 %; of 240,
    in 300 runs only, up to 2.7 %.
    """
    tolerated = promise.slower_at_most_fraction if promise is not None else _SLOWER
    whole = [one for one in rounds[1:] if one.rates and not one.failures]
    nodes: dict[str, set[str]] = {}
    for rate in (rate for one in rounds for rate in one.rates):
        nodes.setdefault(rate.what, set()).add(rate.node)
    # Of few nodes that share a machine nothing tells a loss from a busier machine.
    kinds = [what for what, those in nodes.items() if not shared or len(those) >= _PEERS]
    series = {what: _series(what, whole, shared=shared) for what in kinds}
    comparisons = sum(map(len, series.values()))
    found = []
    for what, by_node in series.items():
        name = f"{what}, last quarter over first, worst node"
        of_nodes = correlation([values for node, values in by_node.items() if node])
        trends = [
            _trend(
                *(node, values, tolerated, FALSE_ALARM / comparisons),
                of_nodes if node else correlation([values]),
            )
            for node, values in by_node.items()
        ]
        known = [one for one in trends if one is not None]
        if known and len(known) == len(trends):
            found.append(_judged(name, known, tolerated, comparisons, shared=shared))
        elif trends or len(whole) < 2 * FEWEST_AT_AN_END:
            least = 2 * FEWEST_AT_AN_END + 1
            why = f"{len(rounds)} rounds, of which {len(whole)} can be compared; {least} are needed"
            expected = None if promise is None else at_least(1 - tolerated)
            source = f"1 less slower_at_most_fraction {tolerated:g}"
            found.append(Measurement(name, None, "", expected, source, note=why))
    return found


def _series(what: str, rounds: Sequence[Round], *, shared: bool) -> dict[str, list[float]]:
    """Values of a rate by round, by node; "" for the median of all."""
    by_round = [{r.node: r.value for r in one.rates if r.what == what} for one in rounds]
    nodes = sorted({node for rates in by_round for node in rates})
    by_round = [rates for rates in by_round if rates.keys() == set(nodes)]
    if len(nodes) < _PEERS:
        return {node: [rates[node] for rates in by_round] for node in nodes}
    medians = [statistics.median(rates.values()) for rates in by_round]
    found = {
        node: [rates[node] / middle for rates, middle in zip(by_round, medians, strict=True)]
        for node in nodes
    }
    return found if shared else {**found, "": medians}


def correlation(series: Collection[Sequence[float]]) -> float:
    """Of each value with the next, at least 0: that of the median series, so that one node's drift
    is not taken for it. Of few values it comes out too low by about (1 + 3 r) / n.

    Source: Kendall, "Note on bias in the estimation of autocorrelation", Biometrika 41, 1954.
    """
    found = [0.0]
    for values in series:
        middle = statistics.fmean(values) if values else 0.0
        off = [value - middle for value in values]
        if whole := sum(one**2 for one in off):
            near = sum(a * b for a, b in pairwise(off)) / whole
            found.append(near + (1 + 3 * near) / len(off))
    return max(0.0, min(_MOST_CORRELATED, statistics.median(found[1:] or found)))


def _wider(correlation: float, blocks: int, length: int) -> float:
    """How many times wider an interval of the mean of `blocks` means of `length` values each is,
    if values are correlated so with the one before, and by a power of that with earlier ones."""

    def variance(count: int) -> float:  # of a mean
        return (1 + 2 * sum((1 - j / count) * correlation**j for j in range(1, count))) / count

    whole = variance(blocks * length)
    return math.sqrt((blocks - 1) * whole / (variance(length) - whole))


def _trend(
    node: str, values: Sequence[float], tolerated: float, chance: float, correlated: float
) -> _Trend | None:
    """None where there are too few values, or one is not above 0."""
    count = max(FEWEST_AT_AN_END, len(values) // 4)
    if len(values) < 2 * count:
        return None
    ends = [blocks(some, MOST_AT_AN_END) for some in (values[:count], values[-count:])]
    if not all(0 < value < math.inf for end in ends for value in end):
        return None
    ratios = [last / first for first, last in zip(*ends, strict=True)]
    found = interval_of(ratios, 1 - 2 * chance, trimmed=False)
    if found is None:
        return None
    ratio = math.sqrt(found.low) * math.sqrt(found.high)
    half = math.log(found.high / ratio) * _wider(correlated, len(ratios), count // len(ratios))
    return _Trend(node, ratio, (1 - tolerated) * math.exp(-half), half)


def blocks(values: Sequence[float], most: int) -> list[float]:
    """At most so many medians of values that follow each other."""
    count = min(most, len(values))
    edges = [len(values) * i // count for i in range(count + 1)]
    return [statistics.median(values[a:b]) for a, b in pairwise(edges)]


def _judged(
    name: str,
    trends: Sequence[_Trend],
    tolerated: float,
    comparisons: int,
    *,
    shared: bool,
) -> Measurement:
    worst = min(trends, key=lambda one: one.ratio / one.limit)
    slower = [
        Culprit(f"{one.node} ({100 * (1 - one.ratio):.3g} % slower)", one.node)
        if one.node
        else Culprit(f"all nodes alike ({100 * (1 - one.ratio):.3g} % slower)")
        for one in trends
        if one.ratio < one.limit
    ]
    blur = 1 - math.exp(-max(one.half for one in trends))
    least = min(one.limit * math.exp(-one.half) for one in trends)
    bound = Bound(at_least(0).relation, worst.limit).of("soak.slower_at_most_fraction", tolerated)
    scatter = 100 * (1 - math.exp(-worst.half))
    return Measurement(
        name,
        worst.ratio,
        "",
        bound,
        f"1 less slower_at_most_fraction {tolerated:g}, less the scatter of rounds "
        f"({scatter:.3g} %, {comparisons} comparisons)",
        all_of(slower, NAMED),
        worst.node or "all nodes",
        detection=Detection(
            "less", 1 - least, len(trends), blur, None if shared else max(tolerated, 1e-9)
        ),
        false_alarm=FALSE_ALARM * len(trends) / comparisons,
    )

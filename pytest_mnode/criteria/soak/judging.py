"""Judges the rounds of a soak: failures, and the rates that they exclude. Pure.

A soak is a test plan of fixed length: so many failures are accepted in so many node-hours. What it
shows besides is a limit: with k failures in H node-hours the true rate is below U(k) / H with 95 %,
U the upper limit of a Poisson mean (`intervals.most_mean`). Of the cluster this is the mean rate of
its nodes; of one node, and of one path, it is by its own hours, which are fewer.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby

from pytest_mnode.charts import Chart, Lines, Moment, Series, Span, Timeline
from pytest_mnode.criteria.soak.drift import NAMED, blocks, drift
from pytest_mnode.criteria.soak.found import Failure, Round
from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import smallest_share_wrong
from pytest_mnode.intervals import most_mean
from pytest_mnode.measurement import HeadlineMark, Measurement, all_of, at_least, at_most, listed
from pytest_mnode.spec.quantity import DURATION
from pytest_mnode.spec.soak import SoakCriterion

CONFIDENCE = 0.95
_MOST_LINES, _MOST_POINTS = 16, 200
_LOADED, _FAILED = "under load", "a failure"


def judge(
    rounds: Sequence[Round],
    promise: SoakCriterion | None,
    *,
    for_s: float,
    cut: str = "",
    note: str = "",
    shared: bool = False,
    false_alarm: float | None = None,
) -> list[Measurement]:
    """Measurements of a soak. for_s: how long it was to be. cut: why it was shorter; "" if not.

    promise: None accepts no failure and asks for no number of hours. note: about earlier runs.
    shared: whether nodes share a machine, whose other programs change rates of all nodes.
    false_alarm: chance that noise calls a rank of a healthy cluster slow in any round; None if
    rates are not compared.
    """
    soaked_s = sum(one.took_s for one in rounds)
    found = [_failures(rounds, promise, note, false_alarm)] if rounds else []
    if cut or not rounds:
        why = cut or f"no round ends within {DURATION.text(round(for_s, 3))}"
        found.append(
            Measurement.unknown(
                "time under load",
                f"{why}: {len(rounds)} rounds, {soaked_s:.4g} of {for_s:.4g} s; the same command "
                "with the same --mnode-report goes on",
                unit="s",
                expected=at_least(for_s),
                source="how long the soak was to be",
            )
        )
    if not rounds:
        return found
    found.append(Measurement("time under load, so far" if cut else "rounds", *_amount(rounds, cut)))
    found += _excluded(rounds)
    unknown = Counter(name for one in rounds for name in one.unknown)
    found += [
        Measurement.unknown(name, f"it was not known in {times} of {len(rounds)} rounds")
        for name, times in unknown.items()
        if 2 * times > len(rounds)
    ]
    return found + drift(rounds, promise, shared=shared)


def _amount(rounds: Sequence[Round], cut: str) -> tuple[float, str]:
    return (sum(one.took_s for one in rounds), "s") if cut else (len(rounds), "")


def node_hours(rounds: Iterable[Round]) -> float:
    return sum(one.took_s * len(one.nodes) for one in rounds) / 3600


def _failures(
    rounds: Sequence[Round], promise: SoakCriterion | None, note: str, false_alarm: float | None
) -> Measurement:
    """Rounds with a failure, against the number that is accepted in the hours that were soaked."""
    bad, hours = [one for one in rounds if one.failures], node_hours(rounds)
    soaked_s = sum(one.took_s for one in rounds)
    checked = sum(sum(one.checked.values()) for one in rounds)
    expected, source, lacks = at_most(0), "a healthy cluster computes right, and links stay up", ""
    if promise is not None:
        accepted, wanted = promise.failures_at_most, promise.node_hours
        source = f"criteria.soak.failures_at_most {accepted}"
        if wanted is not None:
            source += f" in {wanted:g} node-hours"
            accepted = math.floor(accepted * max(1.0, hours / wanted))
            if hours < wanted:
                lacks = f"{hours:.4g} of {wanted:g} node-hours are soaked"
        # Another round does not end within what may be left of a soak that is whole.
        if soaked_s < promise.for_s - 2 * max(one.took_s for one in rounds):
            lacks = f"soaked for {soaked_s:.4g} of {promise.for_s:g} s (criteria.soak.for)"
        expected = at_most(accepted).of("soak.failures_at_most", promise.failures_at_most)
    excluded = hours / most_mean(len(bad), 1 - CONFIDENCE)
    after = f"failures in {hours:.3g} node-hours (at most 1 in {excluded:.3g}, 95 %)"
    culprit = culprit_of(bad)
    times = listed((f"round {one.number} at {_clock(one)}" for one in bad), 6, ", ")
    enough = not lacks or not expected.holds(len(bad))
    return Measurement(
        "rounds with a failure",
        len(bad) if enough else None,
        "",
        expected,
        source,
        culprit,
        "; ".join(filter(None, [lacks, times, note])),
        detection=smallest_share_wrong(checked),
        headline=HeadlineMark(after=after) if enough else None,
        false_alarm=false_alarm,
    )


def _clock(one: Round) -> str:
    return f"{datetime.fromtimestamp(one.began_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def culprit_of(bad: Sequence[Round]) -> Culprit | None:
    """All that is to blame, each with its rounds and times; None if nothing failed.

    If all sets of nodes of which one is to blame have one node in common, as the partners of a bad
    node have, and that is more than one set, this node is.
    """
    found: dict[tuple[object, ...], list[tuple[Round, Failure]]] = {}
    for one in bad:
        for failure in one.blamed:
            culprit = failure.culprit
            key = (failure.name, culprit.nodes, culprit.either) if culprit.nodes else failure.name
            found.setdefault((key,), []).append((one, failure))
    return all_of((_named(some) for some in found.values()), NAMED)


def _named(some: Sequence[tuple[Round, Failure]]) -> Culprit:
    """One culprit of failures of a kind."""
    (_, first), *_ = some
    every = Culprit.merged("", [failure.culprit for _, failure in some])
    at = listed((f"round {one.number}, {_clock(one)}" for one, _ in some), 3)
    words = first.culprit if every.nodes else listed(f.culprit for _, f in some)
    groups = [group for group in every.either if group]
    common = frozenset.intersection(*groups) if groups else frozenset[str]()
    named = Culprit.merged(f"{words} ({first.name} {first.measured}; {at})", [every])
    if every.nodes or len(groups) < 2 or len(common) != 1:
        return named
    [node] = common
    return Culprit(f"{node}: {named}", node, (), every.parts)


def _blames(one: Round, node: str) -> bool:
    """Whether a failure of this round may be of this node."""
    return any(
        node in failure.culprit.nodes
        or any(node in group or not group for group in failure.culprit.either)
        for failure in one.blamed
    )


def _excluded(rounds: Sequence[Round]) -> list[Measurement]:
    """The hours in which at most one failure is to be expected, with 95 %; recorded.

    Of the cluster, the node and the path that say least.
    """

    def hours(of: Iterable[tuple[float, bool]]) -> float:
        every = list(of)
        return sum(s for s, _ in every) / 3600 / most_mean(sum(b for _, b in every), 1 - CONFIDENCE)

    of_nodes: dict[str, list[tuple[float, bool]]] = {}
    of_paths: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for one in rounds:
        for node in one.nodes:
            of_nodes.setdefault(node, []).append((one.took_s, _blames(one, node)))
        for pair in one.partners:
            ends = {pair, pair[::-1]}
            wrong = any(ends & set(f.culprit.parts.paths) for f in one.failures)
            of_paths.setdefault(pair, []).append((one.pairs_s, wrong))
    of_all = [(one.took_s * len(one.nodes), bool(one.failures)) for one in rounds]
    found = [
        Measurement(
            "node-hours with at most 1 failure, 95 %",
            hours(of_all),
            "h",
            note=f"mean of {len(of_nodes)} nodes, {node_hours(rounds):.4g} node-hours",
        )
    ]
    for what, by_name in (
        ("node", {name: hours(some) for name, some in of_nodes.items()}),
        ("path", {" and ".join(pair): hours(some) for pair, some in of_paths.items()}),
    ):
        if by_name:
            least = min(by_name, key=by_name.__getitem__)
            note = f"by its own hours; {least}, of {len(by_name)} {what}s that met"
            name = f"hours with at most 1 failure, 95 %, any one {what}"
            found.append(Measurement(name, by_name[least], "h", note=note))
    kinds = sorted({kind for one in rounds for kind in one.checked})
    found += [
        Measurement(f"{kind} checked", sum(one.checked.get(kind, 0) for one in rounds), "")
        for kind in kinds
    ]
    return found


def charts(rounds: Sequence[Round]) -> list[Chart]:
    """Rates of nodes by time, a chart for each kind; and when what failed."""
    if not rounds:
        return []
    start_s = rounds[0].began_s
    found = list[Chart]()
    units = {rate.what: rate.unit for one in rounds for rate in one.rates}
    for what, unit in units.items():
        by_node: dict[str, list[tuple[float, float]]] = {}
        for one in rounds:
            for rate in one.rates:
                if rate.what == what:
                    at = (one.began_s - start_s) / 60
                    by_node.setdefault(rate.node or "all nodes", []).append((at, rate.value))
        slowest_first = sorted(by_node, key=lambda node: _last_over_first(by_node[node]))
        shown = sorted(slowest_first[:_MOST_LINES])
        series = tuple(Series(node, tuple(_thinned(by_node[node]))) for node in shown)
        found.append(Lines(f"{what} over the soak", "time (min)", f"rate ({unit})", series))
    found.append(_timeline(rounds, start_s))
    return found


def _last_over_first(points: Sequence[tuple[float, float]]) -> float:
    count = max(1, len(points) // 4)
    first, last = (statistics.median(y for _, y in p) for p in (points[:count], points[-count:]))
    return last / first if first else math.inf


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    xs, ys = (blocks([p[i] for p in points], _MOST_POINTS) for i in (0, 1))
    return list(zip(xs, ys, strict=True))


def _timeline(rounds: Sequence[Round], start_s: float) -> Timeline:
    """A lane per node that is to blame for something, and one for all nodes."""
    whole = "all nodes"
    nodes = sorted({n for one in rounds for n in one.nodes if one.failures and _blames(one, n)})
    lanes = (whole, *nodes[: _MOST_LINES - 1])

    def spans(lane: str, fails: Callable[[Round], bool]) -> list[Span]:
        found = []
        for failed, some in groupby(rounds, key=fails):
            several = list(some)
            end_s = several[-1].began_s - start_s + several[-1].took_s
            state = _FAILED if failed else _LOADED
            found.append(Span(lane, several[0].began_s - start_s, end_s, state))
        return found

    every = spans(whole, lambda one: bool(one.failures))
    for node in lanes[1:]:
        every += spans(node, lambda one, node=node: bool(one.failures) and _blames(one, node))  # type: ignore[misc]
    bad = [one for one in rounds if one.failures][:_MOST_LINES]
    moments = tuple(
        Moment(one.began_s - start_s, f"round {one.number}: {one.blamed[0].name}") for one in bad
    )
    return Timeline("failures of the soak", lanes, tuple(every), moments, (_LOADED, _FAILED))

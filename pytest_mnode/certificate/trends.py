"""The history of a run, from the certificates of earlier ones. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.history import FEWEST, History, PastRun, RepeatedFailure, Trend
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.path_rates import State

MOST_RUNS = 30
"""Of earlier runs, the latest; more would say little and make certificates large."""
_MOST_TRENDS = 100
_SIGMAS = 3.0
_MAD_TO_SIGMA = 1.4826

Key = tuple[str, str, int]
"""A measurement over runs: its test, its name, and which of that name in the test it is."""


def history_of(
    certificate: Certificate, earlier: Sequence[Certificate], left_out: Sequence[str] = ()
) -> History:
    """earlier: of the same spec, in any order."""
    runs = [*sorted(earlier, key=lambda one: one.run.end)[-MOST_RUNS:], certificate]
    return History(
        tuple(
            PastRun(
                one.run.end,
                one.verdict.value,
                one.coverage.nodes_by_state.passed,
                one.coverage.total_nodes,
            )
            for one in runs
        ),
        _trends(runs),
        _failing(runs),
        tuple(left_out),
    )


def measurements_by_key(certificate: Certificate) -> dict[Key, Measurement]:
    """All measurements, so that those of two runs can be compared."""
    found: dict[Key, Measurement] = {}
    for case in (case for criterion in certificate.criteria for case in criterion.cases):
        met: Counter[str] = Counter()
        for one in case.measurements:
            found[case.test, one.name, met[one.name]] = one
            met[one.name] += 1
    return found


def usual_and_spread(values: Sequence[float]) -> tuple[float, float] | None:
    """Median, and how far values lie from it at most, but for one in some hundred; of 3 or more."""
    if len(values) < FEWEST:
        return None
    usual = statistics.median(values)
    return usual, _SIGMAS * _MAD_TO_SIGMA * statistics.median(abs(v - usual) for v in values)


def _trends(runs: Sequence[Certificate]) -> tuple[Trend, ...]:
    tables = [measurements_by_key(run) for run in runs]
    trends = []
    for key, now in tables[-1].items():
        met = [table.get(key) for table in tables]
        same = [m if m is not None and m.unit == now.unit else None for m in met]
        values = tuple(None if m is None else m.value for m in same)
        if now.value is None or all(value is None for value in values[:-1]):
            continue
        # Not those that failed: a fault that lasts for some nights is not what is usual.
        unfailed = [m.value for m in same[:-1] if m is not None and m.verdict is not Verdict.FAIL]
        known = [value for value in unfailed if value is not None]
        usual, spread = usual_and_spread(known) or (None, None)
        changed = usual is not None and spread is not None and abs(now.value - usual) > spread
        trends.append(Trend(key[0], now.name, now.unit, values, usual, spread, changed))
    trends.sort(key=_how_unusual, reverse=True)
    return tuple(trends[:_MOST_TRENDS])


def _how_unusual(trend: Trend) -> tuple[bool, float]:
    now, usual = trend.values[-1], trend.usual
    if now is None or usual is None:
        return False, -1.0
    return trend.changed, abs(now - usual) / abs(usual) if usual else float(now != usual)


def _failing(runs: Sequence[Certificate]) -> tuple[RepeatedFailure, ...]:
    """Nodes that failed in two runs or more, the most frequent first."""
    failed: Counter[str] = Counter()
    tested: Counter[str] = Counter()
    evidence: dict[str, str] = {}
    for run in runs:
        tested.update(run.run.nodes)
        for node in run.coverage.nodes:
            if node.date == run.run.end and node.state is State.FAILED:
                failed[node.name] += 1
                evidence[node.name] = node.evidence
    return tuple(
        RepeatedFailure(name, times, tested[name], evidence[name])
        for name, times in failed.most_common()
        if times > 1
    )

"""The history of a run, from the certificates of earlier ones. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.history import FEWEST, History, PastRun, RepeatedFailure, Trend
from pytest_mnode.measurement import Measurement, Verdict, last_digit
from pytest_mnode.path_rates import State

MOST_RUNS = 30
"""Number of latest runs in a history; more would add little and make certificates large."""
_MOST_TRENDS = 100
_SIGMAS = 3.0
_MAD_TO_SIGMA = 1.4826


class Key(NamedTuple):
    """A measurement over runs. which: distinguishes it from others of its name in its test, such as
    "rank 0 on node0" or "2 of 3"; empty if there are none."""

    test: str
    name: str
    which: str


def history_of(
    certificate: Certificate,
    earlier: Sequence[Certificate],
    left_out: Sequence[str] = (),
    notes: Sequence[str] = (),
    *,
    most_trends: int | None = _MOST_TRENDS,
) -> History:
    """The history of a run. earlier: of the same spec, in any order. most_trends: None for all."""
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
        _trends(runs)[:most_trends],
        _failing(runs),
        tuple(left_out),
        notes=tuple(notes),
    )


def measurements_by_key(certificate: Certificate) -> dict[Key, Measurement]:
    """All measurements by key, so that those of two runs can be compared."""
    found: dict[Key, Measurement] = {}
    for case in (case for criterion in certificate.criteria for case in criterion.cases):
        named = Counter(one.name for one in case.measurements)
        alike = Counter((one.name, one.where) for one in case.measurements)
        met: Counter[tuple[str, str]] = Counter()
        for one in case.measurements:
            what = one.name, one.where
            met[what] += 1
            # With "of", because "1" would be another one if another run measured more or fewer.
            number = f"{met[what]} of {alike[what]}" if alike[what] > 1 else ""
            which = ", ".join(filter(None, [one.where, number]))
            found[Key(case.test, one.name, which if named[one.name] > 1 else "")] = one
    return found


def is_count(unit: str, values: Sequence[float]) -> bool:
    """Whether all are whole numbers without a unit, which have no noise."""
    return not unit and all(float(value).is_integer() for value in values)


def exceeds(distance: float, spread: float) -> bool:
    """Whether a distance is more than the spread, not only by rounding: 0.8 - 0.7 is not 0.1."""
    return distance > spread and not math.isclose(distance, spread)


def _usual_and_spread(unit: str, values: Sequence[float], now: float) -> tuple[float, float] | None:
    """Median, and its distance that one value in some hundred exceeds; None for fewer than 3."""
    if len(values) < FEWEST:
        return None
    usual = statistics.median(values)
    spread = _SIGMAS * _MAD_TO_SIGMA * statistics.median(abs(v - usual) for v in values)
    every = (*values, now)
    return usual, spread if is_count(unit, every) else max(spread, last_digit(every))


def _trends(runs: Sequence[Certificate]) -> tuple[Trend, ...]:
    tables = [measurements_by_key(run) for run in runs]
    trends = []
    for key, now in tables[-1].items():
        met = [table.get(key) for table in tables]
        same = [m if m is not None and m.unit == now.unit else None for m in met]
        values = tuple(None if m is None else m.known for m in same)
        if values[-1] is None or all(value is None for value in values[:-1]):
            continue
        # Failed values are left out: a fault that lasts for some nights is not usual.
        unfailed = [m.known for m in same[:-1] if m is not None and m.verdict is not Verdict.FAIL]
        known = [value for value in unfailed if value is not None]
        usual, spread = _usual_and_spread(now.unit, known, values[-1]) or (None, None)
        changed = (
            usual is not None and spread is not None and exceeds(abs(values[-1] - usual), spread)
        )
        trends.append(
            Trend(key.test, now.name, now.unit, values, usual, spread, changed, key.which)
        )
    return tuple(sorted(trends, key=_how_unusual, reverse=True))


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

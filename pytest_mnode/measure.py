"""Measurements of tests, kept with the test and judged after its body and after its teardown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

import pytest

from pytest_mnode.charts import Chart
from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import Detection
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, Verdict, all_of
from pytest_mnode.measurement import at_least as _at_least
from pytest_mnode.measurement import at_most as _at_most
from pytest_mnode.measurement import equals as _equals

KEPT = pytest.StashKey[list[Measurement]]()
CHARTS = pytest.StashKey[list[Chart]]()
ENDED = pytest.StashKey[bool]()
"""Set for a test whose measurements were judged for the last time."""


class Measure:
    """The `measure` fixture: call it with a measured value and its bound."""

    def __init__(
        self,
        kept: list[Measurement],
        where: str,
        charts: list[Chart] | None = None,
        item: pytest.Item | None = None,
    ) -> None:
        self._item = item
        self._kept = kept
        self._where = where
        self._charts = [] if charts is None else charts

    def __call__(
        self,
        name: str,
        value: float | None,
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        equals: float | None = None,
        tolerance: float = 0.0,
        source: str = "",
        culprit: str | None = None,
        note: str = "",
        detection: Detection | None = None,
        interval: tuple[float, float] | None = None,
        headline: HeadlineMark | None = None,
    ) -> Measurement:
        """Record a value, judged when the test's body has ended, or its teardown.

        value: None if it could not be measured, which is inconclusive and never passes.
        at_least, at_most, equals: at most one of them, in `unit`, widened by `tolerance`.
        source: where the bound comes from. culprit: node, NIC or rank to blame if it is broken. A
        plain text other than nodes' names makes all nodes of the test suspect; give their names in
        a `Culprit`.
        detection: the smallest fault that it detects. interval: lowest and highest value
        that the true one may have: while it contains the bound, the value is inconclusive. Both
        follow from repeats by `detection.estimate`.
        headline: `HeadlineMark` of the value that answers the criterion's question.
        Raises TypeError for more than one bound and for a value that is not a number, ValueError
        for a bound that cannot be judged, and RuntimeError after the end of its test.
        """
        self._check_open()
        measurement = Measurement(
            name=name,
            value=value,
            unit=unit,
            expected=_bound(at_least, at_most, equals, tolerance),
            source=source,
            culprit=None if culprit is None else Culprit.of(culprit),
            note=note,
            where=self._where,
            detection=detection,
            interval=interval,
            headline=headline,
        )
        self._kept.append(measurement)
        return measurement

    def record(self, measurements: Measurement | Iterable[Measurement]) -> None:
        """Record measurements made elsewhere; they are judged with the test."""
        self._check_open()
        given = [measurements] if isinstance(measurements, Measurement) else measurements
        self._kept.extend(replace(m, where=m.where or self._where) for m in given)

    def _check_open(self) -> None:
        if self._item is not None and ENDED in self._item.stash:
            raise RuntimeError(
                f"measure of {self._item.nodeid} was used after the end of this test, where "
                "nothing is judged; ask for `measure` in the test that measures"
            )

    def chart(self, *charts: Chart) -> None:
        """Keep charts, such as curves and timelines, for the certificate and its page.

        Charts are not judged: record judged values as measurements. Raises ValueError for a number
        that is not finite, because JSON has none.
        """
        for chart in charts:
            try:
                json.dumps(asdict(chart), allow_nan=False)
            except ValueError as error:
                what = getattr(chart, "title", chart.kind)
                raise ValueError(f"chart {what!r}: {error}; leave such values out") from None
        self._charts.extend(charts)


def _bound(
    at_least: float | None, at_most: float | None, equals: float | None, tolerance: float
) -> Bound | None:
    limits = {"at_least": at_least, "at_most": at_most, "equals": equals}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if len(given) > 1:
        raise TypeError(f"give one of {', '.join(given)}, not {len(given)}")
    makers = {"at_least": _at_least, "at_most": _at_most, "equals": _equals}
    return next((makers[name](limit, tolerance) for name, limit in given.items()), None)


def measure_of(item: pytest.Item, where: str) -> Measure:
    """The Measure of a test; its values are kept in the test's stash."""
    return Measure(item.stash.setdefault(KEPT, []), where, item.stash.setdefault(CHARTS, []), item)


def kept_by(item: pytest.Item) -> list[Measurement]:
    return item.stash.get(KEPT, [])


def charts_kept_by(item: pytest.Item) -> list[Chart]:
    return item.stash.get(CHARTS, [])


def forget(item: pytest.Item) -> None:
    """Drop the measurements and charts of a test before it runs again."""
    item.stash.setdefault(KEPT, []).clear()
    item.stash.setdefault(CHARTS, []).clear()
    if ENDED in item.stash:
        del item.stash[ENDED]


def judged(measurements: list[Measurement], verdict: Verdict) -> str:
    """One line per measurement with this verdict; "" if there are none.

    Lines do not name the rank, which the report's heading names, so that equal lines show once.
    """
    return "\n".join(str(replace(m, where="")) for m in measurements if m.verdict is verdict)


def summed_up(by_rank: Mapping[int, Sequence[Measurement]]) -> list[Measurement]:
    """The worst measurement of all ranks for each name; its `where` names the rank.

    `where` names all ranks if all of them measured the same. Its culprit is that of all ranks whose
    value is as bad, and those that could not measure beside a failure are suspect.
    """
    best: dict[str, Measurement] = {}
    met: dict[str, list[Measurement]] = {}
    for measurements in by_rank.values():
        for measurement in measurements:
            other = best.get(measurement.name)
            if other is None or _worse(measurement, other):
                best[measurement.name] = measurement
            met.setdefault(measurement.name, []).append(measurement)
    return [_of_all(worst, met[name], len(by_rank)) for name, worst in best.items()]


def charts_of(by_rank: Iterable[Iterable[Chart]]) -> list[Chart]:
    """Charts of all ranks without duplicates: ranks that agree on values record equal charts."""
    return list(dict.fromkeys(chart for charts in by_rank for chart in charts))


def _of_all(worst: Measurement, met: list[Measurement], ranks: int) -> Measurement:
    plain = [replace(m, where="") for m in met]
    if ranks > 1 and len(met) == ranks and all(m == plain[0] for m in plain):
        culprit = all_of(m.culprit for m in met)  # equal words may be of different nodes
        return replace(worst, where=f"all {ranks} ranks", culprit=culprit)
    if worst.verdict not in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        return worst
    bad = [m for m in (worst, *met) if m.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)]
    if not any(m.culprit for m in bad):
        return worst
    culprits = [(m.verdict, m.culprit or Culprit("")) for m in bad]
    named = [c if verdict is worst.verdict else c.suspected for verdict, c in culprits]
    return replace(worst, culprit=all_of(named))


def _worse(one: Measurement, other: Measurement) -> bool:
    order = {Verdict.FAIL: 0, Verdict.INCONCLUSIVE: 1, Verdict.PASS: 2, None: 3}
    if one.verdict is not other.verdict:
        return order[one.verdict] < order[other.verdict]
    if one.value is None or other.value is None or one.expected is None:
        return False
    return (
        one.expected.margin(one.value) < other.expected.margin(other.value)
        if other.expected
        else False
    )

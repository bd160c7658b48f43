"""Changes between two certificates, apart from noise, and over the history of a run. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.history import FEWEST, History, PastRun, RepeatedFailure, Trend
from pytest_mnode.certificate.run_facts import RunFacts, SpecFacts, in_words
from pytest_mnode.certificate.run_facts import changes as changes_of_spec
from pytest_mnode.certificate.text import first_line, with_case
from pytest_mnode.installed import Fact
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import count
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


_MOST_CHANGES = 20


class Kind(StrEnum):
    """How two values of one measurement differ."""

    CHANGE = "changed"
    """The value moved by more than its spread, or it is a count, which has no spread."""
    UNKNOWN = "differs, spread unknown"
    NOISE = "within its spread"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Changed:
    """A measurement that both certificates have.

    spread: largest difference of two runs without any change in 99 of 100 cases, in the unit of
    the values; None if neither the repeats nor the history give it.
    """

    key: Key
    before: Measurement
    after: Measurement
    kind: Kind
    spread: float | None

    @property
    def share(self) -> float:
        """Rise as a share of the value before; infinite if that is 0 or a value is missing."""
        one, other = self.before.known, self.after.known
        if one is None or other is None:
            return float("inf")
        return (other - one) / abs(one) if one else float("inf") if other else 0.0

    @property
    def better(self) -> bool | None:
        """Whether its margin to the later bound grew, as the earlier bound may be of another spec;
        None if it is not judged or the margins are equal."""
        one, other, bound = self.before.known, self.after.known, self.after.expected
        if one is None or other is None or bound is None:
            return None
        was, now = bound.margin(one), bound.margin(other)
        return None if was == now else now > was

    def __str__(self) -> str:
        rise = f" ({self.share:+.1%})" if abs(self.share) < float("inf") else ""
        spread = "" if self.spread is None else f", spread {self.spread:.2g} {self.after.unit}"
        if self.spread is not None and self.before.value:
            spread = f", spread {self.spread / abs(self.before.value):.1%}"
        verdicts = [m.verdict.value if m.verdict else "recorded" for m in (self.before, self.after)]
        now = f", {verdicts[0]} → {verdicts[1]}" if verdicts[0] != verdicts[1] else ""
        word = {True: ", better", False: ", worse", None: ""}[self.better]
        name = with_case(self.key.name, self.key.test, self.key.which)
        return f"{name}: {self.before.measured} → {self.after.measured}{rise}{spread}{word}{now}"


def compared(before: Certificate, after: Certificate) -> list[Changed]:
    """Every measurement that both certificates have, those that changed most first."""
    one, other = measurements_by_key(before), measurements_by_key(after)
    spreads = _spreads(before) | _spreads(after)
    found = [
        _compared(key, one[key], other[key], spreads.get(key))
        for key in one
        if key in other and one[key].unit == other[key].unit
    ]
    order = list(Kind)
    return sorted(found, key=lambda c: (order.index(c.kind), -abs(c.share)))


def _compared(
    key: Key, before: Measurement, after: Measurement, of_history: float | None
) -> Changed:
    known = [m.detection.blur for m in (before, after) if m.detection is not None]
    blurs = [blur * abs(before.known or 0.0) for blur in known if blur is not None]
    values = [m.known for m in (before, after) if m.known is not None]
    counted = is_count(after.unit, values)
    if of_history is not None:
        blurs.append(of_history)
    elif blurs and not counted:
        blurs.append(last_digit(values))
    spread = max(blurs, default=None)
    same = Changed(key, before, after, Kind.SAME, spread)
    if before.known == after.known and before.verdict == after.verdict:
        return same
    # A missing value of a measurement without a unit is not noise either.
    if before.verdict != after.verdict or counted:
        return replace(same, kind=Kind.CHANGE)
    if spread is None or len(values) < 2:
        return replace(same, kind=Kind.UNKNOWN)
    moved = exceeds(abs(values[1] - values[0]), spread)
    return replace(same, kind=Kind.CHANGE if moved else Kind.NOISE)


def _spreads(certificate: Certificate) -> dict[Key, float]:
    """Spreads from the certificate's history, in the unit of the values."""
    trends = certificate.history.trends if certificate.history else ()
    return {
        Key(one.test, one.name, one.which): one.spread for one in trends if one.spread is not None
    }


def environment_changes(before: Certificate, after: Certificate) -> Iterator[str]:
    """Other changes: of nodes, spec, launcher, versions, drivers, firmware and settings."""
    one, other = before.run, after.run
    for word, missing in (
        ("gone", [n for n in one.nodes if n not in other.nodes]),
        ("new", [n for n in other.nodes if n not in one.nodes]),
    ):
        if missing:
            yield f"nodes {word}: {compress(missing)}"
    first, second = _settings(one), _settings(other)
    for what in first:
        if first[what] != second[what]:
            yield f"{what}: {first[what]} → {second[what]}"
    yield from _of_spec(one.spec, other.spec)
    yield from _facts(before.installed, after.installed)


def _settings(run: RunFacts) -> dict[str, object]:
    names = ("python", "kernel", "pytest", "pytest_mnode", "torch")
    return {
        "launcher": run.launcher,
        "backend": run.backend,
        "ranks": run.ranks,
        "commit": run.commit and run.commit.hash[:12],
        **{f"controller's {name}": getattr(run.versions, name) for name in names},
    }


def _of_spec(one: SpecFacts, other: SpecFacts) -> Iterator[str]:
    first, second = (f"{spec.name} {spec.digest[:12]}" for spec in (one, other))
    if one.name != other.name or (first != second and not (one.page and other.page)):
        yield f"spec: {first} → {second}"
    found = changes_of_spec(one, other)
    yield from (f"spec: {change}" for change in in_words(found.given))
    yield from (f"default of {change}" for change in in_words(found.defaults))


def _facts(before: tuple[Fact, ...], after: tuple[Fact, ...]) -> Iterator[str]:
    if bool(before) != bool(after):
        lacks = "first" if after else "second"
        yield f"drivers, firmware, packages and settings: unknown, the {lacks} has none"
        return
    one, other = ({(f.part, f.item): f for f in facts} for facts in (before, after))
    for key in dict.fromkeys((*one, *other)):
        first, second = one.get(key), other.get(key)
        if first != second:
            name = (second or first or Fact(*key, ())).name
            yield f"{name}: {_values(first)} → {_values(second)}"


def _values(fact: Fact | None) -> str:
    if fact is None:
        return "none"
    if len(fact.values) == 1:
        return fact.values[0][0]
    return ", ".join(f"{value} on {who}" for value, who in fact.values)


def states(before: Certificate, after: Certificate) -> Iterator[str]:
    """Changed verdicts of the run and of criteria, and changed states of nodes."""
    if before.verdict is not after.verdict:
        yield f"the run: {before.verdict.value} → {after.verdict.value}"
    verdicts = {c.name: c.verdict for c in before.criteria}
    for criterion in after.criteria:
        was = verdicts.pop(criterion.name, None)
        if was != criterion.verdict:
            before_it = was.value if was else "not there"
            yield f"{criterion.name}: {before_it} → {criterion.verdict.value}"
    yield from (f"{name}: {was.value} → not there" for name, was in verdicts.items())
    known = {node.name: node.state for node in before.coverage.nodes}
    moved: dict[tuple[str, str], list[str]] = {}
    for node in after.coverage.nodes:
        if (state := known.get(node.name, node.state)) is not node.state:
            moved.setdefault((state.value, node.state.value), []).append(node.name)
    yield from (f"{compress(who)}: {was} → {now}" for (was, now), who in moved.items())


def changes(before: Certificate, after: Certificate) -> Iterator[str]:
    """Changes by `environment_changes`, then the values that changed most, without noise."""
    yield from environment_changes(before, after)
    changed = [str(one) for one in compared(before, after) if one.kind is Kind.CHANGE]
    yield from changed[:_MOST_CHANGES]
    if (more := len(changed) - _MOST_CHANGES) > 0:
        yield f"and {count(more, 'other value')} that changed"


def summary(found: list[Changed]) -> str:
    """Number of measurements of each kind, in one line."""
    counts = {kind: sum(one.kind is kind for one in found) for kind in Kind}
    parts = [f"{number} {kind.value}" for kind, number in counts.items() if number]
    return first_line(f"{count(len(found), 'measurement')} in both: {', '.join(parts) or 'none'}")

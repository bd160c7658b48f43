"""Changes between two certificates, apart from noise. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.run_facts import RunFacts
from pytest_mnode.certificate.spec_facts import SpecFacts, in_words
from pytest_mnode.certificate.spec_facts import changes as changes_of_spec
from pytest_mnode.certificate.text import first_line, with_case
from pytest_mnode.certificate.trends import Key, exceeds, is_count, measurements_by_key
from pytest_mnode.installed import Fact
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import count
from pytest_mnode.measurement import Measurement, last_digit

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

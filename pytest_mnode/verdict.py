"""Measurement, Bound, Verdict: a judgement is a value, with all a reader needs to dispute it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self


class Verdict(StrEnum):
    """The answer to one question. Only `PASS` certifies."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Relation(StrEnum):
    """How a measured value must stand to its bound."""

    AT_LEAST = "at least"
    AT_MOST = "at most"
    EQUALS = "equals"


@dataclass(frozen=True, slots=True)
class Bound:
    """What is expected of a value: its relation to `limit`, give or take `tolerance`.

    `limit` and `tolerance` are in the unit of the measurement. The tolerance widens the bound:
    at least 10 with tolerance 1 accepts 9 and more.
    """

    relation: Relation
    limit: float
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.limit):
            raise ValueError(f"a bound of {self.limit} cannot be judged; give a finite number")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(f"tolerance {self.tolerance} is not a finite number of 0 or more")

    def holds(self, value: float) -> bool:
        """Whether `value` (finite, same unit) keeps this bound."""
        match self.relation:
            case Relation.AT_LEAST:
                return value >= self.limit - self.tolerance
            case Relation.AT_MOST:
                return value <= self.limit + self.tolerance
            case Relation.EQUALS:
                return abs(value - self.limit) <= self.tolerance

    def margin(self, value: float) -> float:
        """Distance from `value` to the accepted range's edge; negative where the bound is broken."""
        match self.relation:
            case Relation.AT_LEAST:
                return value - (self.limit - self.tolerance)
            case Relation.AT_MOST:
                return (self.limit + self.tolerance) - value
            case Relation.EQUALS:
                return self.tolerance - abs(value - self.limit)

    def __str__(self) -> str:
        give = f" ± {self.tolerance:g}" if self.tolerance else ""
        return f"{self.relation.value} {self.limit:g}{give}"


def at_least(limit: float, tolerance: float = 0.0) -> Bound:
    """A value of `limit` or more, less `tolerance`."""
    return Bound(Relation.AT_LEAST, limit, tolerance)


def at_most(limit: float, tolerance: float = 0.0) -> Bound:
    """A value of `limit` or less, plus `tolerance`."""
    return Bound(Relation.AT_MOST, limit, tolerance)


def equals(limit: float, tolerance: float = 0.0) -> Bound:
    """A value of `limit`, give or take `tolerance`."""
    return Bound(Relation.EQUALS, limit, tolerance)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured value and what it is judged on.

    value: None (or not finite) where it could not be measured: inconclusive, never a pass.
    expected: None for a value that is only recorded, not judged.
    source: where the bound comes from, such as "fabric.line_rate_mbit_s 200 × 0.85".
    culprit: node, NIC, rank or setting to blame where the bound is broken.
    note: why a value is missing, or anything a reader should know.
    where: who measured it, such as "rank 0 on node0"; empty for the controller.
    """

    name: str
    value: float | None
    unit: str
    expected: Bound | None = None
    source: str = ""
    culprit: str | None = None
    note: str = ""
    where: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """Pass, fail or inconclusive; None for a recorded value that nothing was asked of."""
        if self.value is None or not math.isfinite(self.value):
            return Verdict.INCONCLUSIVE if self.expected is not None else None
        if self.expected is None:
            return None
        return Verdict.PASS if self.expected.holds(self.value) else Verdict.FAIL

    def __str__(self) -> str:
        measured = "not measured" if self.value is None else f"{self.value:.4g} {self.unit}".strip()
        parts = [f"{self.name}: {measured}"]
        if self.expected is not None:
            parts.append(f"expected {self.expected} {self.unit}".rstrip())
            if self.source:
                parts.append(f"source {self.source}")
            if self.value is not None and math.isfinite(self.value):
                parts.append(f"margin {self.expected.margin(self.value):+.3g}")
        if self.note:
            parts.append(self.note)
        if self.culprit and self.verdict is not Verdict.PASS:
            parts.append(f"culprit {self.culprit}")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; not-finite numbers become null."""
        out = asdict(self)
        if self.value is not None and not math.isfinite(self.value):
            out["value"] = None
        if self.expected is not None:
            out["expected"]["relation"] = self.expected.relation.value
        out["verdict"] = self.verdict.value if self.verdict else None
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        fields = {k: v for k, v in data.items() if k not in ("verdict", "expected")}
        expected = data.get("expected")
        bound = (
            Bound(Relation(expected["relation"]), expected["limit"], expected["tolerance"])
            if expected
            else None
        )
        return cls(**fields, expected=bound)

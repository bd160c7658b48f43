"""A measurement, the bound it is judged by and its verdict; curves of measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, Self

from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import Detection


class Verdict(StrEnum):
    """The answer to one question. Only `PASS` certifies."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Relation(StrEnum):
    """The required relation of a measured value to its limit."""

    AT_LEAST = "at least"
    AT_MOST = "at most"
    EQUALS = "equals"


@dataclass(frozen=True, slots=True)
class Term:
    """A key of the spec that a limit was computed from, and its value.

    key: dotted, such as "fabric.line_rate"; a single word is a key of the promise that the test
    requested. value: in the spec's own unit, as a certificate keeps the page.
    """

    key: str
    value: float | str

    def __post_init__(self) -> None:
        if not isinstance(self.value, str):
            object.__setattr__(self, "value", float(self.value))


@dataclass(frozen=True, slots=True)
class Bound:
    """What is expected of a value: its relation to `limit`, give or take `tolerance`.

    `limit` and `tolerance` are in the unit of the measurement. The tolerance widens the bound:
    at least 10 with tolerance 1 accepts 9 and more. Both edges are accepted.
    terms: the limit is proportional to each that is a number; no part of what the bound says.
    """

    relation: Relation
    limit: float
    tolerance: float = 0.0
    terms: tuple[Term, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", _number("a bound", self.limit))
        object.__setattr__(self, "tolerance", _number("a tolerance", self.tolerance))
        if not math.isfinite(self.limit):
            raise ValueError(f"a bound of {self.limit} cannot be judged; give a finite number")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(f"tolerance {self.tolerance} is not a finite number of 0 or more")

    def of(self, key: str, value: float | str) -> Bound:
        """This bound with one more term."""
        return replace(self, terms=(*self.terms, Term(key, value)))

    @property
    def accepted(self) -> tuple[float, float]:
        """Lowest and highest value that keep this bound; infinite if there is no such edge."""
        # Of fractions 15 digits count, because a product has no more: 0.55 × 100 exceeds 55.
        edges = (self.limit - self.tolerance, self.limit + self.tolerance)
        low, high = (edge if edge % 1 == 0 else float(f"{edge:.15g}") for edge in edges)
        return (
            -math.inf if self.relation is Relation.AT_MOST else low,
            math.inf if self.relation is Relation.AT_LEAST else high,
        )

    def holds(self, value: float) -> bool:
        """Whether `value` (finite, same unit) keeps this bound."""
        return self.margin(value) >= 0

    def decides(self, low: float, high: float) -> bool | None:
        """Whether a value between `low` and `high` keeps this bound; None if either may be."""
        least, most = self.accepted
        if least <= low and high <= most:
            return True
        return False if high < least or low > most else None

    def margin(self, value: float) -> float:
        """Distance from `value` to the nearest edge; negative if the bound is broken."""
        low, high = self.accepted
        return min(value - low, high - value)

    def relative_margin(self, value: float) -> float | None:
        """`margin` as a share of the limit; None for a limit of 0 and for an exact bound."""
        no_share = self.exact or not self.limit
        return None if no_share else self.margin(value) / abs(self.limit)

    @property
    def exact(self) -> bool:
        """Whether only one value keeps it."""
        return self.relation is Relation.EQUALS and not self.tolerance

    def text(self, unit: str = "") -> str:
        """Relation, limit, unit and tolerance, such as "at least 170 Mbit/s (tolerance 2)"; a
        tolerance of 0 is left out."""
        tolerance = f" (tolerance {_digits(self.tolerance)})" if self.tolerance else ""
        return f"{self.relation.value} {_digits(self.limit)} {unit}".rstrip() + tolerance

    def short(self, unit: str = "") -> str:
        """Short form of `text`, such as "≥ 170 ± 2 Mbit/s"."""
        sign = {Relation.AT_LEAST: "≥", Relation.AT_MOST: "≤", Relation.EQUALS: "="}[self.relation]
        tolerance = f" ± {_digits(self.tolerance)}" if self.tolerance else ""
        return f"{sign} {_digits(self.limit)}{tolerance} {unit}".rstrip()

    def __str__(self) -> str:
        return self.text()


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
class HeadlineMark:
    """That a measurement answers its criterion's question, and how few words say so.

    A criterion that passed shows the marked measurements of the lowest `order`. Those that begin
    with the same words are one: the worst of them, or the sum of their counts.
    before, after: words around the value: "all-reduce" 23.9 MB/s, efficiency 0.98 "on 4 nodes".
    of: the whole, in the unit of the value: the rate of the line, the number tried. whole: what it
    is, such as "the line"; "" for a number. right: how many of `of` are right, where the value
    counts something else, such as wrong values in groups that are right.
    """

    before: str = ""
    after: str = ""
    of: float | None = None
    whole: str = ""
    right: int | None = None
    order: int = 0

    @classmethod
    def summed(cls, marks: Iterable[HeadlineMark | None]) -> HeadlineMark | None:
        """The mark of a sum of counts; None if none is marked."""
        given = [mark for mark in marks if mark is not None]
        if not given:
            return None
        right, tried = sum(m.right or 0 for m in given), sum(m.of or 0 for m in given)
        return replace(given[0], right=right, of=tried)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured value and the bound it is judged by.

    value: None (or not finite) if it could not be measured: inconclusive, never a pass.
    expected: None for a value that is only recorded, not judged.
    source: where the bound comes from, such as "fabric.line_rate_mbit_s 200 × 0.85".
    culprit: node, NIC, rank or setting to blame if the bound is broken; dropped if it holds. The
    nodes of a plain text are not known.
    note: why a value is missing, or anything a reader should know.
    where: who measured it, such as "rank 0 on node0"; empty for the controller.
    detection: the smallest fault that it detects; None if not known.
    headline: set if it answers its criterion's question.
    interval: lowest and highest value that the true one may have, in `unit`
    (`detection.Estimate`); None if not known, and for counts, which are exact.
    false_alarm: chance that noise breaks the bound of a healthy cluster; None if its judge knows of
    none, as of exact values.

    Raises TypeError for a value that is neither a number nor None, ValueError for an interval that
    does not contain the value, or of a value with an exact bound.
    """

    name: str
    value: float | None
    unit: str
    expected: Bound | None = None
    source: str = ""
    culprit: Culprit | None = None
    note: str = ""
    where: str = ""
    detection: Detection | None = None
    headline: HeadlineMark | None = None
    interval: tuple[float, float] | None = None
    false_alarm: float | None = None

    def __post_init__(self) -> None:
        if self.value is not None:
            object.__setattr__(self, "value", _number(f"measurement {self.name!r}", self.value))
        if self.known is None:
            object.__setattr__(self, "interval", None)
        elif self.interval is not None:
            low, high = self.interval
            if not low <= self.known <= high or (self.expected and self.expected.exact):
                raise ValueError(
                    f"{self.name}: no interval from {low} to {high} for {self.measured}; give one "
                    "that contains the value, and none where the bound is exact"
                )
        if self.culprit is not None:
            culprit = None if self.verdict is Verdict.PASS else Culprit.of(self.culprit)
            object.__setattr__(self, "culprit", culprit)

    @classmethod
    def unknown(
        cls,
        name: str,
        why: str,
        *,
        unit: str = "",
        expected: Bound | None = None,
        source: str = "",
        culprit: Culprit | None = None,
    ) -> Self:
        """A value that could not be measured: inconclusive, with the reason.

        expected: `equals(0)` if none is given, so that the missing value is never a pass.
        """
        return cls(name, None, unit, expected or equals(0), source, culprit, note=why)

    @classmethod
    def none_allowed(
        cls,
        name: str,
        culprits: Iterable[Culprit],
        source: str,
        *,
        count: int | None = None,
        unsure: str = "",
        unread: Iterable[Culprit] = (),
        note: str = "",
        headline: HeadlineMark | None = None,
    ) -> Self:
        """A count that must be zero: the number of `culprits`, or `count` if given.

        The words name the first culprits; the nodes are those of all.
        unsure: why the real count may be higher; a count of zero is then inconclusive. unread: who
        may add to it beside the culprits; anybody if nobody is known.
        """
        named = list(culprits)
        value = len(named) if count is None else count
        note = "; ".join(filter(None, [unsure, note]))
        if unsure and not (value or named):
            return cls.unknown(name, note, source=source)
        culprit = with_suspects(all_of(named), [*unread] or [Culprit("")] * bool(unsure))
        return cls(name, value, "", equals(0), source, culprit, note, headline=headline)

    @property
    def known(self) -> float | None:
        """The value; None if it could not be measured: missing or not finite."""
        return self.value if self.value is not None and math.isfinite(self.value) else None

    @property
    def passed(self) -> bool:
        """Whether the value was measured and keeps its bound."""
        return self.verdict is Verdict.PASS

    @property
    def verdict(self) -> Verdict | None:
        """Pass, fail or inconclusive; None for a value that is recorded and not judged.

        A value is inconclusive if its interval contains the bound, on whichever side it lies, and
        if it keeps the bound but its noise exceeds what the bound tolerates.
        """
        if self.expected is None:
            return None
        if self.known is None:
            return Verdict.INCONCLUSIVE
        keeps = self.expected.decides(*(self.interval or (self.known, self.known)))
        if keeps is False:
            return Verdict.FAIL
        too_noisy = self.detection is not None and self.detection.too_noisy
        return Verdict.INCONCLUSIVE if keeps is None or too_noisy else Verdict.PASS

    @property
    def doubt(self) -> str:
        """Why a measured value is inconclusive; "" if it is not."""
        if self.known is None or self.verdict is not Verdict.INCONCLUSIVE:
            return ""
        if self.interval and self.expected and self.expected.decides(*self.interval) is None:
            return f"undecided: the bound is within its interval, {self._interval}"
        return self.detection.doubt if self.detection else ""

    @property
    def _interval(self) -> str:
        return " to ".join(map(_digits, self.interval)) if self.interval else ""

    @property
    def margin(self) -> float | None:
        """Distance to the bound in `unit`, negative if it is broken; None if not judged."""
        known, expected = self.known, self.expected
        return None if known is None or expected is None else expected.margin(known)

    @property
    def measured(self) -> str:
        """The value with its unit, or "not measured"."""
        if self.value is None:
            return "not measured"
        return f"{_digits(self.value)} {self.unit}".strip()

    def __str__(self) -> str:
        interval = f" ({self._interval})" if self.interval else ""
        parts = [f"{self.name}: {self.measured}{interval}"]
        if self.expected is not None:
            parts.append(f"expected {self.expected.text(self.unit)}")
            parts.append(f"source {self.source or 'not given'}")
            if self.margin is not None:
                parts.append(f"margin {self.margin:+.4g} {self.unit}".rstrip())
        if self.detection is not None:
            parts.append(f"detection limit {self.detection.text}")
        parts += filter(None, [self.doubt])
        if self.note:
            parts.append(self.note)
        if self.culprit:
            parts.append(f"culprit {self.culprit}")
        if self.where:
            parts.append(f"measured by {self.where}")
        return ", ".join(parts)


def listed(texts: Iterable[str], most: int = 4, separator: str = "; ") -> str:
    """The first `most` different texts, and how many more there are."""
    every = list(dict.fromkeys(texts))
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return separator.join([*every[:most], *more])


def all_of(
    culprits: Iterable[Culprit | None], most: int = 4, separator: str = "; "
) -> Culprit | None:
    """All culprits as one, with the words of the first `most`; None without any."""
    every = [one for one in culprits if one is not None]
    return Culprit.merged(listed(filter(None, every), most, separator), every) if every else None


def with_suspects(culprit: Culprit | None, unread: Iterable[Culprit]) -> Culprit | None:
    """The culprit, and who was not measured: they may be to blame too, or alone."""
    suspects = [one.suspected for one in unread]
    if culprit is None:
        return all_of(suspects, separator=", ")
    beside = [Culprit("", either=one.either) for one in suspects]  # its parts are those that failed
    return Culprit.merged(culprit, [culprit, *beside])


@dataclass(frozen=True, slots=True)
class Point:
    """Results of one size. Times are of one call over the repeats, each of its slowest rank.

    size_bytes: size of the collective as nccl-tests defines it.
    time_p99_us: at most one repeat in a hundred took longer; with fewer than a hundred repeats, the
    slowest. The bandwidths are means over communicators, each by its median time. wrong: number of
    wrong values over all ranks. times_us: time of each repeat, by communicator.
    """

    size_bytes: int
    repeats: int
    time_median_us: float
    time_p99_us: float
    time_min_us: float
    time_max_us: float
    algbw_gbytes_s: float
    busbw_gbytes_s: float
    wrong: int
    times_us: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    """A collective over ascending sizes. A size that could not be measured has no point.

    collective: torch.distributed's name. algorithm: "ring" if a ring is known to have moved the
    data, "default" if the library chose. backend: such as nccl. line_gbytes_s: bus bandwidth at
    line rate. expected: bound of the bus bandwidth at each of `judged_bytes`, in GB/s.
    """

    collective: str
    algorithm: str
    backend: str
    ranks: int
    points: tuple[Point, ...]
    line_gbytes_s: float | None = None
    expected: Bound | None = None
    judged_bytes: tuple[int, ...] = ()
    kind: Literal["curve"] = "curve"


def last_digit(values: Iterable[float]) -> float:
    """Smallest unit in the last printed digit of finite values: 0.01 for 9.99 and 10; 0 if none."""
    exponents = (Decimal(_digits(value)).as_tuple().exponent for value in values)
    return min((float(f"1e{exponent}") for exponent in exponents), default=0.0)


def _number(what: str, value: Any) -> float:
    """`value` as an int or float; numpy and torch scalars are accepted, text is not."""
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{what} of {value!r} is a {type(value).__name__}; give a number")
    return float(value)


def _digits(value: float) -> str:
    """Whole numbers in full, so that 1234567 and 1234568 print differently; else six digits."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.6g}"

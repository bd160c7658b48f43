"""The headline of a criterion: the finding that answers its question, in its own unit. Pure.

Judges mark the measurements that answer the question (`HeadlineMark`); nothing is chosen by the
name of a measurement. Terminal, page, junit and metrics show the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic.dataclasses import dataclass

from pytest_mnode.certificate.text import first_line
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, Relation, equals

SMALL_MARGIN = 0.10
"""Share of a bound: a smaller margin stands beside the headline, whichever finding has it."""


@dataclass(frozen=True)
class HeadlineFinding:
    """A value with its bound, as data and in few words.

    name: of the measurement; of a sum, what was counted. of: the whole, in `unit`. share: of it.
    margin: distance to the bound as a share of the bound; None if there is no such share.
    """

    name: str
    value: float | None
    unit: str
    expected: Bound | None
    of: float | None
    share: float | None
    margin: float | None
    text: str


@dataclass(frozen=True)
class CriterionHeadline:
    """What a criterion says in one line.

    text: the findings in words, or why there is none. expected: their bounds, or the question.
    least_margin: the finding closest to its bound, if it is close (`SMALL_MARGIN`).
    """

    text: str
    expected: str = ""
    findings: tuple[HeadlineFinding, ...] = ()
    least_margin: HeadlineFinding | None = None

    @property
    def margin(self) -> str:
        """The small margin in words, and whose it is if that is not the headline; else ""."""
        least = self.least_margin
        if least is None or least.margin is None:
            return ""
        own = any(one.name == least.name for one in self.findings)
        whose = "" if own else f": {least.text}"
        return f"least margin {100 * least.margin:.2g} %{whose}"

    @property
    def line(self) -> str:
        """Text and small margin."""
        return "; ".join(filter(None, [self.text, self.margin]))


def answered(
    measurements: Sequence[Measurement], nodes: Sequence[tuple[str, ...]]
) -> CriterionHeadline:
    """The headline of a criterion that passed.

    nodes: of each of its tests. Without a mark, a single value speaks for itself, and tests of one
    node each count nodes; others show the finding closest to its bound, or how many they are.
    """
    judged = [one for one in measurements if one.expected is not None]
    close = _closest(measurements)
    least = None
    if close is not None and 0 < (_margin(close) or 0) < SMALL_MARGIN:
        least = _finding(close)
    marked = [one for one in measurements if one.headline and one.known is not None]
    if marked:
        findings = _marked(marked)
    elif len(judged) == 1:
        return replace(said(judged[0]), least_margin=least)
    elif all(len(of_test) == 1 for of_test in nodes):
        findings = (_counted("nodes", *[len(set(nodes))] * 2),)
    elif close is not None and _margin(close):
        return replace(said(close), least_margin=least)
    else:
        findings = (_counted("tests", *[len(nodes)] * 2),)
    text = " and ".join(one.text for one in findings)
    bounds = ", ".join(filter(None, map(_bound_text, findings)))
    return CriterionHeadline(text, bounds, findings, least)


def said(measurement: Measurement, text: str = "") -> CriterionHeadline:
    """The headline that one measurement with a bound is. text: its words, if not the usual."""
    finding = _finding(measurement)
    return CriterionHeadline(text or finding.text, _bound_text(finding), (finding,))


def _marked(marked: Sequence[Measurement]) -> tuple[HeadlineFinding, ...]:
    """One finding for all that begin with the same words, of the lowest order."""
    groups: dict[str, list[tuple[Measurement, HeadlineMark]]] = {}
    lowest = min(one.headline.order for one in marked if one.headline)
    for one in marked:
        if (mark := one.headline) and mark.order == lowest:
            groups.setdefault(mark.before or mark.after, []).append((one, mark))
    return tuple(_of_all(some) for some in groups.values())


def _of_all(some: Sequence[tuple[Measurement, HeadlineMark]]) -> HeadlineFinding:
    """The sum of counts, else the worst value; of values without a bound, the largest."""
    counts = [(mark.right, mark.of) for _, mark in some if mark.right is not None and mark.of]
    if counts:
        right, tried = (sum(column) for column in zip(*counts, strict=True))
        return _counted(some[0][1].after, right, tried)

    def badness(pair: tuple[Measurement, HeadlineMark]) -> tuple[float, float]:
        margin = _margin(pair[0])
        return (0.0 if margin is None else margin), -(pair[0].value or 0.0)

    measurement, mark = min(some, key=badness)
    return _finding(measurement, mark)


def _counted(what: str, right: float, tried: float) -> HeadlineFinding:
    text = f"{_digits(right)} of {_digits(tried)} {what}"
    share = right / tried if tried else None
    return HeadlineFinding(what, right, what, equals(tried), tried, share, None, text)


def _finding(measurement: Measurement, mark: HeadlineMark | None = None) -> HeadlineFinding:
    value, of = measurement.known, mark.of if mark else None
    share = value / of if value is not None and of else None
    if mark is None or value is None:
        text = first_line(f"{measurement.measured} {measurement.name}")
    else:
        text = _words(value, measurement.unit, mark, share)
    margin = _margin(measurement)
    return HeadlineFinding(
        *(measurement.name, value, measurement.unit, measurement.expected, of, share, margin, text)
    )


def _words(value: float, unit: str, mark: HeadlineMark, share: float | None) -> str:
    """Such as "all-reduce 23.9 MB/s of 25 (95.6 % of the line)" or "0 steps lost"."""
    factor, unit = _scale(value, unit)
    words = [mark.before, _digits(value * factor), unit]
    if mark.of is not None:
        words.append(f"of {_digits(mark.of * factor)}")
    if share is not None and mark.whole:
        words.append(f"({100 * share:.3g} % of {mark.whole})")
    return " ".join(filter(None, [*words, mark.after]))


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Factor and unit in which a slow rate has digits before the point."""
    slow = unit.startswith("GB") and 0 < abs(value) < 1
    return (1e3, f"M{unit[1:]}") if slow else (1.0, unit)


def _bound_text(finding: HeadlineFinding) -> str:
    """The bound in the unit of the words; "" if they say it: all of a number."""
    bound = finding.expected
    if bound is None or bound.limit == finding.of:
        return ""
    factor, unit = _scale(finding.value or 0.0, finding.unit)
    scaled = Bound(bound.relation, bound.limit * factor, bound.tolerance * factor)
    return scaled.short(unit)


def _closest(measurements: Sequence[Measurement]) -> Measurement | None:
    """The one with the least margin; None if no margin is a share of a bound.

    A bound that is met exactly is a count, and no measured value is close to it.
    """
    known = [(margin, one) for one in measurements if (margin := _margin(one))]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def _margin(measurement: Measurement) -> float | None:
    """Distance to a limit as a share of it; None where values are expected on both sides of it."""
    bound, value = measurement.expected, measurement.known
    if bound is None or value is None or bound.relation is Relation.EQUALS:
        return None
    return bound.relative_margin(value)


def _digits(value: float) -> str:
    """Whole numbers in full, others with three digits."""
    return str(int(value)) if value == int(value) else f"{value:.3g}"

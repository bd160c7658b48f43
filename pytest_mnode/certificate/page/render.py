"""Selects the content of a certificate's page, worst first, and renders it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from heapq import nsmallest
from itertools import count
from typing import TYPE_CHECKING, Any

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.coverage import Coverage, NodeCoverage, rate_text
from pytest_mnode.certificate.criterion_headline import CriterionHeadline
from pytest_mnode.certificate.headline import headline
from pytest_mnode.certificate.history import History, Trend
from pytest_mnode.certificate.page.pictures import (
    MISSING,
    Drawn,
    can_draw,
    draw,
    title_of,
    together,
)
from pytest_mnode.certificate.results import CaseResult, CriterionResult, CriterionVerdict
from pytest_mnode.certificate.text import fit, parameter_of
from pytest_mnode.charts import Advice, Chart, Lines, Map, Matrix, Series
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.measurement import Measurement, Verdict, at_least
from pytest_mnode.path_rates import State

if TYPE_CHECKING:
    import jinja2

_WORST_FIRST = {Verdict.FAIL: 0, Verdict.INCONCLUSIVE: 1, Verdict.PASS: 2, None: 3}
_ORDER = tuple(CriterionVerdict)
_MOST_TRENDS = 6
_TABLES = (Map, Advice)
"""Charts that need no matplotlib."""
MANY = 40
"""Maximum number of entries of a list that is opened in print."""
MOST_VALUES = 25_000
"""Maximum number of values on a page, apart from the worst of each group: 2.8 MB of text."""


@dataclass(frozen=True, slots=True)
class Value:
    """One measurement. of: its case, such as "node3"; empty if the question has only one."""

    of: str
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Group:
    """Values of one name with one bound from one source. The worst is shown, the rest on demand."""

    values: tuple[Value, ...]

    @property
    def worst(self) -> Value:
        return min(self.values, key=_badness)

    @property
    def broken(self) -> tuple[Value, ...]:
        """Values that decided a verdict, worst first."""
        bad = (Verdict.FAIL, Verdict.INCONCLUSIVE)
        return tuple(sorted((v for v in self.values if v.measurement.verdict in bad), key=_badness))

    @property
    def shown(self) -> tuple[Value, ...]:
        """Values that the table itself shows."""
        return self.broken[:MANY] or (self.worst,)

    def listed(self, most: int) -> tuple[Value, ...]:
        """All values in the order of their cases; if they are more than `most`, the worst."""
        return (
            self.values
            if len(self.values) <= most
            else tuple(nsmallest(most, self.values, _badness))
        )

    @property
    def verdicts(self) -> str:
        """Number of values by verdict, such as "511 pass, 1 fail"."""
        counted = Counter(word(v.measurement) for v in self.values)
        return ", ".join(f"{count} {name}" for name, count in counted.items())


@dataclass(frozen=True, slots=True)
class SharedText:
    """A text that several cases share, such as why they failed. of: names of the cases."""

    text: str
    of: tuple[str, ...]
    culprit: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One test with all of its parameters."""

    text: str
    test: str
    verdict: CriterionVerdict
    cases: str
    groups: tuple[Group, ...]
    messages: tuple[SharedText, ...]
    charts: tuple[Chart, ...]


def questions(criterion: CriterionResult) -> list[Question]:
    """Promised questions, worst verdict first, else in the order of the suite."""
    by_test: dict[str, list[CaseResult]] = {}
    for case in criterion.cases:
        if case.verdict is not CriterionVerdict.NOT_PROMISED:
            by_test.setdefault(_test(case), []).append(case)
    found = [_question(test, cases) for test, cases in by_test.items()]
    return sorted(found, key=lambda question: _severity(question.verdict))


def most_listed(criteria: Sequence[CriterionResult]) -> int:
    """How many values of a group the page lists: all, unless all together are too many."""
    values = [(_test(case), one) for c in criteria for case in c.cases for one in case.measurements]
    if len(values) <= MOST_VALUES:
        return len(values)
    return max(MANY, MOST_VALUES // len({(test, *_group_of(one)) for test, one in values}))


def _group_of(one: Measurement) -> tuple[object, ...]:
    return one.name, one.unit, one.expected, one.source


def left_open(criterion: CriterionResult) -> list[tuple[str, str, int]]:
    """Questions that the spec does not promise: question, reason, number of cases."""
    counted = Counter(
        (case.question or _test(case), case.message)
        for case in criterion.cases
        if case.verdict is CriterionVerdict.NOT_PROMISED
    )
    return [(question, why, count) for (question, why), count in counted.items()]


def not_passed(coverage: Coverage) -> list[NodeCoverage]:
    """Nodes without a pass: first failed, then suspect, then not tested."""
    order = (State.FAILED, State.SUSPECT, State.NOT_TESTED)
    return sorted(
        (node for node in coverage.nodes if node.state in order),
        key=lambda node: order.index(node.state),
    )


def path_matrix(coverage: Coverage) -> Matrix | None:
    """The latest rate of every path; None if no run has measured any.

    A path that failed without a reading has the rate 0.
    """
    if not coverage.paths:
        return None
    paths = list(coverage.each_path())
    ends = {node for path in paths for node in path[:2]}
    names = tuple(node.name for node in coverage.nodes if node.name in ends)
    row = {name: n for n, name in enumerate(names)}
    values: list[list[float | None]] = [[None] * len(names) for _ in names]
    for sender, receiver, state, mbits_s in paths:
        dead = mbits_s is None and state is State.FAILED
        values[row[sender]][row[receiver]] = 0.0 if dead else mbits_s
    # A path that passed although below the bound is not an outlier and is not shown as one.
    passed = [rate for _, _, state, rate in paths if state is State.PASSED and rate is not None]
    bound = min([coverage.paths[0].rates.bound_mbits_s, *passed])
    return Matrix(
        "Paths between nodes: rows send, columns receive",
        "Mbit/s",
        names,
        names,
        tuple(map(tuple, values)),
        at_least(bound),
    )


def trend_lines(history: History) -> list[Lines]:
    """Charts over runs of the measurements that changed most."""
    return [
        Lines(f"{one.label}: unusual", "run", one.unit or "value", tuple(_over_runs(one)))
        for one in history.trends
        if one.changed
    ][:_MOST_TRENDS]


def _over_runs(trend: Trend) -> Iterator[Series]:
    numbered = enumerate(trend.values, start=1)
    yield Series("measured", tuple((n, v) for n, v in numbered if v is not None))
    if trend.usual is not None:
        ends = (1, len(trend.values))
        yield Series(f"usual {trend.usual:.4g}", tuple((n, trend.usual) for n in ends))


def word(measurement: Measurement) -> str:
    """The verdict as text; "recorded" if not judged."""
    return "recorded" if measurement.verdict is None else measurement.verdict.value


def share_of_bound(measurement: Measurement) -> str:
    """The margin as a share of the bound; "" if there is no such share."""
    expected, value = measurement.expected, measurement.value
    if measurement.margin is None or expected is None or value is None:
        return ""
    relative = expected.relative_margin(value)
    return "" if relative is None else f"{relative:+.1%}"


def headline_share(headline: CriterionHeadline) -> str:
    """The least margin of its findings as a share of the bound; "" if there is no such share."""
    known = [one.margin for one in headline.findings if one.margin is not None]
    return f"{min(known):+.1%}" if known else ""


def _question(test: str, cases: Sequence[CaseResult]) -> Question:
    groups: dict[tuple[object, ...], list[Value]] = {}
    texts: dict[tuple[str, str | None], list[str]] = {}
    for case in cases:
        for one in case.measurements:
            groups.setdefault(_group_of(one), []).append(Value(parameter_of(case.test), one))
        if case.message:
            texts.setdefault((case.message, case.culprit), []).append(parameter_of(case.test))
    counted = Counter(case.verdict.value for case in cases)
    return Question(
        text=cases[0].question,
        test=test,
        verdict=min((case.verdict for case in cases), key=_severity),
        cases="" if len(cases) == 1 else ", ".join(f"{n} {word}" for word, n in counted.items()),
        groups=tuple(Group(tuple(values)) for values in groups.values()),
        messages=tuple(
            SharedText(text, tuple(filter(None, of)), by) for (text, by), of in texts.items()
        ),
        charts=tuple(chart for case in cases for chart in case.charts),
    )


def _test(case: CaseResult) -> str:
    return case.test.removesuffix(f"[{parameter_of(case.test)}]")


def _severity(verdict: CriterionVerdict) -> int:
    """Sort key: fail first, then inconclusive, then the rest."""
    first = (CriterionVerdict.FAIL, CriterionVerdict.INCONCLUSIVE)
    return first.index(verdict) if verdict in first else len(first)


def _badness(value: Value) -> tuple[int, float]:
    one = value.measurement
    margin = None if one.expected is None or one.value is None else one.margin
    return _WORST_FIRST[one.verdict], 0.0 if margin is None else margin


def missing_pictures(certificate: Certificate) -> str:
    """Why the page has no pictures; "" if none is missing."""
    charts = (c for criterion in certificate.criteria for k in criterion.cases for c in k.charts)
    past = certificate.history
    drawn = (
        certificate.coverage.paths
        or (past and trend_lines(past))
        or any(isinstance(c, Drawn) and not isinstance(c, _TABLES) for c in charts)
    )
    return MISSING if drawn and not can_draw() else ""


def page_text(certificate: Certificate, asked: datetime | None = None) -> str:
    """The page as HTML 5. Without matplotlib it has no pictures, and says so. asked: see
    `headline`; the page has no script, so that it says for which time it speaks."""
    from markupsafe import Markup

    missing = missing_pictures(certificate)
    number = count(1)

    def pictures(charts: Iterable[Chart]) -> list[tuple[str, Drawn, str]]:
        """Title, chart and drawing of each picture; the template draws `_TABLES`."""
        return [
            (title_of(some[0]), some[0], drawing(some))
            for some in together(charts)
            if not missing or isinstance(some[0], _TABLES)
        ]

    def drawing(charts: Sequence[Drawn]) -> str:
        if isinstance(charts[0], _TABLES):
            return ""
        try:
            return Markup(draw(charts, f"s{next(number)}-"))
        except Exception as error:  # such as matplotlib's many about values of 1e308
            return f"no picture: {error}"

    return _template().render(
        certificate=certificate,
        run=certificate.run,
        headline=headline(certificate, asked),
        pictures=pictures,
        missing=missing,
        most=most_listed(certificate.criteria),
    )


@cache
def _template() -> jinja2.Template:
    import jinja2  # imported here, because runs without a page do not need it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_mnode.certificate.page", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters |= {"hosts": compress, "class": _css_class}
    environment.filters["time"] = lambda at: f"{at:%Y-%m-%d %H:%M UTC}"
    environment.globals |= {
        "questions": questions,
        "left_open": left_open,
        "not_passed": not_passed,
        "path_matrix": path_matrix,
        "trend_lines": trend_lines,
        "rate": rate_text,
        "word": word,
        "share": share_of_bound,
        "headline_share": headline_share,
        "many": MANY,
    }
    return environment.get_template("template.html.j2")


def _finalized(value: Any) -> Any:
    """Text with control characters escaped. Raises TypeError for None, an error of the template."""
    if value is None:
        raise TypeError("the template prints None")
    # Text marked as safe is the template's own.
    return value if hasattr(value, "__html__") else fit(str(value))


def _css_class(verdict: str) -> str:
    """The CSS class of a verdict: good, bad, unsure, or open if not judged."""
    good, bad = ("pass", "passed", "certified"), ("fail", "failed", "not certified")
    known = dict.fromkeys(good, "good") | dict.fromkeys(bad, "bad")
    quiet = ("not promised", "not rehearsed", "not tested", "recorded")
    return known.get(verdict, "open" if verdict in quiet else "unsure")

"""The certificate on a terminal: one line per criterion, then the verdict of the run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.headline import headline
from pytest_mnode.certificate.results import CriterionResult, CriterionVerdict
from pytest_mnode.certificate.text import first_line
from pytest_mnode.measurement import Verdict
from pytest_mnode.table import Paint, aligned, measurement_table, plain

_HEADINGS = ("criterion", "measured", "expected", "verdict", "culprit")
# Least widths of the columns that shrink on a narrow terminal: their cells are wrapped.
_SHRINKS = {1: 12, 2: 12, 4: 12}


def summary_lines(
    certificate: Certificate,
    width: int | None = None,
    *,
    asked: datetime | None = None,
    every_measurement: bool = False,
    wraps: bool = False,
    paint: Paint = plain,
) -> list[str]:
    """Aligned plain text: the certificate's headline, the criteria, doubts about the spec, what was
    covered, and the headline again, since a terminal shows the end.

    width: columns of the terminal; longer cells are wrapped. None if unlimited. asked: see
    `headline`.
    every_measurement: adds a table of all measurements of each criterion. wraps: sentences are
    wrapped too; not for a log, which is searched by line. paint: colours verdicts.
    """
    fold = width if wraps else None
    rows = [_HEADINGS, *(_row(c) for c in certificate.criteria)]
    nodes, paths = certificate.coverage.nodes_in_words(), certificate.coverage.paths_in_words()
    head = headline(certificate, asked)
    first, *more = _folded([head.line], fold)
    line = [f"{paint(head.word)}{first.removeprefix(head.word)}", *more]
    sentences = [
        *_detected(certificate.criteria),
        *(f"doubtful spec: {doubt}" for doubt in certificate.run.doubts),
        *([f"emulated: {certificate.run.emulated}"] if certificate.run.emulated else []),
        *(certificate.history.lines() if certificate.history else ()),
        f"covered: {certificate.run.coverage}",
        *([f"nodes: {nodes}"] if nodes else []),
        *([f"paths: {paths}"] if paths else []),
    ]
    return [
        *line,
        "",
        *(_measurements(certificate.criteria, width, paint) if every_measurement else ()),
        *aligned(rows, width, _SHRINKS, paint),
        *_folded(sentences, fold),
        *line,
    ]


def _folded(lines: Sequence[str], width: int | None) -> list[str]:
    """Lines of this width at most, except for longer words; continuations are indented."""
    if width is None:
        return list(lines)
    fold = textwrap.TextWrapper(
        width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return [part for line in lines for part in fold.wrap(line)]


def _measurements(
    criteria: Sequence[CriterionResult], width: int | None, paint: Paint
) -> Iterator[str]:
    for criterion in criteria:
        measured = [m for case in criterion.cases for m in case.measurements]
        if measured:
            yield f"{criterion.name}:"
            yield from measurement_table(measured, width, paint)
            yield ""


def _detected(criteria: Sequence[CriterionResult]) -> Iterator[str]:
    """The smallest faults that each criterion would have shown."""
    for criterion in criteria:
        if criterion.detects:
            found = ", ".join(criterion.detects)
            yield f"{criterion.name} would have shown, with 99 % probability: {found}"


def _row(criterion: CriterionResult) -> tuple[str, str, str, str, str]:
    verdict = criterion.verdict
    word = "FAIL" if verdict is CriterionVerdict.FAIL else verdict.value
    measured, expected = _measured_and_expected(criterion)
    return criterion.name, measured, expected, word, ", ".join(criterion.culprits)


def _measured_and_expected(criterion: CriterionResult) -> tuple[str, str]:
    """Measured and expected value of the worst measurement, else texts about the tests."""
    if criterion.not_promised is not None:
        return first_line(criterion.not_promised), ""
    case = criterion.worst
    if case is None:
        return criterion.silence, ""
    worst, count = case.worst, len(criterion.judged)
    exact = criterion.verdict is CriterionVerdict.PASS and count > 1 and worst and not worst.margin
    if worst is not None and worst.expected is not None and not exact:
        judged = worst.verdict is not Verdict.INCONCLUSIVE
        met = f"{worst.measured} {worst.name}" if judged else case.summary
        return first_line(met), worst.expected.short(worst.unit)
    if criterion.verdict is CriterionVerdict.PASS and count > 1:
        return f"{count} tests passed", ""  # none of them has a margin to show
    return case.summary, case.question

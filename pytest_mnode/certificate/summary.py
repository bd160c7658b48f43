"""The certificate on a terminal: one line per criterion, then the verdict of the run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.headline import headline
from pytest_mnode.certificate.results import CriterionResult, CriterionVerdict
from pytest_mnode.charts import Advice
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
        *([f"false alarms: {alarms}"] if (alarms := certificate.false_alarms.text) else []),
        *([f"rehearsal: {run.rehearsal}"] if (run := certificate.run).rehearsal else []),
        *(f"doubtful spec: {doubt}" for doubt in certificate.run.doubts),
        *([f"emulated: {certificate.run.emulated}"] if certificate.run.emulated else []),
        *(f"requirement {clause}" for clause in certificate.requirements),
        *(certificate.history.lines() if certificate.history else ()),
        f"covered: {certificate.run.coverage}",
        *([f"nodes: {nodes}"] if nodes else []),
        *([f"paths: {paths}"] if paths else []),
    ]
    return [
        *line,
        "",
        *(_measurements(certificate.criteria, width, paint) if every_measurement else ()),
        *_advice(certificate.criteria),
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


def _advice(criteria: Sequence[CriterionResult]) -> Iterator[str]:
    """What settings gained, and the lines to paste."""
    for chart in (chart for one in criteria for case in one.cases for chart in case.charts):
        if isinstance(chart, Advice):
            yield f"{chart.title} ({chart.rounds} rounds, {chart.took_s:.0f} s)"
            yield from aligned(chart.table())
            yield from (*(f"  {line}" for line in chart.conclusion), "")


def _detected(criteria: Sequence[CriterionResult]) -> Iterator[str]:
    """The smallest faults that each criterion detects."""
    for criterion in criteria:
        if criterion.detects:
            found = ", ".join(criterion.detects)
            yield f"{criterion.name}: detection limit (99 %): {found}"


def _row(criterion: CriterionResult) -> tuple[str, str, str, str, str]:
    verdict, head = criterion.verdict, criterion.headline
    word = "FAIL" if verdict is CriterionVerdict.FAIL else verdict.value
    return criterion.name, head.line, head.expected, word, ", ".join(criterion.culprits)

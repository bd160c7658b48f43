"""The headline of a certificate: verdict, scope, and whether it is valid when it is asked; and its
summary for a terminal, one line per criterion. Pure.

Every face (terminal, page, junit, metrics, commands) shows this value, and none words its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pytest_mnode.certificate.certificate import Certificate, CertificateVerdict
from pytest_mnode.certificate.results import CriterionResult, CriterionVerdict
from pytest_mnode.charts import Advice
from pytest_mnode.measurement import listed
from pytest_mnode.table import Paint, aligned, measurement_table, plain


class Validity(StrEnum):
    """Whether a certificate is valid when it is asked. Every verdict has a date until which."""

    VALID = "valid"
    EXPIRED = "expired"
    NOT_YET = "not yet valid"
    """Asked before its run began, so that a clock is wrong, or a date was changed."""


Tone = Literal["good", "bad", "unsure"]
_KEPT = (CertificateVerdict.CERTIFIED, CertificateVerdict.PARTLY_CERTIFIED)


@dataclass(frozen=True, slots=True)
class Headline:
    """What a certificate says at one time.

    scope: what it holds for, such as "2 of 16 nodes". since, until: the begin of its run, and when
    its first pass expires. asked: the time of asking. reasons: why it does not certify the cluster.
    of: spec and launcher. rehearsal: whether all values come from a virtual cluster.
    """

    verdict: CertificateVerdict
    scope: str
    since: datetime
    until: datetime
    asked: datetime
    reasons: tuple[str, ...]
    of: str
    rehearsal: bool = False

    @property
    def validity(self) -> Validity:
        if self.asked < self.since:
            return Validity.NOT_YET
        return Validity.VALID if self.asked < self.until else Validity.EXPIRED

    @property
    def holds(self) -> bool:
        """Whether every promise was kept on the nodes of its scope, and it is valid."""
        return self.verdict in _KEPT and self.validity is Validity.VALID

    @property
    def exit_status(self) -> int:
        """0 if it holds, else 1."""
        return 0 if self.holds else 1

    @property
    def tone(self) -> Tone:
        """Its colour: good only for a whole cluster that is certified now."""
        if self.verdict is CertificateVerdict.NOT_CERTIFIED:
            return "bad"
        whole = self.holds and self.verdict is CertificateVerdict.CERTIFIED
        return "good" if whole else "unsure"

    @property
    def word(self) -> str:
        """The words that may be printed large: "certified" only for what is certified now."""
        dated = {
            Validity.VALID: "",
            Validity.EXPIRED: f"expired {self.until:%Y-%m-%d}",
            Validity.NOT_YET: f"not valid before {self.since:%Y-%m-%d}",
        }[self.validity]
        if self.verdict in _KEPT:
            return dated or self.verdict.value
        rehearsal = self.rehearsal and self.verdict is not CertificateVerdict.REHEARSAL
        return ", ".join(filter(None, ["rehearsal" * rehearsal, _word(self.verdict), dated]))

    @property
    def text(self) -> str:
        """What it holds for and until when, or the reasons against it."""
        if self.verdict not in _KEPT:
            return f"{'; '.join(self.reasons)}; passed: {self.scope}"
        was = "" if self.validity is Validity.VALID else f"was {self.verdict.value}: "
        reasons = "".join(f"; cluster not certified: {reason}" for reason in self.reasons)
        return f"{was}{self.scope} until {self.until:%Y-%m-%d %H:%M UTC} ({self.of}){reasons}"

    @property
    def line(self) -> str:
        """Word and text in one line."""
        return f"{self.word}: {self.text}"


def headline(certificate: Certificate, asked: datetime | None = None) -> Headline:
    """The headline of a certificate. asked: the end of its run if None."""
    run = certificate.run
    return Headline(
        certificate.verdict,
        _scope(certificate),
        run.start,
        certificate.until,
        asked or run.end,
        _reasons(certificate),
        f"spec {run.spec.name}, {run.launcher} launcher",
        run.rehearsal is not None,
    )


def _word(verdict: CertificateVerdict) -> str:
    return "NOT certified" if verdict is CertificateVerdict.NOT_CERTIFIED else verdict.value


def _scope(certificate: Certificate) -> str:
    if certificate.kept and not certificate.coverage.nodes_by_state.passed:
        passed = [c.name for c in certificate.criteria if c.verdict is CriterionVerdict.PASS]
        return f"{', '.join(passed)} only, no node tested,"
    share = certificate.coverage.share_of_paths() if certificate.kept else ""
    return f"{certificate.count}{', ' * bool(share)}{share}"


def _reasons(certificate: Certificate) -> tuple[str, ...]:
    """Reasons, of which one lists all criteria that did not run."""
    absent = [c for c in certificate.criteria if c.verdict is CriterionVerdict.DID_NOT_RUN]
    together = f"{listed([c.name for c in absent], 12, ', ')} did not run"
    alone = {c.reason for c in absent}
    return tuple(dict.fromkeys(together if r in alone else r for r in certificate.reasons))


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

"""The certificate on a terminal: one line a criterion, then what it all amounts to."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from itertools import zip_longest

from pytest_mnode.certificate.certificate import Certificate, CertificateVerdict
from pytest_mnode.certificate.criterion import CriterionResult, CriterionVerdict
from pytest_mnode.certificate.text import first_line
from pytest_mnode.measurement import Verdict

_HEADINGS = ("criterion", "measured", "expected", "verdict", "culprit")
# Columns that give way on a narrow terminal, and how far: their cells go on in further lines.
_SHRINKS = ((1, 20), (4, 16), (2, 12), (1, 12), (4, 12))
_GAP = "  "


def print_summary(
    certificate: Certificate, write_line: Callable[[str], None], width: int | None = None
) -> None:
    """Hand each line of the summary to `write_line`."""
    for line in summary_lines(certificate, width):
        write_line(line)


def summary_lines(certificate: Certificate, width: int | None = None) -> list[str]:
    """Aligned plain text: the criteria, doubts about the spec, the certificate's line.

    width: columns of the terminal; longer cells are wrapped. None: as wide as it gets.
    """
    rows = [_HEADINGS, *(_row(c) for c in certificate.criteria)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    if width is not None:
        for column, least in _SHRINKS:
            excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
            widths[column] -= max(0, min(excess, widths[column] - least))
    return [
        *(line for row in rows for line in _wrapped(row, widths)),
        *(f"doubtful spec: {doubt}" for doubt in certificate.run.doubts),
        *([f"emulated: {certificate.run.emulated}"] if certificate.run.emulated else []),
        f"covered: {certificate.run.coverage}",
        certificate_line(certificate),
    ]


def certificate_line(certificate: Certificate) -> str:
    """The verdict of the run in one line, with what it holds for or what stands in its way."""
    if certificate.expiry is not None:
        run = certificate.run
        until = certificate.expiry.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return (
            f"certified: {run.count} until {until} (spec {run.spec.name}, {run.launcher} launcher)"
        )
    not_certified = certificate.verdict is CertificateVerdict.NOT_CERTIFIED
    said = "NOT certified" if not_certified else certificate.verdict.value
    return f"{said}: {'; '.join(certificate.reasons)}"


def _row(criterion: CriterionResult) -> tuple[str, str, str, str, str]:
    verdict = criterion.verdict
    word = "FAIL" if verdict is CriterionVerdict.FAIL else verdict.value
    measured, expected = _told(criterion)
    return criterion.name, measured, expected, word, ", ".join(criterion.culprits)


def _told(criterion: CriterionResult) -> tuple[str, str]:
    """What was measured and what was expected: of the worst measurement, else of the tests."""
    if criterion.not_promised is not None:
        return first_line(criterion.not_promised), ""
    case = criterion.worst
    if case is None:
        return "", ""
    worst, count = case.worst, len(criterion.judged)
    exact = criterion.verdict is CriterionVerdict.PASS and count > 1 and worst and not worst.margin
    if worst is not None and worst.expected is not None and not exact:
        judged = worst.verdict is not Verdict.INCONCLUSIVE
        told = f"{worst.measured} {worst.name}" if judged else case.told
        return first_line(told), worst.expected.short(worst.unit)
    if criterion.verdict is CriterionVerdict.PASS and count > 1:
        return f"{count} tests passed", ""  # of which none came near a bound that has room
    return case.told, case.question


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Lines of one row; nothing is cut."""
    cells = [textwrap.wrap(cell, size or 1) for cell, size in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        yield _GAP.join(p.ljust(size) for p, size in zip(parts, widths, strict=True)).rstrip()

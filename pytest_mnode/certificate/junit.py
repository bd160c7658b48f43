"""The certificate as junit XML, for viewers of test results, and measurements as properties."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import junit_xml

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.headline import Headline, headline
from pytest_mnode.certificate.results import (
    CaseResult,
    CriterionResult,
    CriterionVerdict,
    measurements_to_json,
)
from pytest_mnode.certificate.text import first_line, fit, one_line
from pytest_mnode.measurement import Measurement, Verdict

PROPERTY = "mnode.measurement"


def measurement_properties(measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    """Properties for pytest's own junit: one line of JSON each, without empty values."""
    return [
        (
            PROPERTY,
            json.dumps(_without_empty(data | {"expected": _without_empty(data["expected"])})),
        )
        for data in measurements_to_json(measurements)
    ]


def _without_empty(data: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (data or {}).items() if value not in (None, "", [], {})}


def junit_text(certificate: Certificate, asked: datetime | None = None) -> str:
    """One suite for the headline, then one per criterion with a case per measurement.

    A fail is a failure; inconclusive, not run and expired are errors; recorded only, not promised
    and partly certified are skipped, so that nothing counts as passed that was not judged.
    asked: see `headline`.
    """
    head = headline(certificate, asked)
    properties = {
        "headline": head.line,
        "asked": head.asked.isoformat(),
        "verdict": certificate.verdict.value,
        "spec": f"{certificate.run.spec.name} {certificate.run.spec.digest}",
        "launcher": certificate.run.launcher,
        "nodes": " ".join(certificate.run.nodes),
        "covered": certificate.run.coverage,
        **({"rehearsal": rehearsal} if (rehearsal := certificate.run.rehearsal) else {}),
        **({"certified": certificate.count} if head.holds else {}),
    }
    clauses = _clauses(certificate)
    suites = [
        junit_xml.TestSuite(
            fit(f"rehearsal: {name}" if head.rehearsal else name),
            list(cases),
            timestamp=certificate.run.start.isoformat(),
            properties={k: fit(v) for k, v in (properties | own).items()},
        )
        for name, cases, own in (
            ("certificate", [_overall(certificate, head)], {}),
            *((c.name, _cases(c), {"measured": c.headline.line}) for c in certificate.criteria),
            *([("requirements", clauses, {})] if clauses else ()),
        )
    ]
    return str(junit_xml.to_xml_report_string(suites, encoding="utf-8"))


def _overall(certificate: Certificate, head: Headline) -> junit_xml.TestCase:
    """The headline. Its name has no verdict, because viewers show it in any colour."""
    what = "rehearsal" if head.rehearsal else "certificate"
    out = _named(f"{what} of {certificate.run.spec.name}", what)
    match head.tone:
        case "good":
            out.stdout = fit(f"{head.line}; {certificate.run.coverage}")
        case "bad":
            _fail(out, head.line)
        case "unsure" if head.holds:
            out.add_skipped_info(fit(head.line))
        case "unsure":
            _error(out, head.line)
    return out


def _cases(criterion: CriterionResult) -> Iterator[junit_xml.TestCase]:
    """Never empty: a suite without a case would look like one without a failure."""
    match criterion.verdict:
        case CriterionVerdict.NOT_PROMISED if not criterion.silence:
            out = _named(criterion.name, criterion.name)
            why = criterion.not_promised or criterion.cases[0].message
            out.add_skipped_info(fit(f"not promised: {why}"))
            yield out
        case CriterionVerdict.NOT_REHEARSED:
            out = _named(criterion.name, criterion.name)
            out.add_skipped_info(fit(f"not rehearsed: {criterion.not_rehearsed}"))
            yield out
        case CriterionVerdict.DID_NOT_RUN:
            out = _named(criterion.name, criterion.name)
            _error(out, f"{criterion.name} is promised and did not run")
            yield out
        case _:
            if criterion.silence:
                out = _named(criterion.name, criterion.name)
                if criterion.promised:
                    _error(out, f"{criterion.name} is promised, and {criterion.silence}")
                else:
                    out.add_skipped_info(fit(f"not promised: {criterion.silence}"))
                yield out
            for case in criterion.cases:
                yield from _case(case)


def _clauses(certificate: Certificate) -> list[junit_xml.TestCase]:
    """A case for each of the buyer's clauses."""
    found = []
    for clause in certificate.requirements:
        out = _named(clause.name, "requirements")
        match clause.verdict:
            case CriterionVerdict.PASS:
                out.stdout = fit(", ".join(clause.tests))
            case CriterionVerdict.FAIL:
                _fail(out, str(clause), "\n".join(clause.tests))
            case CriterionVerdict.NOT_PROMISED | CriterionVerdict.NOT_REHEARSED:
                out.add_skipped_info(fit(str(clause)))
            case _:
                _error(out, str(clause), "\n".join(clause.tests))
        found.append(out)
    return found


def _case(case: CaseResult) -> Iterator[junit_xml.TestCase]:
    path, _, test = case.test.partition("::")
    classname = path.removesuffix(".py").replace("/", ".")
    judged = [m for m in case.measurements if m.verdict is not None]
    if case.outcome != "passed" or not judged:
        out = _named(test or path, classname, case.duration_s)
        blame = f", culprit {case.culprit}" if case.culprit else ""
        text = (first_line(case.message, 1000) or case.outcome) + blame
        if case.verdict is CriterionVerdict.NOT_PROMISED:
            out.add_skipped_info(fit(text))
        elif case.outcome == "failed":
            _fail(out, text, case.message)
        elif case.outcome != "passed":
            _error(out, text, case.message)
        elif case.unread:
            _error(out, case.unread)
        yield out
    for measurement in case.measurements:
        where = f" ({measurement.where})" if measurement.where else ""
        out = _named(f"{test}: {measurement.name}{where}", classname)
        text = one_line(str(measurement))
        match measurement.verdict:
            case Verdict.FAIL:
                _fail(out, text)
            case Verdict.INCONCLUSIVE:
                _error(out, text)
            case Verdict.PASS:
                out.stdout = fit(text)
            case None:
                out.add_skipped_info(fit(f"recorded, not judged: {text}"))
        yield out


def _named(name: str, classname: str, elapsed_s: float | None = None) -> junit_xml.TestCase:
    return junit_xml.TestCase(fit(name), fit(classname), elapsed_sec=elapsed_s)


def _fail(case: junit_xml.TestCase, message: str, output: str = "") -> None:
    case.add_failure_info(fit(message), fit(output), Verdict.FAIL.value)


def _error(case: junit_xml.TestCase, message: str, output: str = "") -> None:
    case.add_error_info(fit(message), fit(output), Verdict.INCONCLUSIVE.value)

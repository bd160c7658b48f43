"""The certificate as junit: no unjudged case counts as passed, and any text is written."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult, Certificate, SpecFacts, measurement_properties
from pytest_mnode.certificate.headline import headline
from pytest_mnode.certificate.junit import junit_text
from pytest_mnode.certificate.text import LONGEST, first_line, fit
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least
from tests.certificate.conftest import certify

TEST = "acceptance/test_fabric.py::test_all_reduce[4]"
FAST = Measurement("busbw", 180, "Mbit/s", at_least(170, 5), "spec", where="rank 0")
SLOW = Measurement(
    "busbw", 48, "Mbit/s", at_least(170, 5), "line × 0.85", Culprit("node2 fab0", "node2")
)
UNKNOWN = Measurement("busbw", None, "Mbit/s", at_least(170), note="no counter")
RECORDED = Measurement("latency", 3, "us")
OUTCOMES = ("failure", "error", "skipped")
KEPT = CaseResult(TEST, "?", "passed", measurements=(FAST,))


def suite(certificate: Certificate, name: str) -> ET.Element:
    (found,) = ET.fromstring(junit_text(certificate)).findall(f"testsuite[@name='{name}']")
    return found


def outcomes(suite: ET.Element) -> list[tuple[str | None, str, str | None]]:
    """(name, outcome, message) of each case of a suite."""
    out = []
    for case in suite.iter("testcase"):
        inner = [(e.tag, e.get("message")) for e in case if e.tag in OUTCOMES] or [("pass", None)]
        assert len(inner) == 1
        out.append((case.get("name"), *inner[0]))
    return out


def test_each_measurement_is_a_case_of_its_criterion() -> None:
    certificate = certify(
        CaseResult(TEST, "?", "passed", measurements=(FAST, SLOW, UNKNOWN, RECORDED)),
        promised=["fabric"],
    )
    fabric = suite(certificate, "fabric")
    counts = {k: fabric.get(k) for k in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    name = "test_all_reduce[4]: "
    assert outcomes(fabric) == [
        (f"{name}busbw (rank 0)", "pass", None),
        (f"{name}busbw", "failure", str(SLOW)),
        (f"{name}busbw", "error", str(UNKNOWN)),
        (f"{name}latency", "skipped", "recorded, not judged: latency: 3 us"),
    ]
    assert {c.get("classname") for c in fabric.iter("testcase")} == {"acceptance.test_fabric"}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (CaseResult(TEST, "?", "passed", promises=("fabric",)), ("pass", None)),
        (CaseResult(TEST, "?", "failed", "", "node2"), ("failure", "failed, culprit node2")),
        (CaseResult(TEST, "?", "failed", "3 != 4"), ("failure", "3 != 4")),
        (CaseResult(TEST, "?", "error", "no node"), ("error", "no node")),
        (CaseResult(TEST, "?", "skipped", "no GPU"), ("error", "no GPU")),
    ],
)
def test_a_test_without_measurements_is_a_case(
    case: CaseResult, expected: tuple[str, str | None]
) -> None:
    assert outcomes(suite(certify(case), "fabric")) == [("test_all_reduce[4]", *expected)]


def test_an_unpromised_case_is_skipped_among_the_others() -> None:
    left_open = CaseResult(TEST, "?", "not promised", "not promised: the colour")
    certificate = certify(left_open, CaseResult(TEST, "?", "passed", promises=("fabric",)))
    assert outcomes(suite(certificate, "fabric")) == [
        ("test_all_reduce[4]", "skipped", "not promised: the colour"),
        ("test_all_reduce[4]", "pass", None),
    ]
    silent = certify(left_open, CaseResult(TEST, "?", "passed"))
    assert outcomes(suite(silent, "fabric"))[0] == (
        "fabric",
        "skipped",
        "not promised: its tests judged no value",
    )
    assert len(outcomes(suite(silent, "fabric"))) == 3
    assert outcomes(suite(certify(left_open), "fabric"))[0][1] == "skipped"
    assert outcomes(suite(certify(left_open, promised=["fabric"]), "fabric"))[0][1] == "error"


def test_a_failed_test_with_passed_measurements_stays_failed() -> None:
    case = CaseResult(TEST, "?", "failed", "wrong sum\nE assert", measurements=(FAST,))
    fabric = suite(certify(case), "fabric")
    assert [(outcome, message) for _, outcome, message in outcomes(fabric)] == [
        ("failure", "wrong sum"),
        ("pass", None),
    ]
    assert [e.text for e in fabric.iter("failure")] == ["wrong sum\nE assert"]


def test_missing_criteria_are_errors_and_unpromised_ones_are_skipped() -> None:
    certificate = certify(promised=["restart"], not_promised={"gang": "no scheduler"})
    assert outcomes(suite(certificate, "restart")) == [
        ("restart", "error", "restart is promised and did not run")
    ]
    assert outcomes(suite(certificate, "gang")) == [
        ("gang", "skipped", "not promised: no scheduler")
    ]


@pytest.mark.parametrize(
    ("cases", "more", "outcome"),
    [
        ([KEPT], {}, "pass"),
        ([KEPT], {"cluster_nodes": 16}, "skipped"),
        ([CaseResult(TEST, "?", "failed", "x")], {}, "failure"),
        ([], {}, "error"),
        ([KEPT], {"cut_short": ("--lf",)}, "error"),
        ([CaseResult(TEST, "?", "error", "x")], {}, "error"),
    ],
)
def test_the_verdict_of_the_run_is_a_separate_case(
    cases: list[CaseResult], more: dict[str, Any], outcome: str
) -> None:
    certificate = certify(*cases, promised=["fabric"], **more)
    message = None if outcome == "pass" else headline(certificate).line
    overall = outcomes(suite(certificate, "certificate"))
    assert overall == [("certificate of rack", outcome, message)]


def test_coverage_is_reported_beside_the_verdict() -> None:
    overall = suite(certify(KEPT, promised=["fabric"], cluster_nodes=4), "certificate")
    covered = "4 of 4 nodes: node[0-3]"
    line = "certified: 4 of 4 nodes until 2026-11-28 02:06 UTC (spec rack, rack launcher)"
    assert overall.findtext("testcase/system-out") == f"{line}; {covered}"
    properties = {p.get("name"): p.get("value") for p in overall.iter("property")}
    assert (properties["covered"], properties["certified"]) == (covered, "4 of 4 nodes")


HOSTILE = "\x1b[31mred\x1b[0m \x00\x0b\x7f\x85 \udc80 \ufffe \U0001ffff ]]> <&\"' é 雪 end"
FIT = r"red \x00\x0b\x7f\x85 \udc80 \ufffe \U0001ffff " + "]]> <&\"' é 雪 end"


def test_any_text_survives() -> None:
    hostile = Measurement(
        HOSTILE, 1, HOSTILE, at_least(2), HOSTILE, Culprit(HOSTILE), HOSTILE, HOSTILE
    )
    certificate = certify(
        CaseResult(f"acceptance/test_fabric.py::{HOSTILE}", HOSTILE, "failed", HOSTILE, HOSTILE),
        CaseResult(TEST, HOSTILE, "passed", measurements=(hostile,)),
        promised=[HOSTILE],
        not_promised={"gang": HOSTILE},
        nodes=(HOSTILE,),
    )
    first, second = outcomes(suite(certificate, "fabric"))
    assert first == (FIT, "failure", f"{FIT}, culprit {FIT}")
    assert second[2] is not None
    assert second[2].endswith(f"culprit {FIT}, measured by {FIT}")
    assert outcomes(suite(certificate, "gang")) == [("gang", "skipped", f"not promised: {FIT}")]


def test_a_huge_message_is_shortened_to_its_end_with_a_note() -> None:
    lines = "\n".join(f"line {i}" for i in range(100_000))
    certificate = certify(CaseResult(TEST, "?", "failed", lines))
    (text,) = [e.text for e in suite(certificate, "fabric").iter("failure")]
    assert text is not None
    assert len(text) < LONGEST + 100
    assert re.match(rf"\[{len(lines) - LONGEST} characters left out\]\n", text)
    assert text.endswith("\nline 99999")


def test_carriage_returns_become_newlines() -> None:
    assert fit("10%\r50%\r\ndone") == "10%\n50%\ndone"


@pytest.mark.parametrize(
    ("text", "line"), [("\n \n  first \nmore", "first"), ("", ""), ("a" * 9, "aaaa…")]
)
def test_the_first_line_is_the_first_that_is_not_empty(text: str, line: str) -> None:
    assert first_line(text, 5) == line


def test_properties_are_one_line_that_reads_back() -> None:
    (name, value), (_, recorded) = measurement_properties([SLOW, RECORDED])
    assert name == "mnode.measurement"
    assert "\n" not in value
    data = json.loads(value)
    assert (data["verdict"], data["value"], data["margin"]) == ("fail", 48, -117)
    assert data["expected"] == {"relation": "at least", "limit": 170, "tolerance": 5}
    assert json.loads(recorded) == {"name": "latency", "value": 3, "unit": "us"}


def test_each_clause_of_the_buyer_is_a_case() -> None:
    page = {"criteria": {"fabric": {}}, "requirements": {"A": ["fabric"], "B": ["mesh"]}}
    spec = SpecFacts("s", "s.yaml", "", page)
    slow = CaseResult(TEST, "?", "passed", measurements=(SLOW,))
    found = suite(certify(slow, promised=["fabric"], spec=spec), "requirements")
    assert outcomes(found) == [
        ("A", "failure", "A fail"),
        ("B", "skipped", "B not promised (mesh not judged)"),
    ]

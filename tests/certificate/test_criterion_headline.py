"""The headline of a criterion: chosen by marks, the same on every face, and led by a failure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from pytest_mnode.certificate import CaseResult, Certificate, summary_lines
from pytest_mnode.certificate.certificate import certificate_json
from pytest_mnode.certificate.junit import junit_text
from pytest_mnode.certificate.page import page_text
from pytest_mnode.certificate.prometheus import prometheus_text
from pytest_mnode.measure import summed_up
from pytest_mnode.measurement import HeadlineMark, Measurement, at_least, at_most, equals
from tests.certificate.conftest import RIGHT, certify
from tests.certificate.test_certificate import case

LINE = HeadlineMark("all-reduce", of=0.025, whole="the line")
FABRIC = Measurement("all_reduce 4 MiB busbw", 0.0239, "GB/s", at_least(0.0217), headline=LINE)
OTHER = replace(FABRIC, name="gather busbw", headline=HeadlineMark("gather", order=1))
LOST = Measurement("steps lost", 0, "", equals(0), headline=HeadlineMark(after="steps lost"))
NEW_STEP = HeadlineMark(after="to the first new step")
BACK = Measurement("time", 10.7, "s", at_most(60), headline=NEW_STEP)
PATHS = Measurement(
    "messages", 12, "", equals(12), headline=HeadlineMark(after="paths", of=12, right=12)
)
WRONG = Measurement(
    "wrong values", 0, "", equals(0), headline=HeadlineMark(after="groups", of=6, right=6)
)
PORTS = Measurement("packets lost, worst fabric port", 0, "", at_most(100))
EFFICIENT = Measurement(
    *("efficiency, 4 nodes", 0.98, "", at_least(0.97)),
    headline=HeadlineMark("efficiency", "on 4 nodes"),
)
TIGHT = Measurement("clock offset", 4.9, "ms", at_most(5.0))


@pytest.mark.parametrize(
    ("measurements", "line", "expected"),
    [
        ([PORTS, FABRIC, OTHER], "all-reduce 23.9 MB/s of 25 (95.6 % of the line)", "≥ 21.7 "),
        ([OTHER, PORTS], "gather 23.9 MB/s", "≥ 21.7 MB/s"),
        (
            [LOST, replace(BACK, value=3.0), LOST, BACK],
            "0 steps lost and 10.7 s to the first new step",
            "= 0, ≤ 60 s",
        ),
        ([replace(BACK, expected=None), PORTS], "10.7 s to the first new step", ""),
        ([PORTS, PATHS], "12 of 12 paths", ""),
        ([WRONG, replace(WRONG, name="others"), PORTS], "12 of 12 groups", ""),
        ([EFFICIENT], "efficiency 0.98 on 4 nodes; least margin 1 %", "≥ 0.97"),
        ([PATHS, TIGHT], "12 of 12 paths; least margin 2 %: 4.9 ms clock offset", ""),
        ([PATHS, Measurement("rate", 10, "", equals(10, 0.5))], "12 of 12 paths", ""),
        ([PATHS, Measurement("rails up", 8, "", at_least(8))], "12 of 12 paths", ""),
        ([FABRIC, replace(PATHS, headline=None), LOST], None, None),
    ],
)
def test_the_marked_measurements_answer(
    measurements: list[Measurement], line: str | None, expected: str | None
) -> None:
    cases = [case("it", "passed", one) for one in measurements]
    [criterion] = certify(*cases).criteria
    if line is None:  # two marks of one order stand together
        assert len(criterion.headline.findings) == 2
    else:
        assert criterion.headline.line == line
        assert criterion.headline.expected.startswith(expected or "")
        assert bool(criterion.headline.expected) == bool(expected)


def test_a_mark_survives_ranks_and_json() -> None:
    [worst] = summed_up({0: [FABRIC], 1: [replace(FABRIC, value=0.022)]})
    written = certificate_json(certify(case("fabric", "passed", worst)))
    [finding] = written["criteria"][0]["headline"]["findings"]
    assert finding["value"] == 0.022
    assert (finding["of"], finding["share"]) == (0.025, pytest.approx(0.88))
    assert finding["margin"] == pytest.approx(0.022 / 0.0217 - 1)
    assert written["criteria"][0]["headline"]["least_margin"]["name"] == FABRIC.name
    read = TypeAdapter(Certificate).validate_python(written)
    assert read.criteria[0].headline.findings[0].of == LINE.of
    assert certificate_json(read) == written


SLOW = replace(FABRIC, name="node2", value=0.01, headline=None)
UNKNOWN = replace(FABRIC, name="rate", value=None, headline=None, note="no counter")


@pytest.mark.parametrize(
    ("measurement", "line"),
    [
        (SLOW, "0.01 GB/s node2"),
        (UNKNOWN, "rate not measured: no counter"),
        (replace(FABRIC, value=0.01), "0.01 GB/s all_reduce 4 MiB busbw"),
    ],
)
def test_what_did_not_pass_leads(measurement: Measurement, line: str) -> None:
    [criterion] = certify(case("fabric", "passed", FABRIC, LOST, measurement)).criteria
    assert criterion.headline.line == line
    [finding] = criterion.headline.findings
    assert (finding.name, finding.value) == (measurement.name, measurement.value)


@pytest.mark.parametrize(
    ("nodes", "measured", "line"),
    [
        (["node0", "node0", "node1"], [PORTS, PORTS, PORTS], "2 of 2 nodes"),
        (["node0", "node1"], [PORTS, TIGHT], "2 of 2 nodes; least margin 2 %: 4.9 ms clock offset"),
        (["", ""], [RIGHT, RIGHT], "2 of 2 tests"),
        (["", ""], [PORTS, TIGHT], "4.9 ms clock offset; least margin 2 %"),
        ([""], [RIGHT], "0 wrong sums"),
    ],
)
def test_without_a_mark_nodes_or_tests_are_counted(
    nodes: list[str], measured: list[Measurement], line: str
) -> None:
    cases = [
        CaseResult("t/test_it.py::test", "?", "passed", measurements=(one,), nodes=(node,) * 1)
        if node
        else case("it", "passed", one)
        for node, one in zip(nodes, measured, strict=True)
    ]
    [criterion] = certify(*cases).criteria
    assert criterion.headline.line == line


def test_every_face_shows_the_same() -> None:
    certificate = certify(case("fabric", "passed", PORTS, FABRIC, TIGHT), promised=["fabric"])
    words, margin = certificate.criteria[0].headline.text, "least margin 2 %: 4.9 ms clock offset"
    line = f"{words}; {margin}"
    assert any(row.startswith(f"fabric     {line}  ") for row in summary_lines(certificate))
    assert f"<td>{words}</td>" in page_text(certificate)
    assert margin in page_text(certificate)
    [said] = ET.fromstring(junit_text(certificate)).findall(
        "testsuite[@name='fabric']/properties/property[@name='measured']"
    )
    assert said.get("value") == line
    text = prometheus_text(certificate)
    labels = 'criterion="fabric",measurement="all_reduce 4 MiB busbw",spec="rack",unit="GB/s"'
    assert f"mnode_criterion_headline{{{labels}}} 0.0239" in text
    assert f"mnode_criterion_headline_of{{{labels}}} 0.025" in text
    assert 'mnode_criterion_least_margin{criterion="fabric",measurement="clock offset"' in text

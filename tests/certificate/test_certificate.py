"""The verdict of a run: precedence, missing results, and no accidental certification."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import TypeAdapter

from pytest_mnode.certificate import (
    CaseResult,
    Certificate,
    CriterionResult,
    criterion_name,
    summary_lines,
)
from pytest_mnode.certificate.certificate import certificate_json
from pytest_mnode.certificate.junit import junit_text
from pytest_mnode.certificate.page import page_text
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.measurement import Curve, Measurement, Point, at_least, at_most, equals
from pytest_mnode.path_rates import State
from tests.certificate.conftest import RIGHT, certify

READER: TypeAdapter[Certificate] = TypeAdapter(Certificate)

FAST = Measurement("busbw", 180, "Mbit/s", at_least(170), "spec", Culprit("node1"))
SLOW = Measurement("busbw", 48, "Mbit/s", at_least(170), "spec", Culprit("node2 fab0", "node2"))
UNKNOWN = Measurement("busbw", None, "Mbit/s", at_least(170), "spec", note="no counter")
RECORDED = Measurement("latency", 3, "us")
NOT_READ = Measurement("clock", None, "MHz", note="unreadable")


def case(name: str, outcome: Any = "passed", *measurements: Measurement, **more: Any) -> CaseResult:
    test = f"acceptance/test_{name}.py::test_it"
    return CaseResult(test, f"Is {name} well?", outcome, measurements=measurements, **more)


@pytest.mark.parametrize(
    ("outcome", "measurements", "verdict"),
    [
        ("passed", [], "pass"),
        ("passed", [RECORDED], "pass"),
        ("passed", [FAST], "pass"),
        ("passed", [FAST, UNKNOWN], "inconclusive"),
        ("passed", [NOT_READ], "inconclusive"),
        ("passed", [NOT_READ, RECORDED], "pass"),
        ("passed", [NOT_READ, FAST], "pass"),
        ("passed", [UNKNOWN, SLOW], "fail"),
        ("failed", [FAST], "fail"),
        ("error", [FAST], "inconclusive"),
        ("error", [SLOW], "fail"),
        ("skipped", [], "inconclusive"),
        ("skipped", [RECORDED, FAST], "inconclusive"),
        ("not promised", [], "not promised"),
        ("not promised", [UNKNOWN], "inconclusive"),
        ("not promised", [SLOW], "fail"),
    ],
)
def test_a_case_passes_only_if_it_passed_and_nothing_is_unmeasured(
    outcome: Any, measurements: list[Measurement], verdict: str
) -> None:
    assert case("fabric", outcome, *measurements).verdict == verdict


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], "did not run"),
        (["passed", "passed"], "pass"),
        (["passed", "skipped"], "inconclusive"),
        (["skipped", "passed", "failed"], "fail"),
        (["not promised", "passed"], "pass"),
        (["not promised", "skipped"], "inconclusive"),
        (["not promised", "not promised"], "did not run"),
    ],
)
def test_a_criterion_has_the_verdict_of_its_worst_case(outcomes: list[Any], verdict: str) -> None:
    cases = tuple(case("mesh", one, *[RIGHT] * (one == "passed")) for one in outcomes)
    assert CriterionResult("mesh", promised=True, cases=cases).verdict == verdict


SILENT = ("inconclusive", "not promised")
ASKED = replace(case("mesh"), promises=("mesh",))
"""A test that only asserts, of a question that the spec promises."""


@pytest.mark.parametrize(
    ("cases", "promised", "unpromised"),
    [
        ([case("mesh", "passed", RIGHT)], "pass", "pass"),
        ([case("mesh", "passed", RIGHT), case("mesh")], "pass", "pass"),
        ([case("mesh", "passed", RIGHT, RECORDED)], "pass", "pass"),
        ([case("mesh")], "inconclusive", "not promised"),
        ([ASKED], "pass", "pass"),
        ([ASKED, case("mesh")], "pass", "pass"),
        ([ASKED, replace(ASKED, outcome="failed")], "fail", "fail"),
        ([replace(ASKED, measurements=(RECORDED,))], "inconclusive", "not promised"),
        ([replace(ASKED, measurements=(NOT_READ,))], "inconclusive", "inconclusive"),
        ([case("mesh", "passed", RECORDED)], "inconclusive", "not promised"),
        ([case("mesh", "passed", RECORDED, NOT_READ), case("mesh")], *SILENT),
        ([case("mesh", "passed", NOT_READ)], "inconclusive", "inconclusive"),
        ([case("mesh", "passed", RIGHT), case("mesh", "passed", NOT_READ)], *["inconclusive"] * 2),
        ([case("mesh"), case("mesh", "not promised")], *SILENT),
        ([case("mesh", "failed")], "fail", "fail"),
    ],
)
def test_a_criterion_passes_by_a_judged_value_or_an_asserted_promise(
    cases: list[CaseResult], promised: str, unpromised: str
) -> None:
    for is_promised, verdict in ((True, promised), (False, unpromised)):
        found = CriterionResult("mesh", is_promised, None, tuple(cases))
        assert found.verdict == verdict
        read = READER.validate_python(certificate_json(certify(*cases, promised=["mesh"])))
        assert read.criteria[0].verdict == promised


@pytest.mark.parametrize("recorded", [(), (RECORDED,)])
def test_a_promise_that_nothing_was_judged_by_certifies_nothing(recorded: Any) -> None:
    fast = case("fabric", "passed", FAST)
    silent = case("mesh", "passed", *recorded)
    certificate = certify(silent, fast, promised=["mesh", "fabric"])
    assert certificate.verdict == "inconclusive"
    assert certificate.reasons == ("mesh inconclusive (its tests judged no value)",)
    assert {node.state for node in certificate.coverage.nodes} == {State.NOT_TESTED}
    unpromised = certify(silent, fast, promised=["fabric"])
    assert unpromised.verdict == "certified", "whoever promises nothing of it may just assert"
    assert unpromised.coverage.nodes[0].evidence == "passed: fabric"
    for one, errors in ((certificate, "1"), (unpromised, "0")):
        [row] = [line for line in summary_lines(one) if line.startswith("mesh ")]
        assert row.split(maxsplit=1)[1].split("  ")[0] == "its tests judged no value"
        [suite] = ET.fromstring(junit_text(one)).findall("testsuite[@name='mesh']")
        assert suite.get("errors") == errors
        assert "its tests judged no value" in page_text(one)


def test_a_test_that_recorded_only_what_could_not_be_measured_is_inconclusive() -> None:
    certificate = certify(case("mesh", "passed", NOT_READ), case("mesh", "passed", FAST))
    [mesh] = certificate.criteria
    assert mesh.reason == "mesh inconclusive (clock not measured: unreadable)"
    [suite] = ET.fromstring(junit_text(certificate)).findall("testsuite[@name='mesh']")
    assert [e.get("message") for e in suite.iter("error")] == ["clock not measured: unreadable"]


GOOD, BAD = case("mesh", "passed", RIGHT), case("fabric", "passed", SLOW)
ODD = case("fabric", "error", message="x")


SLOW_FABRIC, NO_FABRIC = "fabric failed (node2 fab0)", "fabric inconclusive (x)"
NO_MESH, NOTHING = "mesh did not run", "the spec promises nothing"


@pytest.mark.parametrize(
    ("cases", "promised", "cut_short", "verdict", "reasons"),
    [
        ([GOOD], "mesh", (), "certified", []),
        ([GOOD, BAD], "mesh fabric", (), "not certified", [SLOW_FABRIC]),
        ([GOOD], "mesh restart", (), "incomplete", ["restart did not run"]),
        ([GOOD, ODD], "mesh fabric", (), "inconclusive", [NO_FABRIC]),
        ([GOOD, BAD], "mesh", (), "not certified", [SLOW_FABRIC]),
        ([GOOD, ODD], "mesh", (), "inconclusive", [NO_FABRIC]),
        ([GOOD], "mesh", ("-k mesh",), "incomplete", ["cut short by -k mesh"]),
        ([GOOD], "", (), "incomplete", [NOTHING]),
        ([], "", (), "incomplete", [NOTHING]),
        ([ODD], "mesh fabric", ("-x",), "incomplete", [NO_MESH, "cut short by -x", NO_FABRIC]),
        (
            *([BAD, case("clock", "skipped")], "mesh fabric clock", (), "not certified"),
            [SLOW_FABRIC, NO_MESH, "clock inconclusive (skipped)"],
        ),
    ],
)
def test_only_a_whole_run_in_which_every_promise_was_kept_certifies(
    cases: list[CaseResult],
    promised: str,
    cut_short: tuple[str, ...],
    verdict: str,
    reasons: list[str],
) -> None:
    certificate = certify(*cases, promised=promised.split(), cut_short=cut_short)
    assert certificate.verdict == verdict
    assert list(certificate.reasons) == reasons
    assert (certificate.expiry is not None) == (verdict == "certified")


def test_unpromised_criteria_neither_pass_nor_fail() -> None:
    certificate = certify(GOOD, BAD, promised=["mesh"], not_promised={"fabric": "no bound yet"})
    assert [(c.name, c.verdict) for c in certificate.criteria] == [
        ("mesh", "pass"),
        ("fabric", "not promised"),
    ]
    assert certificate.verdict == "certified"
    both = certify(BAD, promised=["fabric"], not_promised={"fabric": "no bound yet"})
    assert both.verdict == "not certified", "a promise counts"


def test_order_of_criteria_promised_others_not_promised() -> None:
    cases = [case("other"), case("gang"), case("mesh")]
    certificate = certify(*cases, promised=["fabric", "mesh"], not_promised={"gang": "one node"})
    assert [c.name for c in certificate.criteria] == ["fabric", "mesh", "other", "gang"]


@pytest.mark.parametrize(
    ("measurements", "worst"),
    [
        ([FAST, SLOW, UNKNOWN], SLOW),
        ([FAST, UNKNOWN, RECORDED], UNKNOWN),
        ([RECORDED], None),
        ([FAST, Measurement("tight", 171, "Mbit/s", at_least(170))], "tight"),
        ([Measurement("exact", 4, "", equals(4)), FAST], FAST),
        ([Measurement("none", 0, "", at_most(0)), FAST], FAST),
        ([SLOW, Measurement("wrong sums", 1, "", at_most(0))], "wrong sums"),
    ],
)
def test_the_worst_measurement_is_shown(
    measurements: list[Measurement], worst: Measurement | str | None
) -> None:
    shown = case("fabric", "passed", *measurements).worst
    assert (shown.name if shown and isinstance(worst, str) else shown) == worst


def test_a_passed_measurement_does_not_hide_a_failed_test() -> None:
    failed = case("fabric", "failed", FAST, message="wrong sum")
    assert failed.worst is None
    assert failed.summary == "wrong sum"
    assert case("fabric", "passed", UNKNOWN).summary.endswith(": no counter")


def test_culprits_are_named_once_and_only_for_the_deciding_verdict() -> None:
    other = replace(SLOW, culprit=Culprit("node3 fab0", "node3"))
    cases = (
        case("fabric", "passed", FAST, SLOW),
        case("fabric", "failed", SLOW, other, culprit="switch"),
        case("fabric", "error", culprit="node0"),
    )
    found = CriterionResult("fabric", promised=True, cases=cases).culprits
    assert found == ("node2 fab0", "node3 fab0", "switch")


def test_suspects_beside_a_sure_culprit_are_left_out_if_it_explains_them() -> None:
    into = Culprit.path("0→2", ("node0", "node2"))
    named = (
        into,
        Culprit("node2 fab0 rx", "node2"),
        Culprit.path("0→1, 1→2", ("node0", "node1"), ("node1", "node2")),
        Culprit("switch"),
        Culprit("NCCL_ALGO", parts=Parts(settings=("NCCL_ALGO",))),
    )
    cases = [case("fabric", "failed", replace(SLOW, culprit=one)) for one in named]
    assert CriterionResult("fabric", promised=True, cases=tuple(cases)).culprits == named[1:]
    assert CriterionResult("fabric", promised=True, cases=(cases[0],)).culprits == (into,)


def test_a_long_list_of_culprits_is_not_cut() -> None:
    slow = [
        Measurement("bw", 1, "", at_least(2), culprit=Culprit(f"node{i} fab0", f"node{i}"))
        for i in range(30)
    ]
    (reason,) = certify(case("fabric", "passed", *slow), promised=["fabric"]).reasons
    assert reason.endswith("node28 fab0, node29 fab0)")


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("acceptance/test_fabric.py::test_x[a::b/c.d]", "fabric"),
        ("acceptance/test_restart_node.py", "restart_node"),
        ("mesh.py::TestIt::test_x", "mesh"),
    ],
)
def test_a_criterion_is_named_after_its_file(test: str, name: str) -> None:
    assert criterion_name(test) == name


def test_a_certificate_expires() -> None:
    certificate = certify(GOOD, promised=["mesh"], validity_s=12 * 3600.0)
    assert certificate.expiry == datetime(2026, 11, 21, 14, 6, tzinfo=UTC)


def test_a_pass_that_outlasts_the_calendar_ends_with_it() -> None:
    """As with `valid_for: 9999999 d`."""
    certificate = certify(GOOD, promised=["mesh"], validity_s=9_999_999 * 86400.0)
    assert certificate.expiry == datetime.max.replace(tzinfo=UTC)
    assert READER.validate_python(certificate_json(certificate)) == certificate


def test_times_are_written_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    data = certificate_json(certify(start=datetime(2026, 11, 21, 4, tzinfo=east)))
    assert data["run"]["start"] == "2026-11-21T02:00:00+00:00"
    assert certify(end=datetime(2026, 11, 21, 4, tzinfo=east)).until.hour == 2
    with pytest.raises(ValueError, match=r"(?s)end.*should have timezone info"):
        certify(end=datetime(2026, 11, 21))


def test_a_certificate_survives_json() -> None:
    odd = case("odd", "error", UNKNOWN, RECORDED, message="é\x00", culprit="node1", duration_s=0.5)
    point = Point(1 << 20, 5, 63.5, 70.0, 60.25, 70.0, 0.016, 0.024, 1)
    odd = replace(odd, charts=(Curve("all_reduce", "ring", "gloo", 4, (point, point)),))
    certificate = certify(
        GOOD,
        BAD,
        odd,
        promised=["mesh", "restart"],
        not_promised={"gang": "no scheduler"},
        doubts=("busbw above the wire",),
        cut_short=("-x",),
        emulated="links are shaped",
        start=datetime(2026, 11, 21, 1, 2, 3, 456, tzinfo=UTC),
    )
    text = json.dumps(certificate_json(certificate), allow_nan=False)
    assert READER.validate_json(text) == certificate


def test_an_edited_verdict_is_judged_anew() -> None:
    data = certificate_json(certify(BAD, promised=["fabric"])) | {"verdict": "certified"}
    data["criteria"][0]["verdict"] = data["criteria"][0]["cases"][0]["verdict"] = "pass"
    assert READER.validate_python(data).verdict == "not certified"


def test_a_value_that_is_not_finite_never_certifies_after_json() -> None:
    nan = case("fabric", "passed", Measurement("busbw", math.nan, "", at_least(1)))
    data = certificate_json(certify(nan, promised=["fabric"]))
    assert READER.validate_python(data).verdict == "inconclusive"


@pytest.mark.parametrize("version", [2, 3, None, "4"])
def test_another_version_is_refused(version: Any) -> None:
    data = certificate_json(certify()) | {"schema_version": version}
    with pytest.raises(ValueError, match=r"(?s)schema_version.*should be 5"):
        READER.validate_python(data)

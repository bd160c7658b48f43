"""A rehearsal says so on every face, and is neither certified, signed nor kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.certificate import (
    CaseResult,
    Certificate,
    CertificateVerdict,
    CriterionVerdict,
    build_certificate,
    summary_lines,
    write_report,
)
from pytest_mnode.certificate.files import read_certificate
from pytest_mnode.certificate.headline import headline
from pytest_mnode.certificate.junit import junit_text
from pytest_mnode.certificate.kept import earlier_runs, keep
from pytest_mnode.certificate.page import page_text
from pytest_mnode.certificate.prometheus import prometheus_text
from pytest_mnode.commands import main
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.path_rates import State
from tests.certificate.conftest import FACTS, RIGHT, certify

WHAT = "a virtual cluster (seed 7, no fault)"
SLOW = Measurement("busbw", 48, "Mbit/s", at_least(170), "spec", Culprit("node2", "node2"))


def rehearsed(measurement: Measurement) -> Certificate:
    outcome = "passed" if measurement.passed else "failed"
    case = CaseResult("t/test_fabric.py::test_it", "?", outcome, measurements=(measurement,))  # type: ignore[arg-type]
    made = certify(case, rehearsal=WHAT)
    return build_certificate(
        run=made.run,
        cases=[case],
        promised=["fabric", "restart"],
        not_promised={},
        not_rehearsed={"restart": "no job is killed"},
    )


@pytest.mark.parametrize(
    ("measurement", "verdict", "word", "states"),
    [
        (RIGHT, CertificateVerdict.REHEARSAL, "rehearsal", {State.PASSED}),
        (
            SLOW,
            CertificateVerdict.NOT_CERTIFIED,
            "rehearsal, NOT certified",
            {State.PASSED, State.FAILED},
        ),
    ],
)
def test_no_rehearsal_certifies(
    measurement: Measurement,
    verdict: CertificateVerdict,
    word: str,
    states: set[State],
    tmp_path: Path,
) -> None:
    found = rehearsed(measurement)
    write_report(tmp_path, found)
    for one in (found, read_certificate(tmp_path)):
        head = headline(one)
        assert (one.verdict, one.expiry, head.word) == (verdict, None, word)
        assert head.exit_status == 1
        assert {node.state for node in one.coverage.nodes} == states
        assert [c.verdict for c in one.criteria][1] is CriterionVerdict.NOT_REHEARSED


@pytest.mark.parametrize("face", ["terminal", "page", "junit", "metrics"])
@pytest.mark.parametrize("measurement", [RIGHT, SLOW])
def test_every_face_says_so(face: str, measurement: Measurement) -> None:
    found = rehearsed(measurement)
    text = {
        "terminal": lambda: "\n".join(summary_lines(found)),
        "page": lambda: page_text(found),
        "junit": lambda: junit_text(found),
        "metrics": lambda: prometheus_text(found),
    }[face]()
    assert "rehearsal" in text
    assert "not rehearsed" in text
    if face == "metrics":
        samples = [line for line in text.splitlines() if not line.startswith("#")]
        assert all('spec="rehearsal: rack"' in line for line in samples)
    else:
        assert WHAT in text


@pytest.mark.parametrize("command", [["nodes", "--passed"], ["sign", "--key=id"]])
def test_its_nodes_are_not_handed_over(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(tmp_path, rehearsed(RIGHT))
    assert main([command[0], str(tmp_path), *command[1:]]) == 2
    assert "accepted: a certificate of nodes" in capsys.readouterr().err


def test_later_runs_do_not_believe_it(tmp_path: Path) -> None:
    keep(tmp_path, rehearsed(RIGHT))
    found = earlier_runs(tmp_path, FACTS.spec)
    assert not found.certificates
    assert "it is a rehearsal" in found.left_out[0]

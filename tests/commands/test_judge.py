"""`judge`: prints the verdict of a certificate by another spec, and writes it on request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.certificate import CaseResult, write_report
from pytest_mnode.certificate.gathered import Gathered
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.commands import main
from pytest_mnode.criteria.preflight.answers import survey_to_json
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence import file
from pytest_mnode.evidence.file import EvidenceFile
from pytest_mnode.evidence.reading import CheckRows
from pytest_mnode.evidence.row import row
from pytest_mnode.measurement import Measurement, at_most
from pytest_mnode.spec import default_spec_path, load_spec
from tests.certificate.conftest import FACTS, certify
from tests.criteria.preflight.made import healthy, with_facts, with_node

SKEW = Measurement(
    "skew",
    0.02,
    "s",
    at_most(0.05).of("preflight.clocks.skew", 0.05),
    "preflight.clocks.skew 50 ms",
    Culprit("node1"),
)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = default_spec_path()
    case = CaseResult(
        "t/test_preflight.py::test_clocks",
        "?",
        "passed",
        measurements=(SKEW,),
        promises=("preflight.clocks",),
    )
    spec = facts_of(load_spec(path), path)
    found = certify(case, promised=["preflight"], spec=spec, cluster_nodes=4)
    write_report(tmp_path / "report", found)
    return tmp_path / "report"


def other(directory: Path, skew: str) -> Path:
    page = yaml.safe_load(default_spec_path().read_text())
    page["criteria"] = {"preflight": {**page["criteria"]["preflight"], "clocks": {"skew": skew}}}
    (directory / "other.yaml").write_text(yaml.safe_dump(page))
    return directory / "other.yaml"


def test_the_verdict_follows_the_other_spec(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = f"--at={FACTS.end}"
    assert main(["judge", str(report), f"--spec={other(tmp_path, '60 ms')}", at]) == 0
    assert capsys.readouterr().out.startswith("certified: 4 of 4 nodes until ")
    late = "--at=2027-12-01"
    assert main(["judge", str(report), f"--spec={other(tmp_path, '60 ms')}", late]) == 1
    assert capsys.readouterr().out.startswith("expired 2026-11-28: was certified: 4 of 4 nodes ")
    spec, written = other(tmp_path, "10 ms"), tmp_path / "again"
    assert main(["judge", str(report), f"--spec={spec}", f"--report={written}", at]) == 1
    printed = capsys.readouterr().out
    # The certificate names no culprit for a passed value.
    assert printed.startswith("NOT certified: preflight failed (skew 0.02 s); passed: 0 of 4 nodes")
    again = json.loads((written / "certificate.json").read_text())
    assert (again["verdict"], again["run"]["spec"]["path"]) == ("not certified", str(spec))


def test_a_report_that_cannot_be_written_is_one_line(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beneath_a_file = report / "certificate.json" / "again"
    spec = f"--spec={default_spec_path()}"
    assert main(["judge", str(report), spec, f"--report={beneath_a_file}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"--report={beneath_a_file}: Not a directory")


def test_bad_input_is_one_line(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = default_spec_path().read_text().replace("name: rack", "name: [rack]")
    for text, message in (("[", "other.yaml"), (broken, "other.yaml: name: ")):
        (tmp_path / "other.yaml").write_text(text)
        assert main(["judge", str(report), f"--spec={tmp_path / 'other.yaml'}"]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert message in line
    data = json.loads((report / "certificate.json").read_text())
    data["run"]["spec"]["page"] = {}
    (report / "certificate.json").write_text(json.dumps(data))
    assert main(["judge", str(report), f"--spec={default_spec_path()}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("the certificate does not have the spec that it was judged by")


def test_rows_of_the_same_run_beside_the_certificate_are_judged(tmp_path: Path) -> None:
    page = (
        default_spec_path().read_text().replace("preflight:", "preflight:\n    huge_pages: same", 1)
    )
    (tmp_path / "same.yaml").write_text(page)
    (tmp_path / "never.yaml").write_text(page.replace("huge_pages: same", "huge_pages: never"))
    promises = ("preflight", "preflight.huge_pages")
    test = "t/test_preflight.py::test_huge_pages_are_alike[node0]"
    case = CaseResult(test, "?", "passed", nodes=("node0",), promises=promises)
    spec = facts_of(load_spec(tmp_path / "same.yaml"), tmp_path / "same.yaml")
    report = tmp_path / "report"
    certificate = certify(case, promised=["preflight"], spec=spec)
    write_report(report, certificate)
    again = tmp_path / "again"

    def judged() -> str:
        args = [f"--spec={tmp_path / 'never.yaml'}", f"--report={again}"]
        assert main(["judge", str(report), *args]) == 1
        criteria = json.loads((again / "certificate.json").read_text())["criteria"]
        return next(str(one["verdict"]) for one in criteria if one["name"] == "preflight")

    assert judged() == "inconclusive"
    for start, end, verdict in (
        (FACTS.start, (file.END,), "fail"),
        (FACTS.end, (file.END,), "inconclusive"),
        (FACTS.start, (), "inconclusive"),
    ):
        evidence = EvidenceFile(report)
        run = Gathered(replace(certificate.run, start=start), (), {})
        evidence.append(file.RUN, run.run_to_json())
        rows = (row("mode of transparent huge pages", "always"),)
        read = (CheckRows("test_huge_pages_are_alike", rows),)
        survey = healthy(len(FACTS.nodes))
        for index, name in enumerate(FACTS.nodes):
            survey = with_facts(with_node(survey, index, name=name), index, read=read)
        evidence.append(file.ROWS, *survey_to_json(survey))
        for kind in end:
            evidence.append(kind, run.run_to_json())
        evidence.close()
        assert judged() == verdict


@pytest.mark.parametrize("wrong", [{}, {"record": []}, {"test": 1, "record": {"facts": None}}])
def test_evidence_with_odd_values_is_one_line(
    report: Path, wrong: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = EvidenceFile(report)
    evidence.append(file.TEST, wrong)
    evidence.close()
    assert main(["judge", str(report), f"--spec={default_spec_path()}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("; accepted: the evidence of a run")

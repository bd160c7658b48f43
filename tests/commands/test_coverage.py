"""`python -m pytest_mnode coverage`: which clauses of a list are answered, and which are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pytest_mnode.certificate import CaseResult, SpecFacts, write_report
from pytest_mnode.commands import main
from pytest_mnode.measurement import Measurement, equals
from tests.certificate.conftest import RIGHT, certify

WRONG = Measurement("wrong sums", 1, "", equals(0))
LIST = {
    "name": "the contract",
    "clauses": {
        "BM-01": {"text": "all-reduce at line rate", "by": ["fabric.all_reduce_busbw"]},
        "BM-02": {"text": "sums are right", "by": ["mesh"]},
        "OPS-1": {"text": "support", "outside": "a contract"},
    },
}

PAGE = {
    "criteria": {
        "mesh": {},
        "fabric": {"all_reduce_busbw": {}},
        "preflight": {"versions": {"driver": ">=550", "nccl": None}},
    }
}


def table(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, list[list[str]]]:
    """Exit status, and the rows of clauses as words: (clause, state, …)."""
    status = main(["coverage", *map(str, arguments)])
    lines = capsys.readouterr().out.splitlines()[1:]
    return status, [line.split() for line in lines]


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.safe_dump(LIST))
    return path


def reported(directory: Path, *cases: CaseResult, requirements: dict[str, list[str]]) -> Path:
    spec = SpecFacts("rack", "rack.yaml", "sha256:1f", PAGE | {"requirements": requirements})
    write_report(directory, certify(*cases, promised=["mesh", "fabric"], spec=spec))
    return directory


def case(test: str, *measured: Measurement, asked: str) -> CaseResult:
    criterion = asked.partition(".")[0]
    return CaseResult(
        f"acceptance/test_{criterion}.py::{test}",
        "?",
        "passed",
        measurements=measured,
        promises=(asked,),
    )


FAST = case("test_rate[all_reduce]", RIGHT, asked="fabric.all_reduce_busbw")
MESH = case("test_sum", RIGHT, asked="mesh")


def test_a_certificate_answers_by_its_tests(
    contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = case("test_sum", WRONG, asked="mesh")
    report = reported(tmp_path / "report", FAST, broken, requirements={"EXTRA": ["mesh"]})
    status, rows = table(capsys, report, "--against", contract)
    assert status == 1
    assert [row[:3] for row in rows[:2]] == [
        ["BM-01", "pass", "test_fabric.py::test_rate"],
        ["BM-02", "fail", "test_mesh.py::test_sum"],
    ]
    assert rows[2][:4] == ["OPS-1", "outside", "a", "contract"]
    assert rows[3][0] == "EXTRA:"
    assert " ".join(rows[4]) == "answered: 1; not answered: 1; no test of nodes can answer: 1"


def test_a_clause_of_two_promises_needs_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "list.yaml"
    listed.write_text("clauses: {A: {by: [mesh, fabric.all_reduce_busbw]}, B: {by: [mesh]}}")
    report = reported(tmp_path / "report", MESH, requirements={})
    status, rows = table(capsys, report, "--against", listed)
    assert (status, rows[0][:3]) == (1, ["A", "not", "promised"])
    assert rows[1][:2] == ["B", "pass"]


def test_a_test_answers_only_for_what_the_spec_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "list.yaml"
    keys = ("driver", "nccl")
    listed.write_text(
        f"clauses: {{{', '.join(f'{k}: {{by: [preflight.versions.{k}]}}' for k in keys)}}}"
    )
    versions = case("test_versions[node0]", RIGHT, asked="preflight.versions")
    report = reported(tmp_path / "report", versions, requirements={})
    rows = table(capsys, report, "--against", listed)[1]
    assert [row[:2] for row in rows[:2]] == [["driver", "pass"], ["nccl", "not"]]


def test_clauses_that_the_spec_names_itself_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "list.yaml"
    listed.write_text("clauses: [BM-02, OPS-2]")
    report = reported(tmp_path / "report", MESH, FAST, requirements={"BM-02": ["mesh"]})
    status, rows = table(capsys, report, "--against", listed)
    assert (status, [row[:2] for row in rows[:2]]) == (1, [["BM-02", "pass"], ["OPS-2", "no"]])


def test_a_spec_says_what_it_promises(
    contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(capsys, "--against", contract, "--spec", "profile:rack")[0] == 0
    spec = tmp_path / "spec.yaml"
    spec.write_text("extends: rack\ncriteria: {fabric: {all_reduce_busbw: null}}\n")
    status, rows = table(capsys, "--against", contract, "--spec", spec)
    assert (status, rows[0][:3]) == (1, ["BM-01", "not", "promised"])


@pytest.mark.parametrize("name", ["nvidia", "clustermax"])
def test_ready_lists_name_what_the_suite_can_promise(name: str) -> None:
    argv = [sys.executable, "-m", "pytest_mnode", "coverage", "--against", name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    states = {line.split()[1] for line in done.stdout.splitlines()[1:-1]}
    assert {"can", "outside"} <= states, done.stderr


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("clauses: {A: {by: [fabrik]}}", "clauses.A.by: fabrik: no promise; did you mean fabric?"),
        ("clauses: {A: {from: x}}", "clauses.A.from: unknown key"),
        ("name: x", "clauses: missing"),
        ("- A", "accepted: a mapping"),
    ],
)
def test_a_faulty_list_is_one_line(
    page: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(page)
    assert main(["coverage", "--against", str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_an_unknown_list_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--against", "nvidea"]) == 2
    assert "did you mean nvidia?" in capsys.readouterr().err


def test_two_sources_are_refused(contract: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["coverage", "x", "--against", str(contract), "--spec", "profile:rack"]
    assert main(arguments) == 2
    assert "give one of them" in capsys.readouterr().err

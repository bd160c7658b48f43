"""`python -m pytest_mnode nodes`: host lists from a certificate, and one line for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult, Certificate, write_report
from pytest_mnode.commands import main
from tests.certificate.conftest import RIGHT, certify

NOW = datetime.now(UTC).replace(microsecond=0)
TEST = "acceptance/test_mesh.py::test_it"
PASSED = CaseResult(TEST, "?", "passed", measurements=(RIGHT,))


def certificate(*cases: CaseResult, end: datetime = NOW, **facts: Any) -> Certificate:
    start = end - timedelta(minutes=6)
    return certify(*cases, promised=["mesh"], start=start, end=end, **facts)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Of 20 nodes two failed, one is suspect and one has not been tested."""
    names = tuple(f"node{i:02d}" for i in range(19))
    cases = [
        CaseResult(TEST, "?", "failed", culprit="node03"),
        CaseResult(TEST, "?", "failed", culprit="node17 fab0 tx", culprit_nodes=("node17",)),
        CaseResult(TEST, "?", "error", culprit="node05"),
    ]
    write_report(
        tmp_path, certificate(*cases, nodes=names, not_covered=("login",), cluster_nodes=21)
    )
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--failed"], "node[03,17]\n"),
        (["--suspect"], "node05\n"),
        (["--untested"], "login\n"),
        (["--passed"], "node[00-02,04,06-16,18]\n"),
        (["--failed", "--suspect"], "node[03,05,17]\n"),
        (["--failed", "--format=lines"], "node03\nnode17\n"),
        ([], "node[00-18],login\n"),
    ],
)
def test_nodes_are_a_host_list(
    report: Path, arguments: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nodes", str(report / "certificate.json"), *arguments]) == 0
    assert capsys.readouterr().out == printed


def test_the_nodes_tested_longest_ago_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster: dict[str, Any] = {"not_covered": ("d",), "cluster_nodes": 4}
    for day, name in enumerate(("b", "c", "a")):
        end = NOW + timedelta(days=day)
        found = certificate(PASSED, nodes=(name,), end=end, **cluster)
        cluster["earlier"] = (found.coverage,)
    write_report(tmp_path, found)
    for arguments, names in ((["--oldest=2"], ["d", "b"]), (["--passed", "--oldest=9"], [*"bca"])):
        assert main(["nodes", str(tmp_path), "--format=lines", *arguments]) == 0
        assert capsys.readouterr().out.split() == names
    with pytest.raises(SystemExit):
        main(["nodes", str(tmp_path), "--oldest=0"])
    assert "0: accepted: a whole number of 1 or more" in capsys.readouterr().err


def test_json_has_date_and_evidence(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", str(report), "--failed", "--format=json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["name"], first["state"], first["date"]) == (
        *("node03", "failed"),
        NOW.isoformat(),
    )
    assert second["evidence"] == "mesh: failed"


def test_a_pass_expires_without_a_new_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(tmp_path, certificate(PASSED, end=NOW - timedelta(days=8)))
    for state, printed in (("--passed", ""), ("--untested", "node[0-3]\n")):
        assert main(["nodes", str(tmp_path), state]) == 0
        captured = capsys.readouterr()
        assert captured.out == printed
        assert captured.err.startswith("expired "), "the headline does not disturb the list"
    then = f"--at={NOW - timedelta(days=2)}"
    assert main(["nodes", str(tmp_path), "--passed", then]) == 0
    captured = capsys.readouterr()
    assert captured.out == "node[0-3]\n"
    assert captured.err.startswith("certified: 4 nodes")


def test_an_empty_list_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report(tmp_path, certificate(PASSED))
    for how in ("slurm", "lines"):
        assert main(["nodes", str(tmp_path), "--failed", f"--format={how}"]) == 0
        assert capsys.readouterr().out == ""


def test_the_module_is_a_program() -> None:
    argv = [sys.executable, "-m", "pytest_mnode"]
    done = subprocess.run([*argv, "--help"], capture_output=True, text=True, check=True)
    assert "nodes" in done.stdout
    done = subprocess.run([*argv, "node"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "invalid choice: 'node'" in done.stderr

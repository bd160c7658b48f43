"""`python -m pytest_mnode page`: the same page as the run's, from certificate.json alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_mnode.certificate import CaseResult, write_report
from pytest_mnode.charts import Lines, Series
from pytest_mnode.commands import main
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least
from tests.certificate.conftest import FACTS, RIGHT, certify


@pytest.fixture
def report(tmp_path: Path) -> Path:
    measured = (Measurement("busbw", 1, "GB/s", at_least(2), "spec", Culprit("node2")),)
    lines = Lines("Scaling", "nodes", "efficiency", (Series("weak", ((1, 1.0), (2, 0.9))),))
    case = CaseResult("test_mesh.py::test", "?", "failed", "slow", None, measured, charts=(lines,))
    write_report(tmp_path, certify(case, promised=["mesh"]))
    return tmp_path


@pytest.mark.parametrize("named", [lambda d: d, lambda d: d / "certificate.json"])
def test_the_page_is_the_one_of_the_run(
    report: Path, named: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    page = report / "certificate.html"
    before = page.read_text()
    assert "<svg" in before
    page.unlink()
    assert main(["page", str(named(report)), f"--at={FACTS.end}"]) == 0
    assert capsys.readouterr().out == f"written: {page}\n"
    assert page.read_text() == before


def test_the_page_is_written_to_the_requested_path(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = report / "page.html"
    assert main(["page", str(report), f"--output={elsewhere}", f"--at={FACTS.end}"]) == 0
    assert elsewhere.read_text() == (report / "certificate.html").read_text()
    assert main(["page", str(report), f"--output={report}/no/such.html"]) == 2
    assert capsys.readouterr().err == (
        f"python -m pytest_mnode page: {report}/no/such.html: No such file or directory; "
        "give --output=FILE\n"
    )


@pytest.mark.parametrize(
    ("cluster_nodes", "at", "word", "tone"),
    [
        (4, "2026-11-22", "certified", "good"),
        (64, "2026-11-22", "partly certified", "unsure"),
        (4, "2027-12-28", "expired 2026-11-28", "unsure"),
    ],
)
def test_only_what_is_certified_now_is_green(
    tmp_path: Path, cluster_nodes: int, at: str, word: str, tone: str
) -> None:
    case = CaseResult("test_mesh.py::test", "?", "passed", measurements=(RIGHT,))
    write_report(tmp_path, certify(case, promised=["mesh"], cluster_nodes=cluster_nodes))
    assert main(["page", str(tmp_path), f"--at={at}"]) == 0
    page = (tmp_path / "certificate.html").read_text()
    assert f'<p class="verdict">{word}</p>' in page
    assert f'<header class="box {tone}">' in page
    assert f"<title>{word}: rack, " in page

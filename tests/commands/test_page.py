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
from tests.certificate.conftest import certify


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
    assert main(["page", str(named(report))]) == 0
    assert capsys.readouterr().out == f"written: {page}\n"
    assert page.read_text() == before


def test_the_page_is_written_to_the_requested_path(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = report / "page.html"
    assert main(["page", str(report), f"--output={elsewhere}"]) == 0
    assert elsewhere.read_text() == (report / "certificate.html").read_text()
    assert main(["page", str(report), f"--output={report}/no/such.html"]) == 2
    assert capsys.readouterr().err == (
        f"python -m pytest_mnode page: {report}/no/such.html: No such file or directory; "
        "give --output=FILE\n"
    )

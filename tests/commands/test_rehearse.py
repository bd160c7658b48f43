"""`rehearse`: a table and a report that say rehearsal, and an exit status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_mnode.commands import main

SPEC = Path(__file__).parents[2] / "fixtures" / "clusters" / "h100-ib.yaml"


@pytest.mark.parametrize(
    ("faults", "status", "first"),
    [
        ([], 0, "rehearsal: "),
        (["--fault=driver:node1"], 1, "rehearsal, NOT certified: "),
    ],
)
def test_it_prints_what_a_night_would_find(
    faults: list[str],
    status: int,
    first: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = f"--report={tmp_path}"
    assert main(["rehearse", f"--spec={SPEC}", "--nodes=3", report, *faults]) == status
    assert capsys.readouterr().out.startswith(first)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"certificate.json", "certificate.xml", "certificate.html"}


def test_it_lists_the_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", "--faults"]) == 0
    assert re.search(r"^slow_nic:NODE:NIC\[=0\.\d+\] ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("wrong", ["--nodes=0", "--seed=-1", "--fault=none"])
def test_bad_input_is_one_line(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", f"--spec={SPEC}", "--nodes=2", wrong]) == 2
    assert "accepted" in capsys.readouterr().err

"""Certificates of an older schema are read: an upgrade orphans no history."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.files import json_text, parse_certificate, read_certificate
from pytest_mnode.certificate.kept import earlier_runs, with_history
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.commands import main
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.spec import load_spec
from tests.certificate.conftest import certify
from tests.inner import need_program

VERSION4 = Path(__file__).parents[2] / "fixtures/certificates/version4"
[KEPT] = VERSION4.glob("*Z-*.json")
"""A certificate that version 4 kept: mesh on three nodes of the rack."""
SPEC = VERSION4 / "spec.yaml"


def test_a_certificate_of_version_4_is_read_and_written_as_5() -> None:
    read = read_certificate(KEPT)
    assert (read.verdict, read.count, read.read_version) == ("certified", "3 of 3 nodes", 4)
    written = json.loads(json_text(read))
    assert written["schema_version"] == 5
    assert "read_version" not in written
    assert parse_certificate(json.dumps(written), "it").read_version == 5
    before = json.loads(KEPT.read_text())
    assert {key: written[key] for key in ("verdict", "expiry", "reasons")} == {
        key: before[key] for key in ("verdict", "expiry", "reasons")
    }
    assert all_in(before["criteria"][0]["cases"], written["criteria"][0]["cases"])


def all_in(old: Any, new: Any) -> bool:
    """Whether all that was written stands there, whatever keys were added."""
    if isinstance(old, dict):
        return all(key in new and all_in(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return all(all_in(*pair) for pair in zip(old, new, strict=True))
    return bool(old == new)


@pytest.mark.parametrize(
    "command",
    [
        "nodes {kept} --passed",
        "page {kept} --output={tmp}/page.html",
        "judge {kept} --spec={spec}",
        "diff {kept} {kept}",
        "sign {kept} --key={tmp}/key",
        "verify {kept} --key={tmp}/key.pub",
    ],
)
def test_every_command_reads_version_4_and_says_so(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Path(shutil.copy(KEPT, tmp_path))
    word, *rest = command.format(kept=kept, tmp=tmp_path, spec=SPEC).split()
    if word in ("sign", "verify"):
        need_program("ssh-keygen", "openssh-client")
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")]
        subprocess.run(argv, check=True)
    if word == "verify":
        assert main(["sign", str(kept), f"--key={tmp_path / 'key'}"]) == 0
        capsys.readouterr()
    at = [] if word == "sign" else ["--at=2026-11-29"]
    assert main([word, *rest, *at]) == 0
    line = (
        f"{kept}: schema version 4, read as 5; what the older version does not have is left empty"
    )
    assert set(capsys.readouterr().err.splitlines()) >= {line}


SLOW = Measurement("busbw", 3, "GB/s", at_least(46), "spec", where="rank 0")


@pytest.mark.parametrize(
    ("outcome", "message", "stopped_by", "by_bounds", "lacks"),
    [
        ("passed", "", None, False, None),
        ("error", "not run: mesh failed", "failure", False, None),
        ("error", "Failed: not run: mesh failed", "failure", False, None),
        ("error", "the test was interrupted before it ended", "interruption", False, None),
        ("failed", f"Failed: {replace(SLOW, where='')}", None, True, None),
        ("failed", "AssertionError: 3 != 4", None, False, None),
        ("not promised", "not promised by the spec: fabric.busbw", None, False, "fabric.busbw"),
    ],
)
def test_what_version_4_said_of_a_case_in_words_is_data(
    outcome: Any, message: str, stopped_by: str, by_bounds: bool, lacks: str | None
) -> None:
    measured = (SLOW,) if outcome == "failed" else ()
    case = CaseResult("t/test_fabric.py::test_it", "?", outcome, message, measurements=measured)
    written = json.loads(json_text(certify(case))) | {"schema_version": 4}
    for key in ("stopped_by", "by_bounds", "lacks"):
        del written["criteria"][0]["cases"][0][key]
    [read] = parse_certificate(json.dumps(written), "it").criteria[0].cases
    assert (read.stopped_by, read.by_bounds, read.lacks) == (stopped_by, by_bounds, lacks)
    assert (read.outcome, read.message, read.measurements) == (outcome, message, measured)


def test_a_history_of_version_4_goes_on(tmp_path: Path) -> None:
    shutil.copy(KEPT, tmp_path)
    spec = load_spec(SPEC)
    earlier = earlier_runs(tmp_path, facts_of(spec, SPEC), spec=spec)
    assert (len(earlier.certificates), earlier.left_out) == (1, ())
    assert [node.name for node in earlier.coverage[0].nodes] == ["node0", "node1", "node2"]
    again = with_history(read_certificate(KEPT), earlier)
    assert again.history is not None
    assert "history: 1 run of schema version 4" in list(again.history.lines())
    assert len(again.history.runs) == 2

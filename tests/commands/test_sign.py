"""`sign` and `verify`: changes are named, and other keys and bad input are distinguished."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult, write_report
from pytest_mnode.certificate.statement import sign
from pytest_mnode.commands import main
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least
from tests.certificate.conftest import certify
from tests.inner import need_program
from tests.programs import write_program

SLOW = Measurement("busbw", 48, "Mbit/s", at_least(170), "spec", Culprit("node2"))
UNCHANGED = (
    "signature valid, file unchanged; NOT certified: fabric failed (node2); passed: 3 nodes (the "
    "spec names no number)"
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the keys `ours` and `other`."""
    need_program("ssh-keygen", "openssh-client")
    directory = tmp_path_factory.mktemp("keys")
    for name in ("ours", "other"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(argv, check=True)
    return directory


@pytest.fixture
def report(tmp_path: Path) -> Path:
    case = CaseResult("t/test_fabric.py::test_it", "?", "failed", measurements=(SLOW,))
    write_report(tmp_path, certify(case, promised=["fabric"]))
    return tmp_path / "certificate.json"


def verify(
    report: Path, key: Path, capsys: pytest.CaptureFixture[str], at: str = "2026-11-22"
) -> tuple[int, list[str]]:
    capsys.readouterr()
    code = main(["verify", str(report), f"--key={key}", f"--at={at}"])
    captured = capsys.readouterr()
    return code, [*captured.out.splitlines(), *captured.err.splitlines()]


def test_changes_are_named(report: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sign", str(report.parent), f"--key={keys / 'ours'}"]) == 0
    assert verify(report, keys / "ours.pub", capsys) == (1, [f"{report}: {UNCHANGED}"])
    data: dict[str, Any] = json.loads(report.read_text())
    report.write_text(json.dumps(data))
    code, lines = verify(report, keys / "ours.pub", capsys)
    assert (code, lines) == (1, [f"{report}: changed: only its formatting"])
    data["criteria"][0]["cases"][0]["measurements"][0]["value"] = 180
    data["verdict"] = "certified"
    data["run"]["nodes"].append("node4")
    del data["run"]["commit"]
    report.write_text(json.dumps(data))
    code, lines = verify(report, keys / "ours.pub", capsys)
    assert code == 1
    measured = "criteria.[fabric].cases.[t/test_fabric.py::test_it].measurements.[busbw].value"
    assert sorted(line.removeprefix(f"{report}: changed: ") for line in lines) == [
        f"{measured}: signed 48.0, now 180",
        'run.commit: signed {"hash": "79cf144", "dirty": true}, now nothing',
        'run.nodes.[4]: signed nothing, now "node4"',
        'verdict: signed "not certified", now "certified"',
    ]
    report.write_text("{")
    code, [line] = verify(report, keys / "ours.pub", capsys)
    assert (code, "it is not valid JSON any more" in line) == (1, True)


def test_what_is_null_missing_or_in_another_order_is_named(
    report: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sign", str(report), f"--key={keys / 'ours'}"]) == 0
    data: dict[str, Any] = json.loads(report.read_text())
    del data["history"]
    data["criteria"][0]["not_promised_by"] = None
    data["run"]["nodes"].reverse()
    data["coverage"]["nodes"].reverse()
    report.write_text(json.dumps(data))
    code, lines = verify(report, keys / "ours.pub", capsys)
    changed = [line.removeprefix(f"{report}: changed: ") for line in lines]
    assert code == 1
    for expected in (
        "history: signed null, now nothing",
        "criteria.[fabric].not_promised_by: signed nothing, now null",
        "coverage.nodes: in another order",
    ):
        assert expected in changed


def test_one_of_several_keys_is_enough(
    report: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sign", str(report), f"--key={keys / 'ours'}"]) == 0
    several = report.with_name("operators.pub")
    lines = [(keys / f"{name}.pub").read_text() for name in ("other", "ours")]
    several.write_text("# the operators\n\n" + "".join(lines))
    assert verify(report, several, capsys) == (1, [f"{report}: {UNCHANGED}"])
    several.write_text(lines[0])
    assert verify(report, several, capsys)[0] == 1


def test_a_changed_statement_and_another_key_do_not_verify(
    report: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sign", str(report), f"--key={keys / 'ours'}"]) == 0
    statement = report.with_suffix(".intoto.json")
    refused = [f"{statement}: changed since it was signed, or signed by another key"]
    assert verify(report, keys / "other.pub", capsys) == (1, refused)
    statement.write_text(statement.read_text().replace("48", "180"))
    assert verify(report, keys / "ours.pub", capsys) == (1, refused)


def test_a_statement_that_cannot_be_written_or_read_is_one_line(
    report: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statement = report.with_suffix(".intoto.json")
    statement.mkdir()
    assert main(["sign", str(report), f"--key={keys / 'ours'}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{statement}: Is a directory; it is written beside {report}")
    statement.rmdir()
    for content in (b"\xff", b"[" * 100_000):
        statement.write_bytes(content)
        report.with_suffix(".intoto.json.sig").write_bytes(sign(content, keys / "ours"))
        code, [line] = verify(report, keys / "ours.pub", capsys)
        assert code == 2
        assert line.endswith("no statement about a certificate; write one by 'sign'")


def test_the_statement_is_of_in_toto(report: Path, keys: Path) -> None:
    assert main(["sign", str(report), f"--key={keys / 'ours'}"]) == 0
    statement = json.loads(report.with_suffix(".intoto.json").read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    [subject] = statement["subject"]
    digest = subprocess.run(["sha256sum", report], capture_output=True, text=True, check=True)
    assert subject == {"name": report.name, "digest": {"sha256": digest.stdout.split()[0]}}
    assert statement["predicate"] == json.loads(report.read_text())


def test_bad_input_is_one_line(
    report: Path, keys: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def line_of(*arguments: str) -> str:
        capsys.readouterr()
        assert main(arguments) == 2
        [line] = capsys.readouterr().err.splitlines()
        return line

    key, path = f"--key={keys / 'ours.pub'}", str(report)
    assert "no such file or directory; accepted: a statement" in line_of("verify", path, key)
    assert "nokey: no such file or directory" in line_of("sign", path, "--key=nokey")
    (report.parent / "nokey").write_text("no key")
    assert "does not sign with it: " in line_of("sign", path, f"--key={report.parent / 'nokey'}")
    assert main(["sign", path, f"--key={keys / 'ours'}"]) == 0
    assert "no public key; accepted: " in line_of("verify", path, f"--key={report}")
    report.with_suffix(".intoto.json.sig").unlink()
    assert ".sig: no such file or directory" in line_of("verify", path, key)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "ssh-keygen is not on the PATH" in line_of("sign", path, f"--key={keys / 'ours'}")
    report.write_text("{}")
    assert "no certificate; accepted" in line_of("sign", path, f"--key={keys / 'ours'}")


def test_an_ssh_keygen_without_signatures_is_not_reported_as_a_change(
    report: Path,
    keys: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["sign", str(report.parent), f"--key={keys / 'ours'}"]) == 0
    old = tmp_path / "old"
    old.mkdir()
    write_program(old / "ssh-keygen", "#!/bin/sh\necho 'unknown option -- Y' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{old}:/usr/bin:/bin")
    code, [line] = verify(report, keys / "ours.pub", capsys)
    assert code == 2
    assert "install OpenSSH 8.1" in line


@pytest.mark.parametrize(
    ("value", "cluster_nodes", "at", "code", "line"),
    [
        (180, 4, "2026-11-22", 0, "certified: 4 of 4 nodes until 2026-11-28 02:06 UTC"),
        (180, 4, "2026-11-28T02:06", 1, "expired 2026-11-28: was certified: 4 of 4 nodes until"),
        (180, 4, "2026-11-28T03:05+01:00", 0, "certified: 4 of 4 nodes until"),
        (180, 64, "2026-11-22", 0, "partly certified: 4 of 64 nodes until 2026-11-28 02:06 UTC"),
        (180, 64, "2027-12-22", 1, "expired 2026-11-28: was partly certified: 4 of 64 nodes"),
        (180, 4, "2026-11-20", 1, "not valid before 2026-11-21: was certified: 4 of 4 nodes"),
        (48, 4, "2026-11-22", 1, "NOT certified: fabric failed (node2); passed: 3 of 4 nodes"),
        (48, 4, "2027-12-22", 1, "NOT certified, expired 2026-11-28: fabric failed (node2)"),
        (None, 4, "2026-11-22", 1, "inconclusive: fabric inconclusive (node2)"),
    ],
)
def test_only_what_is_certified_then_verifies(  # noqa: PLR0917  the table's columns
    tmp_path: Path,
    keys: Path,
    capsys: pytest.CaptureFixture[str],
    value: float | None,
    cluster_nodes: int,
    at: str,
    code: int,
    line: str,
) -> None:
    measured = replace(SLOW, value=value, culprit=Culprit("node2"))
    case = CaseResult("t/test_fabric.py::test_it", "?", "passed", measurements=(measured,))
    write_report(tmp_path, certify(case, promised=["fabric"], cluster_nodes=cluster_nodes))
    report = tmp_path / "certificate.json"
    assert main(["sign", str(report), f"--key={keys / 'ours'}"]) == 0
    found, lines = verify(report, keys / "ours.pub", capsys, at)
    assert found == code
    assert len(lines) == 1
    assert lines[0].startswith(f"{report}: signature valid, file unchanged; {line}")


def test_a_time_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", "x", "--key=y", "--at=yesterday"])
    assert "yesterday: accepted: a date or a time of ISO 8601" in capsys.readouterr().err


def test_a_check_leaves_no_file(
    report: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["sign", str(report.parent), f"--key={keys / 'ours'}"]) == 0
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    main(["verify", str(report), f"--key={keys / 'ours.pub'}", "--at=2026-11-22"])
    assert list(temporary.iterdir()) == []

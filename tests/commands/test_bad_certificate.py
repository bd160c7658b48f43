"""An invalid certificate is one line on stderr, in every command that reads one."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.files import json_text
from pytest_mnode.certificate.kept import earlier_runs, keep
from pytest_mnode.commands import main
from pytest_mnode.detection import Detection
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.path_rates import PathRates
from pytest_mnode.spec import default_spec_path
from tests.certificate.conftest import certify

RATE = Measurement("busbw", 180, "GB/s", at_least(100), detection=Detection("less", 0.1, 5, 0.03))
PATHS = PathRates(
    ("node0", "node1"), ("fab0",), 10.0, ("-p", "p-"), ("- 9", "9 -"), ("p", "p"), ("9", "9")
)
CASE = CaseResult("t/test_it.py::test_it", "?", "passed", measurements=(RATE,), paths=(PATHS,))
GOOD = certify(CASE, promised=["it"])
COMMANDS = {
    "nodes": ["nodes", "{bad}"],
    "page": ["page", "{bad}", "--output={out}"],
    "diff": ["diff", "{bad}", "{good}"],
    "diff after": ["diff", "{good}", "{bad}"],
    "judge": ["judge", "{bad}", f"--spec={default_spec_path()}"],
    "sign": ["sign", "{bad}", "--key={good}"],
}
Change = Callable[[dict[str, Any]], object]


def one(data: dict[str, Any]) -> dict[str, Any]:
    measurement: dict[str, Any] = data["criteria"][0]["cases"][0]["measurements"][0]
    return measurement


def rates(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["coverage"]["paths"][0]["rates"]
    return found


TEXTS = {
    "": "no JSON",
    "null": "no certificate",
    '{"schema_version": 5}': "run: field required",
    '{"schema_version": 4}': "run: field required",
    '{"schema_version": 3}': "schema version 3; accepted: a certificate.json of version 4 or 5",
    json_text(GOOD)[:400]: "no JSON",
    "[" * 100_000: "no JSON",
}
CHANGES: list[tuple[Change, str]] = [
    (lambda data: one(data).update(value="180"), "value: input should be a valid number"),
    (lambda data: one(data).update(value=True), "value: input should be a valid number"),
    (lambda data: one(data).update(value=float("nan")), "no JSON (NaN is none)"),
    (lambda data: one(data).pop("value"), "value: field required"),
    (lambda data: one(data)["expected"].update(limit=None), "limit: input should be a valid num"),
    (lambda data: one(data)["detection"].update(kind="wrong", share=0), "cannot be used"),
    (lambda data: rates(data).update(mbits_s=["- 9"]), "tables of paths do not have"),
    (lambda data: rates(data).update(mbits_s=["- x", "9 -"]), "tables of paths do not have"),
    (lambda data: rates(data).update(states=["-x", "p-"]), "tables of paths do not have"),
    (lambda data: rates(data).update(rail_mbits_s=["", "9"]), "tables of paths do not have"),
    (lambda data: data["coverage"].update(nodes=[]), "paths of node[0-1], which are not among"),
    (lambda data: data["run"].update(backend="\ud800"), "invalid json"),
    (lambda data: data["run"].update(end="0001-01-01T00:00:00+14:00"), "date value out of range"),
    (
        lambda data: data.update(history={"runs": [], "trends": [], "failing": []}),
        "a history without its runs",
    ),
]


@pytest.fixture(params=COMMANDS)
def line_of(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], str]:
    """The line that a command prints about a file."""
    (tmp_path / "good.json").write_text(json_text(GOOD))

    def line(bad: Path) -> str:
        places = {"bad": bad, "good": tmp_path / "good.json", "out": tmp_path / "out.html"}
        assert main([word.format_map(places) for word in COMMANDS[request.param]]) == 2
        [printed] = capsys.readouterr().err.splitlines()
        assert printed.startswith(f"python -m pytest_mnode {COMMANDS[request.param][0]}: ")
        assert str(bad) in printed
        return printed

    return line


def test_unreadable_files(line_of: Callable[[Path], str], tmp_path: Path) -> None:
    (tmp_path / "certificate.json").mkdir()
    assert "certificate.json: is a directory; accepted" in line_of(tmp_path)
    assert "no such file or directory; accepted" in line_of(tmp_path / "missing")
    assert "not a directory; accepted" in line_of(tmp_path / "good.json" / "it")
    assert "file name too long; accepted" in line_of(tmp_path / ("x" * 300))


def test_a_directory_without_search_permission(
    line_of: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an ordinary user: root may search all directories."""
    report = tmp_path / "report"
    stat, read_bytes = Path.stat, Path.read_bytes

    def refused(call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(path: Path, *arguments: Any, **more: Any) -> Any:
            if path == report:
                raise PermissionError(13, "Permission denied")
            return call(path, *arguments, **more)

        return asked

    monkeypatch.setattr(Path, "stat", refused(stat))
    monkeypatch.setattr(Path, "read_bytes", refused(read_bytes))
    assert line_of(report).endswith("report: permission denied; accepted: a certificate.json")


def test_files_that_are_no_certificate(line_of: Callable[[Path], str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    for text, message in TEXTS.items():
        bad.write_text(text)
        assert message in line_of(bad)
    bad.write_bytes(b"\xff\xfe{}")
    assert "not UTF-8" in line_of(bad)


def test_inconsistent_certificates(line_of: Callable[[Path], str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    for change, message in CHANGES:
        data = json.loads(json_text(GOOD))
        change(data)
        bad.write_text(json.dumps(data))
        assert message in line_of(bad)


def test_a_bad_stored_certificate_does_not_lose_the_run(tmp_path: Path) -> None:
    good = keep(tmp_path, GOOD)
    for number, text in enumerate(TEXTS, start=1):
        end = GOOD.run.end + timedelta(days=number)
        (tmp_path / f"{end:%Y%m%dT%H%M%S.%fZ}{good.name[-14:]}").write_text(text)
    found = earlier_runs(tmp_path, GOOD.run.spec)
    assert len(found.left_out) == len(TEXTS)
    assert [found.run.end for found in found.certificates] == [GOOD.run.end]

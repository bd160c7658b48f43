"""Files are written completely or not at all."""

from __future__ import annotations

import copy
import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from pytest_mnode.certificate import CaseResult, Certificate, write_report
from pytest_mnode.certificate.certificate import certificate_json, certificate_schema
from pytest_mnode.certificate.files import json_text, parse_certificate, replace_file, schema_text
from pytest_mnode.certificate.text import Recorded, recorded_from
from pytest_mnode.errors import UsageError
from pytest_mnode.measurement import Measurement, at_least
from tests.certificate.conftest import RIGHT, certify
from tests.certificate.test_page import charts


def test_a_report_is_json_and_junit_that_read_back(tmp_path: Path) -> None:
    certificate = certify(CaseResult("acceptance/test_mesh.py::test_é", "雪?", "passed"))
    written = write_report(tmp_path / "not" / "yet there", certificate)
    assert [path.name for path in written] == [
        "certificate.json",
        "certificate.xml",
        "certificate.html",
    ]
    data = json.loads(written[0].read_text(encoding="utf-8"))
    assert TypeAdapter(Certificate).validate_python(data) == certificate
    assert [s.get("name") for s in ET.parse(written[1]).getroot()] == ["certificate", "mesh"]
    assert sorted(written[0].parent.iterdir()) == sorted(written)


def test_text_that_is_not_utf8_is_written(tmp_path: Path) -> None:
    case = CaseResult("acceptance/test_mesh.py::test_it", "?", "failed", "bytes \udcff\x00\ufffe")
    as_json, as_xml, as_html = write_report(tmp_path, certify(case))
    (criterion,) = json.loads(as_json.read_text(encoding="utf-8"))["criteria"]
    assert criterion["cases"][0]["message"] == "bytes ?\x00\ufffe"
    (failure,) = ET.parse(as_xml).getroot().iterfind(".//testcase[@name='test_it']/failure")
    assert failure.get("message") == r"bytes \udcff\x00\ufffe"
    assert r"bytes \udcff\x00\ufffe" in as_html.read_text(encoding="utf-8")


def test_a_write_that_fails_leaves_the_old_report_and_no_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path, certify())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path, certify(promised=["mesh"]))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_link_stays_one_and_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """Such as /dev/stdout, which root could replace by a file."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("first", "second"):
        replace_file(tmp_path / "link", text)
        assert (tmp_path / "file").read_text() == text
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    replace_file(tmp_path / "pipe", "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "pipe").is_fifo()


def test_a_reader_of_the_old_report_reads_it_to_its_end(tmp_path: Path) -> None:
    path = write_report(tmp_path, certify())[0]
    before = path.read_text()
    with path.open() as old:
        write_report(tmp_path, certify(promised=["mesh"]))
        assert old.read() == before
    assert path.read_text() != before


def test_a_property_may_have_any_name_and_value() -> None:
    recorded = recorded_from([(3, b"x"), ("nan", float("nan")), ("n", 2), ("mnode.measurement", 1)])
    assert recorded == (Recorded("3", "b'x'"), Recorded("nan", "nan"), Recorded("n", 2))


def test_a_report_can_be_read_by_others(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        written = write_report(tmp_path, certify())
    finally:
        os.umask(umask)
    assert [oct(path.stat().st_mode & 0o777) for path in written] == ["0o644"] * 3


@pytest.mark.parametrize("date", ["2026-11-21T02:06:00+00:00", None])
def test_a_pass_that_outlasts_its_run_is_refused(date: str | None) -> None:
    case = CaseResult("acceptance/test_mesh.py::test_it", "?", "passed", measurements=(RIGHT,))
    data = json.loads(json_text(certify(case, promised=["mesh"])))
    assert parse_certificate(json.dumps(data), "c.json").expiry is not None
    data["coverage"]["nodes"][1] |= {"until": "2036-01-01T00:00:00+00:00", "date": date}
    with pytest.raises(
        UsageError, match=r"c\.json: coverage\.nodes: node1: a pass until 2036-01-01"
    ):
        parse_certificate(json.dumps(data), "c.json")


def test_a_file_that_cannot_be_replaced_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    (tmp_path / "page").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refused)
        with pytest.raises(PermissionError):
            replace_file(tmp_path / "page", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["page"]
    assert (tmp_path / "page").read_text() == "old"


PUBLISHED = Path(__file__).parents[2] / "fixtures" / "certificate.schema.json"

PASSED = CaseResult(
    "acceptance/test_mesh.py::test_it", "Do all meet?", "passed", measurements=(RIGHT,)
)
FAILED = CaseResult(
    "acceptance/test_fabric.py::test_it",
    "Is it fast?",
    "failed",
    "slow",
    "node2",
    (Measurement("busbw", None, "GB/s", at_least(46)), Measurement("size", 8, "MB")),
    ("node0", "node2"),
    1.5,
    charts("it"),
)


VALIDATOR = jsonschema.Draft202012Validator(certificate_schema())


def test_the_schema_is_a_schema() -> None:
    VALIDATOR.check_schema(VALIDATOR.schema)


@pytest.fixture
def full() -> dict[str, Any]:
    return certificate_json(
        certify(
            PASSED,
            FAILED,
            promised=["mesh", "restart"],
            not_promised={"gang": "no scheduler"},
            doubts=("too fast",),
        )
    )


def test_the_published_schema_is_current() -> None:
    remedy = f"python -m pytest_mnode.certificate > fixtures/{PUBLISHED.name}"
    assert PUBLISHED.read_text() == schema_text(), f"out of date; run: {remedy}"


def test_written_certificates_match_the_schema(full: dict[str, Any]) -> None:
    VALIDATOR.validate(full)
    emulated = certify(PASSED, promised=["mesh"], emulated="links", commit=None)
    VALIDATOR.validate(certificate_json(emulated))
    VALIDATOR.validate(certificate_json(certify()))


def paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key of every object in `data`."""
    inner = data.items() if isinstance(data, dict) else enumerate(data)
    out = []
    for key, value in inner:
        out += [(*at, key)] if isinstance(data, dict) else []
        out += paths(value, (*at, key)) if isinstance(value, dict | list) else []
    return out


def test_no_key_may_be_missing_and_readers_ignore_those_that_they_do_not_know(
    full: dict[str, Any],
) -> None:
    read = parse_certificate(json.dumps(full), "it")
    more = copy.deepcopy(full)
    for path in paths(full):
        data = copy.deepcopy(full)
        inner, wider = data, more
        for key in path[:-1]:
            inner, wider = inner[key], wider[key]
        del inner[path[-1]]
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(data)
        wider[f"{path[-1]}_too"] = [{"unknown": 1}]
    VALIDATOR.validate(more)
    assert parse_certificate(json.dumps(more), "it") == read


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 4},
        {"verdict": "passed"},
        {"verdict": "certified"},
        {"expiry": "2026-11-28T02:06:00+00:00"},
        {"reasons": []},
    ],
)
def test_a_certificate_that_contradicts_itself_is_refused(
    full: dict[str, Any], change: dict[str, Any]
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(json.loads(json.dumps(full)) | change)

"""The published schema is up to date, and matches exactly what is written."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.certificate import certificate_json, certificate_schema
from pytest_mnode.certificate.files import parse_certificate, schema_text
from pytest_mnode.measurement import Measurement, at_least
from tests.certificate.conftest import RIGHT, certify
from tests.certificate.test_page import charts

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

"""The published schema is up to date, and matches exactly what is written."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_mnode.certificate import CaseResult, Certificate
from pytest_mnode.certificate.certificate import certificate_json, certificate_schema
from pytest_mnode.certificate.files import schema_text
from pytest_mnode.charts import (
    Bars,
    Item,
    Layout,
    Level,
    Lines,
    Map,
    Matrix,
    Moment,
    Part,
    Place,
    Series,
    Span,
    Timeline,
)
from pytest_mnode.measurement import Curve, Measurement, Point, at_least

PUBLISHED = Path(__file__).parents[2] / "fixtures" / "certificate.schema.json"

PASSED = CaseResult("acceptance/test_mesh.py::test_it", "Do all meet?", "passed")
FAILED = CaseResult(
    "acceptance/test_fabric.py::test_it",
    "Is it fast?",
    "failed",
    "slow",
    "node2",
    (Measurement("busbw", None, "GB/s", at_least(46)), Measurement("size", 8, "MB")),
    ("node0", "node2"),
    1.5,
    (
        Curve(
            "all_gather",
            "ring",
            "nccl",
            16,
            (Point(1024, 5, 9.5, 12, 9, 12, 0.1, 0.09, 0),),
            line_gbytes_s=50,
            expected=at_least(46),
        ),
        Lines("speed", "nodes", "speed (GB/s)", (Series("it", ((1, 2.5),)),), (Level("least", 2),)),
        Bars("lost", "ms", ("2 nodes",), (Part("waiting", (1.5,)),)),
        Matrix("paths", "Mbit/s", ("a", "b"), ("a", "b"), ((None, 1.0), (2.0, None)), at_least(1)),
        Timeline("kill", ("job",), (Span("job", 0, 1.5, "trains"),), (Moment(1, "killed"),)),
        Map("numa", (Layout(("n0", "n1"), (Place("NUMA 0", (Item("nic", "mlx5_0"),)),)),)),
    ),
)


VALIDATOR = jsonschema.Draft202012Validator(certificate_schema())


def check(data: Any) -> None:
    VALIDATOR.validate(data)


def test_the_schema_is_a_schema() -> None:
    VALIDATOR.check_schema(VALIDATOR.schema)


@pytest.fixture
def full(certify: Callable[..., Certificate]) -> dict[str, Any]:
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


def test_written_certificates_match_the_schema(
    full: dict[str, Any], certify: Callable[..., Certificate]
) -> None:
    check(full)
    emulated = certify(PASSED, promised=["mesh"], emulated="links", commit=None)
    check(certificate_json(emulated))
    check(certificate_json(certify()))


def paths(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key of every object in `data`."""
    inner = data.items() if isinstance(data, dict) else enumerate(data)
    out = []
    for key, value in inner:
        out += [(*at, key)] if isinstance(data, dict) else []
        out += paths(value, (*at, key)) if isinstance(value, dict | list) else []
    return out


def test_no_key_may_be_missing_or_added(full: dict[str, Any]) -> None:
    for path in paths(full):
        for change in ("remove", "add"):
            data = copy.deepcopy(full)
            inner = data
            for key in path[:-1]:
                inner = inner[key]
            if change == "remove":
                del inner[path[-1]]
            else:
                inner[f"{path[-1]}_too"] = 1
            with pytest.raises(jsonschema.ValidationError):
                check(data)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 3},
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
        check(json.loads(json.dumps(full)) | change)

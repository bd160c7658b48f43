"""JSON Schema of `certificate.json`; `python -m pytest_mnode.certificate.schema` prints it."""

from __future__ import annotations

import json
from typing import Any, get_args

from pytest_mnode.certificate.certificate import SCHEMA_VERSION, CertificateVerdict
from pytest_mnode.certificate.criterion import CriterionVerdict, Outcome
from pytest_mnode.measurement import Relation, Verdict

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBER_OR_NULL = {"type": ["number", "null"]}
_TIME = {"type": "string", "format": "date-time"}


def _object(title: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _one_of(*values: str | None) -> dict[str, Any]:
    return {"enum": list(values)}


def certificate_schema() -> dict[str, Any]:
    """Of what `Certificate.to_dict` returns. A key that is changed or removed: a new version."""
    bound = _object(
        "Bound",
        relation=_one_of(*(r.value for r in Relation)),
        limit=_NUMBER,
        tolerance=_NUMBER | {"minimum": 0},
    )
    measurement = _object(
        "Measurement",
        name=_TEXT,
        value=_NUMBER_OR_NULL,
        unit=_TEXT,
        expected=_or_null(bound),
        source=_TEXT,
        culprit=_TEXT_OR_NULL,
        note=_TEXT,
        where=_TEXT,
        margin=_NUMBER_OR_NULL,
        verdict=_one_of(*(v.value for v in Verdict), None),
    )
    curve = _object(
        "Curve",
        collective=_TEXT,
        algorithm=_TEXT,
        backend=_TEXT,
        ranks=_COUNT,
        points=_list(
            _object(
                "Point",
                size_bytes=_COUNT,
                repeats=_COUNT,
                time_median_us=_NUMBER,
                time_p99_us=_NUMBER,
                time_min_us=_NUMBER,
                time_max_us=_NUMBER,
                algbw_gbytes_s=_NUMBER,
                busbw_gbytes_s=_NUMBER,
                wrong=_COUNT,
            )
        ),
    )
    case = _object(
        "Case",
        test=_TEXT,
        question=_TEXT,
        verdict=_one_of(*(v.value for v in Verdict), CriterionVerdict.NOT_PROMISED.value),
        outcome=_one_of(*get_args(Outcome)),
        message=_TEXT,
        culprit=_TEXT_OR_NULL,
        nodes=_list(_TEXT),
        duration_s=_NUMBER_OR_NULL,
        measurements=_list(measurement),
        curves=_list(curve),
    )
    criterion = _object(
        "Criterion",
        name=_TEXT,
        verdict=_one_of(*(v.value for v in CriterionVerdict)),
        promised={"type": "boolean"},
        not_promised=_TEXT_OR_NULL,
        cases=_list(case),
    )
    run = _object(
        "Run",
        launcher=_TEXT,
        launcher_reason=_TEXT,
        nodes=_list(_TEXT),
        cluster_nodes={"type": ["integer", "null"], "minimum": 1},
        not_covered=_list(_TEXT),
        ranks=_COUNT,
        backend=_TEXT,
        spec=_object("Spec", name=_TEXT, path=_TEXT, digest=_TEXT),
        versions=_object(
            "Versions",
            python=_TEXT,
            kernel=_TEXT,
            pytest=_TEXT_OR_NULL,
            pytest_mnode=_TEXT_OR_NULL,
            torch=_TEXT_OR_NULL,
        ),
        start=_TIME,
        end=_TIME,
        commit=_or_null(_object("Commit", hash=_TEXT, dirty={"type": "boolean"})),
        emulated=_TEXT_OR_NULL,
        doubts=_list(_TEXT),
        cut_short=_list(_TEXT),
        validity_s=_NUMBER,
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_object(
            "Certificate of a training cluster",
            schema_version={"const": SCHEMA_VERSION},
            verdict=_one_of(*(v.value for v in CertificateVerdict)),
            reasons=_list(_TEXT),
            expiry=_or_null(_TIME),
            run=run,
            criteria=_list(criterion),
        ),
        # Only a certified run has an expiry, and it has nothing standing in its way.
        "if": {"properties": {"verdict": {"const": "certified"}}},
        "then": {"properties": {"expiry": _TIME, "reasons": {"maxItems": 0}}},
        "else": {"properties": {"expiry": {"type": "null"}, "reasons": {"minItems": 1}}},
    }


def schema_text() -> str:
    """The schema as it is published in `fixtures/certificate.schema.json`."""
    return json.dumps(certificate_schema(), indent=2) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")

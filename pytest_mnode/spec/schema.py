"""The JSON Schema of a spec, for editors and for programs that write specs.

python -m pytest_mnode.spec.schema > fixtures/clusters/spec.schema.json
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from pytest_mnode.spec.fields import field_docs, keys_of, model_in
from pytest_mnode.spec.load import CLAUSE, EXTENDS
from pytest_mnode.spec.models import Criteria, Spec

_NAME = {"type": "string", "minLength": 1}
_EXTENDS = {
    "description": "Pages whose keys this one takes over, where it has no other value: names of "
    "profiles, or paths to .yaml files beside it. Later ones win; mappings merge, lists are "
    "replaced, and null removes a key.",
    "anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1}],
}
_CLAUSE = {
    "description": "The buyer's clause that this promise answers, or several.",
    "anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1}],
}


def _promises(page: type[BaseModel]) -> set[type[BaseModel]]:
    """The pages of promises below a page."""
    below = {found for key in keys_of(page).values() if (found := model_in(key.annotation))}
    return below.union(*map(_promises, below))


class _NoNull(GenerateJsonSchema):
    """A schema without null, neither as a value nor as a default: unused keys are left out.

    A key is described by the docstring of its field.
    """

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        for key, text in field_docs(schema["cls"]).items():
            found["properties"][key]["description"] = text
        return found

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default", ...) is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002
        return False  # "Per Node" says no more than per_node


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the YAML page that `load_spec` reads.

    A page with `extends` is incomplete and may remove keys: of it only the names of sections are
    checked, and editors complete the rest.
    """
    schema = Spec.model_json_schema(schema_generator=_NoNull)
    sections, definitions = schema.pop("properties"), schema["$defs"]
    for page in _promises(Criteria):
        named = definitions[page.__name__].setdefault("properties", {})
        named[CLAUSE] = {"$ref": f"#/$defs/{CLAUSE}"}
    definitions[CLAUSE] = _CLAUSE
    overlay = {EXTENDS: _EXTENDS} | {
        name: {"anyOf": [section, {"type": ["object", "array", "null"]}]}
        for name, section in sections.items()
    }
    return {
        "$schema": _NoNull.schema_dialect,
        "title": "pytest-mnode cluster spec",
        **{key: schema[key] for key in ("$defs", "description", "type")},
        "if": {"required": [EXTENDS]},
        "then": {"properties": overlay, "additionalProperties": False},
        "else": {
            "properties": sections,
            "required": schema["required"],
            "additionalProperties": False,
        },
    }


def published() -> str:
    """The text of the published schema file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(published(), end="")

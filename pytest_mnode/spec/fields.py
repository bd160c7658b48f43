"""Building blocks of the sections of a spec: their base class, and the types of values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from pytest_mnode.evidence.check import docs_below
from pytest_mnode.spec import quantity


def _quantity(kind: quantity.Kind) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": "string", "pattern": kind.pattern, "description": f"Form: {kind.accepted}"}
    )


_SIZE_SCHEMA = {"type": "string", "pattern": quantity.SIZE.pattern}
BitsPerSecond = Annotated[int, BeforeValidator(quantity.bits_per_s), _quantity(quantity.RATE)]
BytesPerSecond = Annotated[
    int, BeforeValidator(quantity.bytes_per_s), _quantity(quantity.BYTE_RATE)
]
Bytes = Annotated[int, BeforeValidator(quantity.size_bytes), _quantity(quantity.SIZE)]


def _or_unlimited(written: Any) -> Any:
    if written == "unlimited":
        return written
    try:
        return quantity.size_bytes(written)
    except ValueError as error:
        raise ValueError(f"{error}, or unlimited") from None


BytesOrUnlimited = Annotated[
    int | Literal["unlimited"],
    BeforeValidator(_or_unlimited),
    WithJsonSchema({"anyOf": [_quantity(quantity.SIZE).json_schema or {}, {"const": "unlimited"}]}),
]

_RANGE_KEYS = ("from", "to", "factor")
_RANGE = "a list of sizes, or {from: 8 KiB, to: 1 GiB, factor: 2}"


def _listed(written: Any) -> Any:
    """A range of sizes as the list that it stands for; anything else as it is."""
    if not isinstance(written, dict):
        return written
    for key in written:
        if key not in _RANGE_KEYS:
            raise ValueError(f"unknown key {quantity.shown(key)}; accepted: {_RANGE}")
    for key in ("from", "to"):
        if key not in written:
            raise ValueError(f"{key} is missing; accepted: {_RANGE}")
    size, last = (quantity.size_bytes(written[key]) for key in ("from", "to"))
    factor = written.get("factor", 2)
    if not isinstance(factor, int) or isinstance(factor, bool) or factor < 2:
        raise ValueError(f"factor {quantity.shown(factor)}; accepted: a whole number of 2 or more")
    if size > last:
        raise ValueError(
            f"from {written['from']} is more than to {written['to']}; accepted: the smaller first"
        )
    sizes = []
    while size < last:
        sizes.append(size)
        size *= factor
    return [quantity.SIZE.text(size) for size in (*sizes, last)]


Sizes = Annotated[
    tuple[Bytes, ...],
    Field(min_length=1),
    BeforeValidator(_listed),
    WithJsonSchema(
        {
            "description": f"Form: {_RANGE}",
            "type": ["array", "object"],
            "minItems": 1,
            "items": _SIZE_SCHEMA,
            "properties": {
                "from": _SIZE_SCHEMA,
                "to": _SIZE_SCHEMA,
                "factor": {"type": "integer", "minimum": 2, "default": 2},
            },
            "required": ["from", "to"],
            "additionalProperties": False,
        }
    ),
]
"""Sizes, written as a list or as a range."""
Seconds = Annotated[float, BeforeValidator(quantity.duration_s), _quantity(quantity.DURATION)]
SecondsOrNone = Annotated[
    float, BeforeValidator(quantity.duration_or_none_s), _quantity(quantity.DURATION)
]
"""A duration that may be 0 s."""
Celsius = Annotated[float, BeforeValidator(quantity.degrees_c), _quantity(quantity.TEMPERATURE)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
"""A number above 0."""
Count = Annotated[int, Field(strict=True, ge=0)]
Some = Annotated[int, Field(strict=True, ge=1)]
Mtu = Annotated[int, Field(strict=True, ge=256, le=65535)]
Fraction = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


def _on_or_off(written: Any) -> Any:
    """YAML reads on and off without quotes as true and false."""
    if isinstance(written, bool):
        return "on" if written else "off"
    return written


OnOff = Annotated[Literal["on", "off"], BeforeValidator(_on_or_off)]
Text = Annotated[str, Field(pattern=r"^\S(.*\S)?$")]
Interface = Annotated[str, Field(pattern=r"^[^\s/,]+$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\n]*$")]
Setting = Annotated[str, Field(pattern=r"^([A-Z][A-Z0-9_]*|[a-z]+\.[A-Za-z0-9_.]+)(=\S.*)?$")]

PATTERNS = {
    r"^\S(.*\S)?$": "one line of text",
    r"^[^\s/,]+$": "the name or shell pattern of an interface, such as fab0 or mlx5_*",
    r"^/[^\n]*$": "an absolute path, such as /data",
    r"^([A-Z][A-Z0-9_]*|[a-z]+\.[A-Za-z0-9_.]+)(=\S.*)?$": (
        "a variable, such as NCCL_IB_HCA or NCCL_ALGO=Ring"
    ),
}
"""Descriptions of the patterns of texts, for error messages."""


def rising(numbers: tuple[int, ...], what: str, text: Callable[[int], str]) -> tuple[int, ...]:
    """`numbers` unchanged. Raises ValueError if one is not larger than the one before."""
    if sorted(set(numbers)) != list(numbers):
        listed = ", ".join(map(text, numbers))
        raise ValueError(f"[{listed}] does not rise; accepted: each {what} larger than the last")
    return numbers


class Section(BaseModel):
    """Base of every section: frozen, no unknown key, no key without a value."""

    # Keys may begin with model_, which pydantic before 2.10 warns about.
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def _has_a_value(cls, value: Any) -> Any:
        if value is None:
            raise PydanticCustomError("no_value", "a key without a value")
        return value

    @classmethod
    def added_docs(cls) -> dict[str, str]:
        """Docstrings of fields that its source does not have, by the page's keys."""
        return {}


def keys_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a section by the keys that a page has."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field's type has, also inside a list or an optional; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(model_in, get_args(annotation))), None)


def field_docs(section: type[BaseModel]) -> dict[str, str]:
    """The docstrings below a section's fields, inherited ones too, by the page's keys.

    Read from the source on demand, because pydantic's use_attribute_docstrings parses all sections
    in every process that imports them, which takes longer than the rest of the import.
    """
    found = section.added_docs() if issubclass(section, Section) else {}
    for base in reversed(section.__mro__):
        if issubclass(base, Section):
            for name, text in docs_below(inspect.getfile(base), base.__name__).items():
                found[section.model_fields[name].alias or name] = text
    return found

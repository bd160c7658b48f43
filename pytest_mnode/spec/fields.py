"""What the sections of a spec are made of: their base, and the forms a value can take."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from pytest_mnode.spec import quantity


def _quantity(kind: quantity.Kind) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": "string", "pattern": kind.pattern, "description": f"Form: {kind.accepted}"}
    )


BitsPerSecond = Annotated[int, BeforeValidator(quantity.bits_per_s), _quantity(quantity.RATE)]
Bytes = Annotated[int, BeforeValidator(quantity.size_bytes), _quantity(quantity.SIZE)]
Seconds = Annotated[float, BeforeValidator(quantity.duration_s), _quantity(quantity.DURATION)]
Count = Annotated[int, Field(strict=True, ge=0)]
Some = Annotated[int, Field(strict=True, ge=1)]
Mtu = Annotated[int, Field(strict=True, ge=256, le=65535)]
Fraction = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(pattern=r"^\S(.*\S)?$")]
Interface = Annotated[str, Field(pattern=r"^[^\s/,]+$")]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\n]*$")]

PATTERNS = {
    r"^\S(.*\S)?$": "one line of text",
    r"^[^\s/,]+$": "the name or shell pattern of an interface, such as fab0 or mlx5_*",
    r"^/[^\n]*$": "an absolute path, such as /data",
}
"""What the patterns of texts mean, for error messages."""


class Page(BaseModel):
    """Base of every section: frozen, no unknown key, no key without a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _has_a_value(cls, value: Any) -> Any:
        if value is None:
            raise PydanticCustomError("no_value", "a key without a value")
        return value

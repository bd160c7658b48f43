"""Dataclasses to one line of JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
"""Made once: to make one takes longer than to decode a machine."""


def encode(value: Any) -> str:
    """A dataclass as one line of JSON; sets become sorted lists."""
    return json.dumps(asdict(value), default=sorted, separators=(",", ":"))


def decode(kind: type[T], line: str | bytes) -> T:
    """The dataclass of a line; raises ValueError where a value is missing or of another type.

    A key that is no field is an error where `__pydantic_config__` of `kind` forbids it.
    """
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter  # only who decodes pays for its import

        _ADAPTERS[kind] = TypeAdapter(kind)
    value: T = _ADAPTERS[kind].validate_json(line, strict=True)
    return value

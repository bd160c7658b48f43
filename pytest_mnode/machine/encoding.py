"""Conversion of dataclasses to one line of JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
"""Kept, because building an adapter takes longer than decoding a machine."""


def encode(value: Any) -> str:
    """A dataclass as one line of JSON; sets become sorted lists."""
    return json.dumps(asdict(value), default=sorted, separators=(",", ":"))


def plain(value: Any) -> Any:
    """A dataclass as plain values, as JSON has them: None for a number that is not finite."""
    return json.loads(encode(value), parse_constant=lambda _: None)


def decode(kind: type[T], line: str | bytes) -> T:
    """The dataclass in a line; raises ValueError if a value is missing or has another type.

    An unknown key is an error if `__pydantic_config__` of `kind` forbids it.
    """
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter  # its import is slow, and `encode` does not need it

        _ADAPTERS[kind] = TypeAdapter(kind)
    value: T = _ADAPTERS[kind].validate_json(line, strict=True)
    return value

"""What tests recorded themselves, as a certificate has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic.dataclasses import dataclass

from pytest_mnode.certificate.text import fit


@dataclass(frozen=True)
class Recorded:
    """What a test recorded by `record_property`; the name of what some ranks recorded has them."""

    name: str
    value: str | bool | int | float | None


def recorded_from(properties: Sequence[tuple[str, Any]]) -> tuple[Recorded, ...]:
    """Of a report, the tests' own; what JSON has no value for becomes text."""

    def plain(value: Any) -> Any:
        finite = isinstance(value, float) and math.isfinite(value)
        return value if finite or type(value) in (bool, int, type(None)) else fit(str(value))

    own = [(name, value) for name, value in properties if not name.startswith("mnode.")]
    return tuple(Recorded(fit(name), plain(value)) for name, value in own)

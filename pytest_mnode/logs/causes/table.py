"""The table of known causes, read from `known.toml`, which explains its format."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KnownCause:
    """One entry of the table. order: its place; smaller is weightier."""

    order: int
    name: str
    root: bool
    meaning: str
    remedy: str
    patterns: tuple[re.Pattern[str], ...]
    in_info: bool = False
    unless_other: bool = False


@cache
def known_causes() -> tuple[KnownCause, ...]:
    """All known causes, weightiest first."""
    data = tomllib.loads(Path(__file__).with_name("known.toml").read_text("utf-8"))
    fragments = data["fragments"]

    def compiled(pattern: str) -> re.Pattern[str]:
        return re.compile(re.sub(r"%(\w+)%", lambda found: fragments[found[1]], pattern))

    return tuple(
        KnownCause(
            order=order,
            name=entry["name"],
            root=entry.get("root", True),
            meaning=entry["meaning"],
            remedy=entry["remedy"],
            patterns=tuple(map(compiled, entry.get("patterns", ()))),
            in_info=entry.get("in_info", False),
            unless_other=entry.get("unless_other", False),
        )
        for order, entry in enumerate(data["causes"])
    )


@cache
def in_order_of_matching() -> tuple[KnownCause, ...]:
    """All known causes, with those last that match only a line without another cause."""
    return tuple(sorted(known_causes(), key=lambda cause: cause.unless_other))


def known_cause(name: str) -> KnownCause:
    """The entry of this name."""
    return next(cause for cause in known_causes() if cause.name == name)

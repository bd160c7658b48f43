"""Values that ranks recorded by name, as those of one test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mnode.outcome.describe import ranks_text

Recorded = Sequence[tuple[str, Any]]


def recorded_by_all(by_rank: Mapping[int, Recorded], ranks: int) -> list[tuple[str, Any]]:
    """Every value, in the order of the first rank that has it.

    What all ranks recorded alike keeps its name; else the name says which ranks did. ranks: how
    many there are, with those that died and so recorded nothing.
    """
    found: dict[tuple[str, str, int], tuple[Any, list[int]]] = {}
    for rank, recorded in by_rank.items():
        met: Counter[tuple[str, str]] = Counter()
        for name, value in recorded:
            met[name, repr(value)] += 1
            key = (name, repr(value), met[name, repr(value)])
            found.setdefault(key, (value, []))[1].append(rank)
    return [
        (name if len(those) == ranks else f"{name} ({ranks_text(those)})", value)
        for (name, _, _), (value, those) in found.items()
    ]

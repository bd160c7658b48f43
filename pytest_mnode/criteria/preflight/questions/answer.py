"""What an answer is made of, and the words that all questions share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pytest_mnode.criteria.preflight.facts import NodeSurvey
from pytest_mnode.measurement import Bound, Measurement

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class NotPromised:
    """The spec leaves this open, or there is nothing to ask here. why: in a few words."""

    why: str


Answer = tuple[Measurement, ...] | NotPromised
"""What was measured of one node for one question."""


def unknown(name: str, unit: str, bound: Bound, source: str, why: str) -> tuple[Measurement, ...]:
    """The answer where nothing could be read: inconclusive, with the reason."""
    return (Measurement(name, None, unit, bound, source, note=why),)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is asked of a node: a measurement without its value."""

    name: str
    unit: str
    bound: Bound
    source: str

    def unknown(self, why: str) -> Measurement:
        """Where nothing could be read."""
        return unknown(self.name, self.unit, self.bound, self.source, why)[0]

    def measured(self, value: float, culprit: str | None = None, note: str = "") -> Measurement:
        """With its value; culprit: to blame where the bound is broken."""
        return Measurement(self.name, value, self.unit, self.bound, self.source, culprit, note)


def silence(node: NodeSurvey) -> str:
    """Why a node's facts are missing, with its name."""
    return f"{node.name}: {node.problem or 'its survey gave no answer'}"


def listed(words: Sequence[str], most: int = 4) -> str:
    """Words joined by commas, and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


@dataclass(frozen=True, slots=True)
class Difference:
    """How a node's value stands to the others': the others' value, and who they are."""

    usual: str
    who: str


def difference(values: Mapping[str, str], node: str) -> Difference | None:
    """None where a node has what most have; where no value is the most frequent, all differ.

    values: by node name.
    """
    counted = Counter(values.values()).most_common()
    usual, count = counted[0]
    tied = len(counted) > 1 and counted[1][1] == count
    if not tied:
        if values[node] == usual:
            return None
        return Difference(usual, f"{count} of {len(values)} nodes")
    others = [name for name, value in values.items() if value != values[node]]
    return Difference(values[others[0]], f"{listed(others)}, and no majority says who is right")

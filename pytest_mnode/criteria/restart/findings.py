"""What a finding is: something that must not be, counted, or a figure with a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_mnode.wrong import Wrong

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

EVERY_STEP = "a resumed run does each step once, from the newest complete checkpoint on"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value with at most one bound."""

    name: str
    value: float | None
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    source: str = ""
    culprit: str | None = None
    note: str = ""

    def record(self, measure: Measure) -> None:
        """Have it judged with the test."""
        measure(
            self.name,
            self.value,
            self.unit,
            at_most=self.at_most,
            at_least=self.at_least,
            source=self.source,
            culprit=self.culprit,
            note=self.note,
        )


Finding = Wrong | Figure

"""What must not be at all: counted over all ranks, named, and recorded with nothing accepted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

SHOWN = 4


@dataclass(frozen=True, slots=True)
class Wrong:
    """How much of something is wrong, of which none is accepted.

    name: what is counted. count: None where that could not be found out, which is inconclusive.
    source: why none is accepted. culprit: ranks, nodes or settings to blame; None where none is.
    note: what a reader should know besides, such as why there is no count.
    """

    name: str
    count: int | None
    source: str
    culprit: str | None = None
    note: str = ""

    @property
    def right(self) -> bool:
        """Whether it was counted, and nothing is wrong."""
        return self.count == 0

    def record(self, measure: Measure) -> None:
        """Have it judged with the test."""
        measure(
            self.name,
            self.count,
            equals=0,
            source=self.source,
            culprit=self.culprit,
            note=self.note,
        )

    def __str__(self) -> str:
        count = "not counted" if self.count is None else str(self.count)
        return "; ".join(filter(None, [f"{self.name}: {count}", self.culprit, self.note]))


def listed(texts: Iterable[str], most: int = SHOWN) -> str:
    """The first of some texts, and how many more there are."""
    every = list(dict.fromkeys(texts))
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return "; ".join([*every[:most], *more])


def alike(said: Iterable[tuple[object, str]], ranks: int) -> list[str]:
    """Texts of who said what, such as "all 8 ranks: 3 of 4": those of whom the same holds together.

    said: (who, what), who being one of so many ranks.
    """
    by_what: dict[str, dict[str, None]] = {}
    for who, what in said:
        by_what.setdefault(what, {}).setdefault(str(who))
    return [f"{_together(list(who), ranks)}: {what}" for what, who in by_what.items()]


def _together(who: list[str], ranks: int) -> str:
    if 1 < len(who) == ranks:
        return f"all {ranks} ranks"
    more = f" and {len(who) - SHOWN} more" if len(who) > SHOWN else ""
    return ", ".join(who[:SHOWN]) + more


def found(name: str, source: str, culprits: Iterable[str], count: int | None = None) -> Wrong:
    """Something wrong for each of the culprits named, or `count` in all; right where none is."""
    texts = list(culprits)
    return Wrong(name, len(texts) if count is None else count, source, listed(texts) or None)

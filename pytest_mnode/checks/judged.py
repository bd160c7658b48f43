"""Helpers of the judges of checks: texts grouped by rank, and ranks unlike most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pytest_mnode.culprit import Culprit

T = TypeVar("T", bound=Hashable)
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class At:
    """The rank that reports, and its node."""

    rank: int
    node: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node}"

    def culprit(self, text: str, *, sure: bool = True) -> Culprit:
        """This rank as a culprit. text: follows its name. sure: False if others may be it too."""
        words = f"{self}{text}"
        found = Culprit.rank(words, self.node, self.rank)
        return found if sure else found.suspected


def texts_by_who(given: Iterable[tuple[At, str]], ranks: int) -> list[Culprit]:
    """Equal texts merged, such as "all 8 ranks: 3 of 4"; what all have is no node's.

    given: (who, text), where each who is one of `ranks` ranks.
    """
    together: dict[str, dict[At, None]] = {}
    for who, text in given:
        together.setdefault(text, {}).setdefault(who)
    found = []
    for text, ats in together.items():
        after = f": {text}" if text else ""
        if 1 < len(ats) == ranks:
            found.append(Culprit(f"all {ranks} ranks{after}"))
        else:
            words = f"{_first(list(ats), _SHOWN)}{after}"
            found.append(Culprit.merged(words, (at.culprit("") for at in ats)))
    return found


def unlike_most(
    values: Iterable[tuple[At, T]], others: str = ", most ranks {}"
) -> list[tuple[At, T, str]]:
    """Ranks unlike most: the rank, its value, and `others` formatted with the value of most.

    If no value is that of most ranks, all are returned, with "" as the text.
    """
    every = list(values)
    counted = Counter(value for _, value in every)
    if len(counted) < 2:
        return []
    [(most, number)] = counted.most_common(1)
    if 2 * number <= len(every):
        return [(at, value, "") for at, value in every]
    return [(at, value, others.format(most)) for at, value in every if value != most]


def numbered(what: str, numbers: Iterable[int], most: int = 5) -> str:
    """The first numbers of something, such as "sample 3" or "ranks 0, 1 and 7 more"."""
    every = list(numbers)
    return f"{what}{'' if len(every) == 1 else 's'} {_first(every, most)}"


def _first(every: Sequence[object], most: int) -> str:
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(map(str, every[:most])) + more

"""What each rank says of the groups it is in; gathered from all, and judged as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Expected = Mapping[str, Sequence[Sequence[int]]]
"""The groups there should be: by name, each the ranks of the world in the order of the group."""


@dataclass(frozen=True, slots=True)
class Membership:
    """One group as one of its ranks knows it.

    declared: ranks of the world, by their place in the group, as torch says. place: this rank's.
    coordinate: the same as a mesh says it; None for a group of no mesh. heard: which rank answered
    at each place; None where nobody was asked.
    """

    declared: tuple[int, ...]
    place: int
    coordinate: int | None = None
    heard: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class RankGroups:
    """One rank's groups, by name.

    host: the name that its host has for itself, read there. machine: what no two machines share,
    also where they are called the same.
    """

    rank: int
    node: str
    host: str
    groups: Mapping[str, Membership]
    machine: str = ""

    @property
    def where(self) -> str:
        return f"rank {self.rank} on {self.node}"


@dataclass(frozen=True, slots=True)
class Talked:
    """What came of one collective on one rank: how many values were wrong, and the first one."""

    group: str
    collective: str
    wrong: int
    first: str = ""


def agreed(gathered: Sequence[RankGroups], name: str) -> bool:
    """Whether all that are declared to be in a group of this name declare the same of it.

    Where they do not, a collective in it would wait for ranks that never come.
    """
    by_rank = {facts.rank: facts.groups.get(name) for facts in gathered}
    for rank, mine in by_rank.items():
        if mine is None:
            continue
        if not 0 <= mine.place < len(mine.declared) or mine.declared[mine.place] != rank:
            return False
        others = (by_rank.get(other) for other in mine.declared)
        if any(other is None or other.declared != mine.declared for other in others):
            return False
    return True

"""Which ranks take longer than is usual, all of them. Pure.

What is usual the faster half of the ranks says: from the median of all half of them could differ
unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_mnode.criteria.scaling.ranks import RankTime

Of = Callable[[RankTime], float]


@dataclass(frozen=True, slots=True)
class Slow:
    """Nodes all of whose ranks take longer, and ranks of other nodes. seconds: of the slowest.
    usual_s: of the others."""

    names: tuple[str, ...]
    seconds: float
    usual_s: float

    @property
    def who(self) -> str:
        *most, last = self.names
        return f"{', '.join(most)} and {last}" if most else last

    @property
    def several(self) -> bool:
        return len(self.names) > 1


def usual_s(ranks: Sequence[RankTime], of: Of) -> float:
    """The median of the faster half."""
    times = sorted(map(of, ranks))
    return median(times[: (len(times) + 1) // 2])


def uneven_s(ranks: Sequence[RankTime], of: Of) -> float:
    """By how much the slowest takes longer than is usual."""
    return max(map(of, ranks)) - usual_s(ranks, of)


def slow(ranks: Sequence[RankTime], of: Of, more_s: float, mostly: Of | None = None) -> Slow | None:
    """Who takes so much longer than is usual; None where nobody does.

    mostly: what a rank takes at least in most of its steps, where once in a while is not enough.
    """
    usual = usual_s(ranks, of)
    late = [rank for rank in ranks if (mostly or of)(rank) - usual >= more_s]
    if not late:
        return None
    on_time = {rank.node for rank in ranks if rank not in late}
    names = dict.fromkeys(
        f"rank {rank.rank} on {rank.node}" if rank.node in on_time else rank.node for rank in late
    )
    return Slow(tuple(names), max(map(of, late)), usual)

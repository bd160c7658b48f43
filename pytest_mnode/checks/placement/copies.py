"""Copies of memory near the accelerator, and of memory far from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pytest_mnode.checks.world_check import RowsOfRanks
from pytest_mnode.criteria.placement.near import BUFFERS, COPIES, COPY_RATIO
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import RankRows, Row
from pytest_mnode.intervals import Interval, interval_of
from pytest_mnode.measurement import Bound, Measurement, at_least, with_suspects
from pytest_mnode.skipping import promised

if TYPE_CHECKING:
    import torch

    from pytest_mnode.rank.world import World

FALSE_ALARM = 0.01
"""Share of clusters that just keep the promise of which any rank fails."""


@check("numa.copy_near_over_far")
class NearMemoryIsFasterThanFar(RowsOfRanks):
    """Is memory beside the accelerator faster than memory far from it?"""

    promise: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)]
    """Copies within the near NUMA node are at least this many times as fast as from the far one."""

    def read_rank(self, world: World, device: torch.device) -> Iterator[Row]:
        from pytest_mnode.measuring.copies import near_and_far

        for key in ("copy_size", "copy_repeats", "near"):
            promised(self.spec, f"numa.{key}")

        def undecided(ratios: Sequence[float]) -> bool:
            return self._decides(ratios, median(ratios), world.size) is None

        yield from near_and_far(world, device, self.spec.criteria.numa, undecided)

    @property
    def _bound(self) -> Bound:
        return at_least(self.promise).of("criteria.numa.copy_near_over_far", self.promise)

    def _decides(self, ratios: Sequence[float], ratio: float, ranks: int) -> bool | None:
        return self._bound.decides(*_interval(ratios, ratio, ranks))

    def rule(self, found: Sequence[Row]) -> list[Measurement]:
        """The lowest ratio of near to far rates against the promise, and the median rates."""
        ranks = RankRows.each(found)
        rates = {name: [one.value(name) for one in ranks] for name in COPIES}
        unread = [one.name for one in ranks if ratio_of(one) is None]
        unknown = [f"{one.name}: {one.why(COPIES[0])}" for one in ranks if one.name in unread]
        known = [
            (self._decides(_ratios(one), ratio, len(ranks)), ratio, one)
            for one in ranks
            if (ratio := ratio_of(one)) is not None
        ]
        # First those that surely break the promise, then those that may.
        known.sort(key=lambda one: ([False, None, True].index(one[0]), one[1]))
        keeps, ratio, worst = known[0] if known else (None, None, None)
        note = "; ".join(unknown[:4])
        if worst is not None and not note:
            note = f"{worst.name}: {worst.value(BUFFERS) or ''}"
        slow = [one.name for keeps, _, one in known if keeps is False]
        return [
            Measurement(
                "copy near over far, of the rank with least",
                None if unknown and keeps is not False else ratio,
                "",
                self._bound,
                "numa.copy_near_over_far",
                with_suspects(Culprit.merged(worst.name, slow), unread) if worst else None,
                note,
                interval=_interval(_ratios(worst), ratio, len(ranks)) if worst and ratio else None,
                false_alarm=FALSE_ALARM if worst and _ratios(worst) else None,
            ),
            *(
                Measurement(f"{name}, median of ranks", median(measured), "GB/s")
                for name in COPIES
                if (measured := [rate for rate in rates[name] if rate is not None])
            ),
        ]


def ratio_of(rank: RankRows) -> float | None:
    """Near rate divided by far rate; None if one of them was not measured."""
    near, far = (rank.value(name) for name in COPIES[:2])
    return near / far if near and far else None


def _ratios(rank: RankRows) -> list[Any]:
    return [one.value for one in rank.of(COPY_RATIO)]


def _interval(ratios: Sequence[float], ratio: float, ranks: int) -> tuple[float, float]:
    """The interval of a rank's ratio; the ratio itself if there are no repeats to tell."""
    found = interval_of(ratios, 1 - 2 * FALSE_ALARM / ranks, trimmed=False)
    found = (found or Interval(ratio, ratio)).including(ratio)
    return found.low, found.high

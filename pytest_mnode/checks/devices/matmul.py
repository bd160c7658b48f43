"""Products of matrices on each rank's device: right, and as fast as the others'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_mnode.checks.world_check import ComparedRates
from pytest_mnode.criteria.devices import MOST_NAMED, judge_rates, rank_with
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import Row
from pytest_mnode.measurement import Measurement, all_of
from pytest_mnode.measuring.naming import named_rank
from pytest_mnode.measuring.rank_rates import Comparison
from pytest_mnode.spec.devices import MatmulPromise

if TYPE_CHECKING:
    import torch

    from pytest_mnode.rank.world import World

LARGEST_CHECKED = 2048
"""Largest size of a checked product: a check costs the host as much as the device gains."""
_WRONG = ", wrong rows"
Wrong = tuple[str, int, Mapping[str, int | None]]
"""Data type, size, and wrong rows by rank, from `results_of_ranks.wrong_products`."""


@check("devices.matmul")
class EveryRankMultipliesAsFastAsTheOthers(ComparedRates):
    """Are every rank's matrix products correct, and as fast as the others'?"""

    promise: MatmulPromise
    """Products of matrices, on the rank's device."""
    compared_only = ComparedRates.compared_only | {
        "at_least_tflops",
        "slowed_at_most_fraction",
        "at_least_sm_clock_mhz",
    }

    @property
    def comparisons(self) -> int:
        return len(self.promise.dtypes)

    def measure(self, world: World, device: torch.device) -> Iterator[Wrong | Comparison]:
        from pytest_mnode.measuring.devices import compare_matmul
        from pytest_mnode.measuring.results_of_ranks import wrong_products

        size, family = min(self.promise.size, LARGEST_CHECKED), self.family
        for dtype in self.promise.dtypes:
            yield dtype, size, wrong_products(size, dtype, world, device)
            yield compare_matmul(self.promise, dtype, world, device, comparisons=family)

    def rule(self, found: Wrong | Comparison) -> list[Measurement]:
        return judge_rates(found) if isinstance(found, Comparison) else judge_products(*found)

    def to_rows(self, found: Wrong | Comparison) -> Iterator[Row]:
        if isinstance(found, Comparison):
            yield from found.to_rows()
            return
        dtype, _, wrong = found
        for name, count in wrong.items():
            one = Culprit.of(name)
            [node], [rank] = one.nodes, one.parts.ranks
            yield Row(metric=f"{dtype}{_WRONG}", value=count, node=node, rank=rank)

    def floor(self, name: str) -> float | None:
        """In GFLOP/s."""
        floors: Mapping[Any, float] = self.promise.at_least_tflops
        tflops = floors.get(name.removeprefix("matmul "))
        return None if tflops is None else 1e3 * tflops

    def from_rows(self, rows: Sequence[Row]) -> Iterator[Any]:
        size = min(self.promise.size, LARGEST_CHECKED)
        for dtype in self.promise.dtypes:
            counts = (one for one in rows if one.metric == f"{dtype}{_WRONG}")
            yield dtype, size, {named_rank(x.node, x.rank or 0): x.value for x in counts}
        yield from super().from_rows(rows)


def judge_products(dtype: str, size: int, wrong: Mapping[str, int | None]) -> list[Measurement]:
    """Whether products are right. wrong: wrong rows by rank, from `wrong_products`."""
    bad = [rank_with(rank, f"({count})") for rank, count in wrong.items() if count]
    every = all_of(bad, MOST_NAMED, ", ")
    failed = [rank for rank, count in wrong.items() if count is None]
    return [
        Measurement.none_allowed(
            f"matmul {dtype}, wrong rows",
            [every] if every else [],
            f"whole numbers, {size} × {size}, exact in {dtype}",
            count=sum(count or 0 for count in wrong.values()),
            unsure=f"could not be computed by {', '.join(failed)}" if failed else "",
            unread=map(Culprit.of, failed),
        )
    ]

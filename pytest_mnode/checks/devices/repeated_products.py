"""Thousands of small products, compared with those of other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.criteria.devices import MOST_NAMED, rank_with
from pytest_mnode.detection import smallest_share_wrong
from pytest_mnode.evidence.check import check
from pytest_mnode.measurement import Measurement, all_of, equals, listed, with_suspects
from pytest_mnode.spec.devices import RepeatedProductsPromise

if TYPE_CHECKING:
    import torch

    from pytest_mnode.measuring.repeated_products import RepeatedProducts
    from pytest_mnode.rank.world import World

RULE_OF_THREE = 3.0
"""n right calls exclude a larger share of wrong ones than this divided by n, with 95 %. Source:
Hanley and Lippman-Hand, JAMA 249, 1983."""


@check("devices.repeated_products")
class EveryRankComputesTheSameProducts(WorldCheck):
    """Are thousands of matrix products bit-identical on all ranks, and if not, which differ?"""

    promise: RepeatedProductsPromise
    """Thousands of small products, on the rank's device, compared with those of other ranks."""
    fault = "wrong_products:{node}:4000"

    @property
    def duration_s(self) -> float:
        return (self.promise.duration_s or 0.0) * len(self.promise.dtypes)

    def measure(self, world: World, device: torch.device) -> Iterator[RepeatedProducts]:
        from pytest_mnode.measuring.repeated_products import compare_products

        for dtype in self.promise.dtypes:
            yield compare_products(self.promise, dtype, world, device)

    def rule(self, found: RepeatedProducts) -> list[Measurement]:
        return judge_repeated(found)


def judge_repeated(found: RepeatedProducts) -> list[Measurement]:
    """Whether all ranks computed the same products, and which ranks did not."""
    count = sum(found.wrong.values()) + found.disputed
    culprits = [
        rank_with(name, f"({bad} of {found.products})") for name, bad in found.wrong.items()
    ]
    note = f"{found.products} products of {found.size} × {found.size} on each rank"
    note += f" in {found.seconds:.3g} s"
    if not count and found.products:
        note += f"; excludes more than 1 wrong in {found.products / RULE_OF_THREE:.0f} with 95 %"
    if found.alone:
        note += f"; compared with itself, as no other is of its kind: {listed(found.alone)}"
    return [
        Measurement(
            f"repeated products {found.dtype}, wrong",
            None if found.failed and not count else count,
            "",
            equals(0),
            "products of one seed are equal bit by bit on devices of one kind",
            with_suspects(all_of([*culprits, *found.unresolved], MOST_NAMED), found.failed),
            f"could not be computed by {listed(found.failed)}" if found.failed else note,
            detection=smallest_share_wrong(found.products),
        )
    ]

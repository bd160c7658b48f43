"""Is what each rank's device multiplies right?"""

from __future__ import annotations

import torch

from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.ranks import by_rank
from pytest_mnode.rank.world import World


def wrong_rows(size: int, dtype: str, device: torch.device, seed: int) -> int:
    """Rows of a product that did not come out right on a device; NaN is wrong.

    Factors are -1, 0 and 1, few enough of them that every sum is a whole number that the dtype
    holds exactly; the product is checked by Freivalds' method, A(Bx) = (AB)x in float64 with random
    signs x, which no single wrong value can pass.
    """
    generator = torch.Generator().manual_seed(seed)
    part = min(0.5, (1 << 5) / size**0.5 / 2)

    def factor() -> torch.Tensor:
        signs = torch.randint(0, 2, (size, size), generator=generator) * 2 - 1
        there = torch.rand(size, size, generator=generator) < part
        made: torch.Tensor = (signs * there).to(torch.float64)
        return made

    a, b = factor(), factor()
    signs = (torch.randint(0, 2, (size, 4), generator=generator) * 2 - 1).to(torch.float64)
    kind: torch.dtype = getattr(torch, dtype)
    product = torch.mm(a.to(device, kind), b.to(device, kind)).to("cpu", torch.float64)
    right = a @ (b @ signs)
    return int((~((product @ signs) == right).all(dim=1)).sum())


def wrong_products(
    size: int, dtype: str, world: World, device: torch.device
) -> dict[str, int | None]:
    """By rank, the rows of one product that are wrong; None where it could not be computed.

    All ranks call this.
    """
    try:
        mine = float(wrong_rows(size, dtype, device, world.rank))
    except RuntimeError:
        mine = -1.0
    return {
        rank_name(world, rank): None if count < 0 else int(count)
        for rank, [count] in enumerate(by_rank([mine], device))
    }

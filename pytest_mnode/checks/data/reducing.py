"""Metrics over all ranks: sums and counts are reduced, and divided once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from pytest_mnode.checks.data.facts import At, Counted, Reduced
from pytest_mnode.checks.data.metrics import judge_count, judge_mean
from pytest_mnode.measuring.agree import gathered
from pytest_mnode.rank.world import World
from pytest_mnode.wrong import Wrong


def sum_over_ranks(count: int, device: torch.device, group: Any = None) -> int:
    """The sum of whole numbers of all ranks, exact in int64. All ranks call this."""
    total = torch.tensor([count], dtype=torch.int64, device=device)
    dist.all_reduce(total, group=group)
    return int(total)


def mean_over_ranks(
    values: Sequence[float] | torch.Tensor, device: torch.device, group: Any = None
) -> float | None:
    """The mean of all values of all ranks, in float64; None where there are none. All call this.

    Ranks may have unequally many: the sum and the number are reduced, not each rank's mean.
    """
    mine = torch.as_tensor(values, dtype=torch.float64, device=device).flatten()
    total = mine.sum().reshape(1)
    dist.all_reduce(total, group=group)
    number = sum_over_ranks(mine.numel(), device, group)
    return float(total) / number if number else None


def mean(label: str, values: Sequence[float], result: float | None, world: World) -> Wrong:
    """Is `result` on every rank the mean of the values of all? All ranks call this."""
    return judge_mean(
        label, gathered(Reduced(At(world.rank, world.node), tuple(map(float, values)), result))
    )


def count(label: str, own: int, result: int | None, world: World) -> Wrong:
    """Is `result` on every rank the sum of all `own`, exactly? All ranks call this."""
    return judge_count(label, gathered(Counted(At(world.rank, world.node), own, result)))

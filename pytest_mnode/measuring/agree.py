"""What every rank knows of every rank: numbers, or values of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def by_rank(numbers: Sequence[float], device: torch.device) -> list[list[float]]:
    """The `numbers` of each rank, by rank, the same on all; all give equally many, one at least.

    Returns when every rank has called it, so it is a barrier as well. Whole numbers are exact up
    to 2^53.
    """
    if not numbers:
        raise ValueError("no numbers: ranks that exchange nothing do not wait for each other")
    mine = torch.tensor(list(numbers), dtype=torch.float64, device=device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return [numbers_of_one.tolist() for numbers_of_one in every]


def gathered(value: T) -> tuple[T, ...]:
    """The value of each rank, by rank, the same on all: whatever can be pickled. All call this.

    Over the default process group, whatever groups there are besides.
    """
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return tuple(every)

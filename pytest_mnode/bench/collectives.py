"""The collectives that can be measured: how to prepare, run and check each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from pytest_mnode.spec.wire import Collective

DTYPE = torch.float32
_PERIOD = 509
"""A prime, so that a chunk that landed elsewhere shows. Sums stay exact (below 2^24) up to 5,000
ranks."""


class Prepared(Protocol):
    """A collective on buffers of one size. All ranks call the same methods in the same order."""

    def fill(self) -> None:
        """Set the inputs to values that differ by rank and by position."""

    def run(self) -> object:
        """Call the collective once, on whatever the buffers hold."""

    def wrong(self) -> int:
        """After `fill` and one `run`: how many values on this rank are not what they should be."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the table: a collective by torch.distributed's name, and how to prepare it."""

    collective: Collective
    prepare: Callable[[int, torch.device], Prepared]
    """From the size in bytes as nccl-tests means it, and the device of the buffers."""


class AllReduce:
    """Sum over all ranks, in place. The size is what each rank holds."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        ranks = dist.get_world_size()
        self._pattern = pattern(elements(size_bytes), device)
        self._buffer = torch.zeros_like(self._pattern)
        self._expected = self._pattern * ranks + ranks * (ranks + 1) / 2

    def fill(self) -> None:
        torch.add(self._pattern, dist.get_rank() + 1, out=self._buffer)

    def run(self) -> object:
        return dist.all_reduce(self._buffer)

    def wrong(self) -> int:
        return differing(self._buffer, self._expected)


class Broadcast:
    """From rank 0 to all. The size is what each rank ends up with."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        self._pattern = pattern(elements(size_bytes), device)
        self._buffer = torch.zeros_like(self._pattern)

    def fill(self) -> None:
        torch.add(self._pattern, dist.get_rank() + 1, out=self._buffer)

    def run(self) -> object:
        return dist.broadcast(self._buffer, src=0)

    def wrong(self) -> int:
        return differing(self._buffer, self._pattern + 1)


class AllGather:
    """Every rank's part to all. The size is the total of the parts."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        ranks = dist.get_world_size()
        self._pattern = pattern(max(1, elements(size_bytes) // ranks), device)
        self._part = torch.zeros_like(self._pattern)
        self._parts = [torch.zeros_like(self._pattern) for _ in range(ranks)]

    def fill(self) -> None:
        torch.add(self._pattern, dist.get_rank() + 1, out=self._part)
        for part in self._parts:
            part.zero_()

    def run(self) -> object:
        return dist.all_gather(self._parts, self._part)

    def wrong(self) -> int:
        return sum(
            differing(part, self._pattern + rank + 1) for rank, part in enumerate(self._parts)
        )


ALL_REDUCE = Measured(Collective.ALL_REDUCE, AllReduce)
BROADCAST = Measured(Collective.BROADCAST, Broadcast)
ALL_GATHER = Measured(Collective.ALL_GATHER, AllGather)


def elements(size_bytes: int) -> int:
    """How many values of `DTYPE` make up `size_bytes`. Raises ValueError for less than one."""
    if size_bytes < DTYPE.itemsize:
        raise ValueError(f"size_bytes={size_bytes} holds no {DTYPE} of {DTYPE.itemsize} bytes")
    return size_bytes // DTYPE.itemsize


def pattern(length: int, device: torch.device) -> torch.Tensor:
    """0, 1, … 508, 0, 1, … of `length` values."""
    return torch.arange(length, device=device).remainder_(_PERIOD).to(DTYPE)


def differing(values: torch.Tensor, expected: torch.Tensor) -> int:
    """How many of `values` are not exactly as expected; NaN is not."""
    return int((values != expected).sum())

"""The collectives that can be measured: how to prepare, run and check each of them.

Sizes are nccl-tests' (doc/PERFORMANCE.md): of all-reduce, broadcast and send-recv what one rank
holds; of all-gather, reduce-scatter and all-to-all the total of n equal parts, rounded down to
whole values in each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from pytest_mnode.measuring.patterns import DTYPE, PIECES_BYTES, Copied, Summed, parts_of, spoil
from pytest_mnode.spec.bandwidth import Collective

Group = Any
"""A process group over all ranks of the default one; None is the default one."""


def _named(*names: str) -> Callable[..., object]:
    """A function of torch.distributed by the first of its names that this torch knows."""

    def call(*args: object, **kwargs: object) -> object:
        name = next(name for name in names if hasattr(dist, name))
        return getattr(dist, name)(*args, **kwargs)

    return call


all_gather_single = _named("all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = _named("reduce_scatter_single", "reduce_scatter_tensor")


class Prepared(Protocol):
    """A collective on buffers of one size. All ranks call the same methods in the same order."""

    def fill(self, turn: int = 0) -> None:
        """Set inputs to values that differ by rank, position and turn; spoil what is written to."""

    def run(self) -> object:
        """Call the collective once, on whatever the buffers hold."""

    def run_scratch(self) -> object:
        """The same, so that one `run` after it still has the inputs of `fill`."""

    def wrong(self) -> int:
        """After `fill` and one `run`: how many values on this rank are not what they should be."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A collective by torch.distributed's name, and how to prepare it.

    prepare: from the values of a part, the device of the buffers and the group. in_parts: whether
    the size is the total of n parts. whole_buffers, part_buffers: how many of the whole size and of
    a part each rank holds. redop, root: as nccl-tests' table has them.
    """

    collective: Collective
    prepare: Callable[[int, torch.device, Group], Prepared]
    in_parts: bool
    whole_buffers: int
    part_buffers: int
    redop: str = "none"
    root: int = -1
    in_place: bool = False

    def part(self, size_bytes: int, ranks: int) -> int:
        """Values of one part, nccl-tests' count: of the n-th of a size in parts, else of all of it.

        Raises ValueError for a size that leaves a part without a value.
        """
        parts = ranks if self.in_parts else 1
        if size_bytes < parts * DTYPE.itemsize:
            raise ValueError(
                f"{size_bytes} bytes hold no value of {DTYPE.itemsize} bytes"
                + (f" for each of {parts} ranks" if self.in_parts else "")
            )
        return size_bytes // DTYPE.itemsize // parts

    def moved_bytes(self, size_bytes: int, ranks: int) -> int:
        """The size in whole values and equal parts: what the bandwidths are of."""
        parts = ranks if self.in_parts else 1
        return self.part(size_bytes, ranks) * parts * DTYPE.itemsize

    def held_bytes(self, size_bytes: int, ranks: int) -> int:
        """Memory that a rank needs to measure this size, less what the backend takes."""
        part_bytes = self.part(size_bytes, ranks) * DTYPE.itemsize
        whole_bytes = self.moved_bytes(size_bytes, ranks)
        buffers = self.whole_buffers * whole_bytes + self.part_buffers * part_bytes
        return buffers + min(PIECES_BYTES, 4 * whole_bytes)


class AllReduce:
    """Sum over all ranks, in place."""

    def __init__(self, part: int, device: torch.device, group: Group = None) -> None:
        self._group = group
        self._values = Summed(dist.get_world_size(), part, device)
        self._buffer = torch.empty(part, dtype=DTYPE, device=device)
        self._scratch = torch.zeros_like(self._buffer)

    def fill(self, turn: int = 0) -> None:
        self._turn = turn
        self._values.fill(self._buffer, dist.get_rank(), turn)

    def run(self) -> object:
        return dist.all_reduce(self._buffer, group=self._group)

    def run_scratch(self) -> object:
        return dist.all_reduce(self._scratch, group=self._group)

    def wrong(self) -> int:
        return self._values.wrong(self._buffer, self._turn)


class Broadcast:
    """From rank 0 to all, in place."""

    def __init__(self, part: int, device: torch.device, group: Group = None) -> None:
        self._group = group
        self._values = Copied(part, device)
        self._buffer = torch.empty(part, dtype=DTYPE, device=device)
        self._scratch = torch.zeros_like(self._buffer)

    def fill(self, turn: int = 0) -> None:
        self._turn = turn
        self._values.fill(self._buffer, dist.get_rank(), turn)

    def run(self) -> object:
        return dist.broadcast(self._buffer, src=0, group=self._group)

    def run_scratch(self) -> object:
        return dist.broadcast(self._scratch, src=0, group=self._group)

    def wrong(self) -> int:
        return self._values.wrong(self._buffer, 0, self._turn)


class AllGather:
    """Every rank's part to all."""

    def __init__(self, part: int, device: torch.device, group: Group = None) -> None:
        self._group, self._part = group, part
        self._values = Copied(part, device)
        self._input = torch.empty(part, dtype=DTYPE, device=device)
        self._output = torch.empty(part * dist.get_world_size(), dtype=DTYPE, device=device)

    def fill(self, turn: int = 0) -> None:
        self._turn = turn
        self._values.fill(self._input, dist.get_rank(), turn)
        spoil(self._output)

    def run(self) -> object:
        return all_gather_single(self._output, self._input, group=self._group)

    run_scratch = run

    def wrong(self) -> int:
        parts = parts_of(self._output, self._part)
        return sum(self._values.wrong(part, rank, self._turn) for rank, part in enumerate(parts))


class ReduceScatter:
    """Sum over all ranks, of which each gets its part."""

    def __init__(self, part: int, device: torch.device, group: Group = None) -> None:
        self._group, self._part = group, part
        ranks = dist.get_world_size()
        self._values = Summed(ranks, part, device)
        self._input = torch.empty(part * ranks, dtype=DTYPE, device=device)
        self._output = torch.empty(part, dtype=DTYPE, device=device)

    def fill(self, turn: int = 0) -> None:
        self._turn = turn
        for receiver, part in enumerate(parts_of(self._input, self._part)):
            self._values.fill(part, dist.get_rank(), phase=receiver + turn)
        spoil(self._output)

    def run(self) -> object:
        return reduce_scatter_single(self._output, self._input, group=self._group)

    run_scratch = run

    def wrong(self) -> int:
        return self._values.wrong(self._output, phase=dist.get_rank() + self._turn)


class AllToAll:
    """A part from every rank to every rank."""

    def __init__(self, part: int, device: torch.device, group: Group = None) -> None:
        self._group, self._part = group, part
        self._values = Copied(part, device)
        self._input = torch.empty(part * dist.get_world_size(), dtype=DTYPE, device=device)
        self._output = torch.empty_like(self._input)

    def fill(self, turn: int = 0) -> None:
        self._turn = turn
        for receiver, part in enumerate(parts_of(self._input, self._part)):
            self._values.fill(part, dist.get_rank() * dist.get_world_size() + receiver, turn)
        spoil(self._output)

    def run(self) -> object:
        return dist.all_to_all_single(self._output, self._input, group=self._group)

    run_scratch = run

    def wrong(self) -> int:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        parts = parts_of(self._output, self._part)
        return sum(
            self._values.wrong(part, s * ranks + rank, self._turn) for s, part in enumerate(parts)
        )


class SendRecv:
    """Each rank sends to the next and receives from the one before, as nccl-tests' sendrecv."""

    def __init__(self, part: int, device: torch.device, group: Group = None) -> None:
        self._group = group
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self._next, self._before = (rank + 1) % ranks, (rank - 1) % ranks
        self._values = Copied(part, device)
        self._input = torch.empty(part, dtype=DTYPE, device=device)
        self._output = torch.empty_like(self._input)

    def fill(self, turn: int = 0) -> None:
        self._turn = turn
        self._values.fill(self._input, dist.get_rank(), turn)
        spoil(self._output)

    def run(self) -> object:
        # The receive goes first: gloo announces it on the connection that the data takes, so that
        # it would wait behind them, and the two directions would take turns.
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, self._output, self._before, group=self._group),
                dist.P2POp(dist.isend, self._input, self._next, group=self._group),
            ]
        )
        return [work.wait() for work in works]

    run_scratch = run

    def wrong(self) -> int:
        return self._values.wrong(self._output, self._before, self._turn)


ALL_REDUCE = Measured(Collective.ALL_REDUCE, AllReduce, False, 2, 0, redop="sum", in_place=True)
BROADCAST = Measured(Collective.BROADCAST, Broadcast, False, 2, 0, root=0, in_place=True)
ALL_GATHER = Measured(Collective.ALL_GATHER, AllGather, True, 1, 1)
REDUCE_SCATTER = Measured(Collective.REDUCE_SCATTER, ReduceScatter, True, 1, 1, redop="sum")
ALL_TO_ALL = Measured(Collective.ALL_TO_ALL, AllToAll, True, 2, 0)
SEND_RECV = Measured(Collective.SEND_RECV, SendRecv, False, 2, 0)

_ALL = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, SEND_RECV)
COLLECTIVES = {measured.collective.value: measured for measured in _ALL}
"""Every collective that can be measured, by torch.distributed's name."""

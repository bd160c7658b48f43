"""The collectives that can be measured: how to prepare, run and check each of them.

Sizes are as in nccl-tests (doc/PERFORMANCE.md): for all-reduce, broadcast and send-recv the bytes
that one rank holds; for all-gather, reduce-scatter and all-to-all the total of n equal parts, each
rounded down to whole values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from pytest_mnode.measuring.patterns import DTYPE, PIECES_BYTES, STALE, Copied, Summed, parts_of
from pytest_mnode.measuring.ranks import send_and_receive
from pytest_mnode.spec.bandwidth import Collective

Sent = list[tuple[torch.Tensor, int]]
"""Parts of a buffer, each with the number of its message."""
Received = list[tuple[torch.Tensor, int, int]]
"""Parts of a buffer, each with its message number and its sender (0 for a sum: all ranks send)."""
Group = Any
"""A process group of all ranks; None is the default group."""


def _named(*names: str) -> Callable[..., object]:
    """A function of torch.distributed, under the first of its names that this torch version has."""

    def call(*args: object, **kwargs: object) -> object:
        name = next(name for name in names if hasattr(dist, name))
        return getattr(dist, name)(*args, **kwargs)

    return call


all_gather_single = _named("all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = _named("reduce_scatter_single", "reduce_scatter_tensor")


class Prepared:
    """A collective on buffers of one size. All ranks call the same methods in the same order.

    A part is the values that one rank sends to another as a whole. Subclasses set `_input` and
    `_output` (the same tensor if the collective works in place), and know what this rank sends and
    should receive: views of the buffers, each with the number of its message.
    """

    step = 1
    """How many ranks further an exchange goes."""
    _input: torch.Tensor
    _output: torch.Tensor

    def __init__(self, part: int, device: torch.device, group: Group = None) -> None:
        self._group, self._part = group, part
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._turn = 0
        self._values = self._pattern(device)
        self._allocate(functools.partial(torch.empty, dtype=DTYPE, device=device))

    def _pattern(self, device: torch.device) -> Copied | Summed:
        return Copied(self._ranks, self._part, device)

    def _allocate(self, empty: Callable[[int], torch.Tensor]) -> None:
        raise NotImplementedError

    def _sent(self) -> Sent:
        return [(self._input, self._rank)]

    def _received(self) -> Received:
        raise NotImplementedError

    def run(self) -> object:
        """Call the collective once, on the present contents of the buffers."""
        raise NotImplementedError

    def run_scratch(self) -> object:
        """Call the collective once, and leave the inputs of `fill` to one later `run`."""
        return self.run()

    def fill(self, turn: int = 0) -> None:
        """Set inputs to values that differ by rank, position and turn, and the output to STALE."""
        self._turn = turn
        for values, number in self._sent():
            self._values.fill(values, number, turn)
        if self._output is not self._input:
            self._output.fill_(STALE)

    def wrong(self) -> torch.Tensor:
        """Number of wrong values on this rank, after `fill` and one `run`.

        Shape (ranks + 1,), int64: by the rank that sent them; the last is for unknown senders.
        """
        return torch.stack(
            [
                self._values.wrong(values, number, self._turn, sender)
                for values, number, sender in self._received()
            ]
        ).sum(0)

    def spot_buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the input and output of `run_scratch`, of shape (parts, values per part)."""
        return self._input.view(-1, self._part), self._output.view(-1, self._part)


class _InPlace(Prepared):
    def _allocate(self, empty: Callable[[int], torch.Tensor]) -> None:
        self._input = self._output = empty(self._part)
        self._scratch = torch.zeros_like(self._input)

    def _call(self, buffer: torch.Tensor) -> object:
        raise NotImplementedError

    def run(self) -> object:
        return self._call(self._input)

    def run_scratch(self) -> object:
        return self._call(self._scratch)

    def _received(self) -> Received:
        return [(self._output, 0, 0)]

    def spot_buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        scratch = self._scratch.view(1, -1)
        return scratch, scratch


class AllReduce(_InPlace):
    """Sum over all ranks, in place."""

    def _pattern(self, device: torch.device) -> Summed:
        return Summed(self._ranks, self._part, device)

    def _call(self, buffer: torch.Tensor) -> object:
        return dist.all_reduce(buffer, group=self._group)


class Broadcast(_InPlace):
    """Broadcast from rank 0 to all ranks, in place."""

    def _call(self, buffer: torch.Tensor) -> object:
        return dist.broadcast(buffer, src=0, group=self._group)


class AllGather(Prepared):
    """Every rank's part, gathered on all ranks."""

    def _allocate(self, empty: Callable[[int], torch.Tensor]) -> None:
        self._input, self._output = empty(self._part), empty(self._part * self._ranks)

    def run(self) -> object:
        return all_gather_single(self._output, self._input, group=self._group)

    def _received(self) -> Received:
        parts = enumerate(parts_of(self._output, self._part))
        return [(part, sender, sender) for sender, part in parts]


class ReduceScatter(Prepared):
    """Sum over all ranks, of which each rank receives one part."""

    def _pattern(self, device: torch.device) -> Summed:
        return Summed(self._ranks, self._part, device)

    def _allocate(self, empty: Callable[[int], torch.Tensor]) -> None:
        self._input, self._output = empty(self._part * self._ranks), empty(self._part)

    def run(self) -> object:
        return reduce_scatter_single(self._output, self._input, group=self._group)

    def fill(self, turn: int = 0) -> None:
        super().fill(turn)
        for receiver, part in enumerate(parts_of(self._input, self._part)):
            self._values.fill(part, self._rank, turn + receiver)

    def _sent(self) -> Sent:
        return []  # `fill` writes each part in its receiver's phase

    def wrong(self) -> torch.Tensor:
        return self._values.wrong(self._output, 0, self._turn + self._rank)


class AllToAll(Prepared):
    """A part from every rank to every rank."""

    def _allocate(self, empty: Callable[[int], torch.Tensor]) -> None:
        self._input, self._output = (empty(self._part * self._ranks) for _ in range(2))

    def run(self) -> object:
        return dist.all_to_all_single(self._output, self._input, group=self._group)

    def _sent(self) -> Sent:
        parts = enumerate(parts_of(self._input, self._part))
        return [(part, self._rank * self._ranks + receiver) for receiver, part in parts]

    def _received(self) -> Received:
        parts = enumerate(parts_of(self._output, self._part))
        return [(part, sender * self._ranks + self._rank, sender) for sender, part in parts]


class SendRecv(Prepared):
    """Each rank sends to the next and receives from the previous, as in nccl-tests' sendrecv."""

    def __init__(
        self, part: int, device: torch.device, group: Group = None, *, step: int = 1
    ) -> None:
        self.step = step
        super().__init__(part, device, group)

    def _allocate(self, empty: Callable[[int], torch.Tensor]) -> None:
        self._input, self._output = empty(self._part), empty(self._part)
        self._before = (self._rank - self.step) % self._ranks

    def run(self) -> None:
        following = (self._rank + self.step) % self._ranks
        send_and_receive(self._input, following, self._output, self._before, self._group)

    def _received(self) -> Received:
        return [(self._output, self._before, self._before)]


@dataclass(frozen=True, slots=True)
class Measured:
    """A collective by torch.distributed's name, and how to prepare it.

    prepare: called with the values per part, the buffers' device and the group. in_parts: whether
    the size is the total of n parts. whole_buffers, part_buffers: how many buffers of the whole
    size, and of one part, each rank holds. redop, root: as in the table of nccl-tests.
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
        """Values per part, the count of nccl-tests: of 1/n of the size if in_parts, else of all.

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
        """The size rounded down to whole values and equal parts; bandwidths are based on it."""
        parts = ranks if self.in_parts else 1
        return self.part(size_bytes, ranks) * parts * DTYPE.itemsize

    def held_bytes(self, size_bytes: int, ranks: int) -> int:
        """Memory that a rank needs to measure this size, without the backend's own buffers."""
        part_bytes = self.part(size_bytes, ranks) * DTYPE.itemsize
        whole_bytes = self.moved_bytes(size_bytes, ranks)
        buffers = self.whole_buffers * whole_bytes + self.part_buffers * part_bytes
        return buffers + min(PIECES_BYTES, 4 * whole_bytes)


ALL_REDUCE = Measured(Collective.ALL_REDUCE, AllReduce, False, 2, 0, redop="sum", in_place=True)
BROADCAST = Measured(Collective.BROADCAST, Broadcast, False, 2, 0, root=0, in_place=True)
ALL_GATHER = Measured(Collective.ALL_GATHER, AllGather, True, 1, 1)
REDUCE_SCATTER = Measured(Collective.REDUCE_SCATTER, ReduceScatter, True, 1, 1, redop="sum")
ALL_TO_ALL = Measured(Collective.ALL_TO_ALL, AllToAll, True, 2, 0)
SEND_RECV = Measured(Collective.SEND_RECV, SendRecv, False, 2, 0)

_ALL = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, SEND_RECV)
COLLECTIVES = {measured.collective.value: measured for measured in _ALL}
"""Every collective that can be measured, by torch.distributed's name."""


def send_recv_by_rails(ranks_per_node: int) -> Measured:
    """Each rank's exchange with the ranks of its place on the next node and the one before."""
    prepare = functools.partial(SendRecv, step=ranks_per_node)
    return replace(SEND_RECV, prepare=prepare)

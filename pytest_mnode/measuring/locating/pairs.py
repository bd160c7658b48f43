"""Transfers between pairs of nodes, in rounds in which all ranks take part."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pytest_mnode.measuring.locating.rounds import Reading, Round
from pytest_mnode.measuring.ranks import by_rank
from pytest_mnode.rank.world import World

_CHUNK_S = 0.005
_MOST_CHUNKS = 12
_LEAST_CHUNKS = 4
_COUNTS = range(1, _MOST_CHUNKS + 1)
"""Valid numbers of wrong chunks; any other number was itself corrupted on its way to this rank."""
_ENOUGH_S = 0.1
"""After this time a sender ends early, so that a slow link does not delay the others."""
_SMALLEST_BYTES = 64 << 10
_LARGEST_BYTES = 256 << 20
_CHECKED_BYTES = 4 << 20
"""If chunks are larger, only the last two are checked, because checking takes time."""


def chunk_bytes(line_rate_mbits_s: float) -> int:
    """Bytes that the line carries in 5 ms, from 64 KiB to 256 MiB."""
    return int(min(_LARGEST_BYTES, max(_SMALLEST_BYTES, line_rate_mbits_s * 1e6 / 8 * _CHUNK_S)))


def payload_mbits_s(arrived_s: Sequence[float], size_bytes: int) -> float:
    """Rate of chunks that arrived at these times, one after another; 0 for fewer than two chunks.

    The first third is not counted: it connects the pair and uses up a shaper's burst, which lasts
    10 ms at the line rate.
    """
    skipped = max(1, len(arrived_s) // 3)
    if len(arrived_s) <= skipped:
        return 0.0
    taken_s = arrived_s[-1] - arrived_s[skipped - 1]
    return (len(arrived_s) - skipped) * size_bytes * 8 / taken_s / 1e6 if taken_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Rails:
    """Assignment of ranks to NICs: the local ranks of a node are spread evenly over its NICs."""

    world: World
    count: int
    nics_per_node: int = 1

    @classmethod
    def of(cls, world: World, nics_per_node: int) -> Rails:
        """As many rails as local ranks can use; one if the ranks cannot be spread evenly."""
        count = min(nics_per_node, world.local_size)
        return cls(world, count if world.local_size % count == 0 else 1, nics_per_node)

    @property
    def nics_each(self) -> int:
        """Number of NICs that the rank of a rail uses; the rail must carry as much as that many."""
        return max(1, self.nics_per_node // self.world.local_size)

    def rank(self, node: int, rail: int) -> int:
        """The rank that measures `rail` on `node`: the first of the ranks that use its NIC. That
        rank measures the rail of NVLink too, which is counted on from those of NICs."""
        return node * self.world.local_size + rail % self.count * (
            self.world.local_size // self.count
        )

    def peers(self, step: Round) -> tuple[int | None, int | None]:
        """The rank that this one sends to, and the one it receives from; at most one is set."""
        target = source = None
        for flow in step.flows:
            for rail in flow.rails:
                sender, receiver = self.rank(flow.sender, rail), self.rank(flow.receiver, rail)
                if sender == self.world.rank:
                    target = receiver
                elif receiver == self.world.rank:
                    source = sender
        return target, source


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """Readings of a round; the same on every rank. spent_s: by the clock of rank 0."""

    readings: tuple[Reading, ...]
    spent_s: float


class Pairs:
    """Runner of rounds on the default process group. All ranks call the same methods."""

    def __init__(self, rails: Rails, size_bytes: int, device: torch.device) -> None:
        self._rails = rails
        self._size_bytes = size_bytes
        self._device = device
        # With two buffers, the next chunk is on its way while this rank waits for one.
        self._chunks = [torch.zeros(size_bytes, dtype=torch.uint8, device=device) for _ in "ab"]
        self._started_s = time.monotonic()

    def measure(self, step: Round) -> MeasuredRound:
        """Run a round. All ranks wait for its end, so that the next has the fabric to itself."""
        target, source = self._rails.peers(step)
        rate, wrong = 0.0, 0
        if target is not None:
            self._send(target)
        elif source is not None:
            arrived_s, wrong = self._arrivals_s(source)
            rate = payload_mbits_s(arrived_s, self._size_bytes)
        spent_s = time.monotonic() - self._started_s
        every = by_rank([rate, spent_s, wrong], self._device)
        readings = []
        for flow in step.flows:
            for rail in flow.rails:
                mbits_s, _, changed = every[self._rails.rank(flow.receiver, rail)]
                ends = flow.sender, flow.receiver
                readings.append(Reading(*ends, rail, mbits_s, step.alone, changed in _COUNTS))
        return MeasuredRound(tuple(readings), every[0][1])

    def day(self) -> int:
        """Days since 1970 by the clock of rank 0, the same on all ranks."""
        return int(by_rank([time.time() // 86400], self._device)[0][0])

    def _send(self, target: int) -> None:
        """Send chunks; the first byte of a chunk is 1 if the next one is the last."""
        started_s = time.perf_counter()
        pending: list[Transfer] = []
        ends = False
        for number in range(1, _MOST_CHUNKS + 1):
            if len(pending) == len(self._chunks):
                pending.pop(0).finish()
            was_last, late = ends, time.perf_counter() - started_s > _ENOUGH_S
            ends = number == _MOST_CHUNKS - 1 or (late and number >= _LEAST_CHUNKS - 1)
            chunk = self._chunks[number % 2]
            chunk[0] = int(ends)
            pending.append(Transfer(dist.isend, chunk, target))
            if was_last:
                break
        for transfer in pending:
            transfer.finish()

    def _arrivals_s(self, source: int) -> tuple[list[float], int]:
        """Arrival times of the chunks, and how many were corrupted; all their data are zeros."""
        arrived_s: list[float] = []
        wrong = 0
        pending = [Transfer(dist.irecv, chunk, source) for chunk in self._chunks]
        ends = False
        while pending:
            pending.pop(0).finish()
            arrived_s.append(time.perf_counter())
            chunk = self._chunks[(len(arrived_s) - 1) % 2]
            was_last, ends = ends, bool(chunk[0])
            checked = self._size_bytes <= _CHECKED_BYTES or was_last or ends
            if checked and chunk[1:].any():
                wrong += 1
                chunk.zero_()  # this buffer is also used for sending later
            if not was_last and not ends:
                pending.append(Transfer(dist.irecv, chunk, source))
        return arrived_s, wrong


class Transfer:
    """A chunk on its way; the next may be started before it is finished."""

    def __init__(self, operation: Any, chunk: torch.Tensor, peer: int) -> None:
        self._works: list[Any] = dist.batch_isend_irecv([dist.P2POp(operation, chunk, peer)])
        self._event: Any = None
        if chunk.device.type != "cpu":
            # Here only the device's stream waits, not this thread; an event marks the chunk's end.
            for work in self._works:
                work.wait()
            self._event = torch.Event(chunk.device)
            self._event.record()

    def finish(self) -> None:
        """Wait until the chunk is transferred, up to the timeout of the process group."""
        if self._event is not None:
            self._event.synchronize()
            return
        for work in self._works:
            work.wait()

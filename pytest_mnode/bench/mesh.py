"""Every rank sends to every other, and each message must arrive as it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_mnode.bench.agree import by_rank
from pytest_mnode.world.contract import World

_VALUES = 1024


@dataclass(frozen=True, slots=True)
class Exchange:
    """Which messages came wrong, as (sender, receiver); the same on every rank."""

    world: World
    wrong: tuple[tuple[int, int], ...]

    @property
    def right(self) -> int:
        """How many of the size·(size-1) messages came as they were sent."""
        return self.world.size * (self.world.size - 1) - len(self.wrong)

    @property
    def culprit(self) -> str | None:
        """The rank that all wrong messages have in common, else the messages; None without any."""
        if not self.wrong:
            return None
        common = set(self.wrong[0]).intersection(*self.wrong)
        if len(self.wrong) > 1 and len(common) == 1:
            return self._place(common.pop())
        return ", ".join(f"{self._place(a)} → {self._place(b)}" for a, b in self.wrong[:4])

    def _place(self, rank: int) -> str:
        return f"rank {rank} on {self.world.nodes[rank // self.world.local_size]}"


def exchange(world: World, device: torch.device) -> Exchange:
    """Send 8 KiB between every two ranks, both ways. All ranks call this.

    In round d rank r sends to r+d and receives from r-d, so that no rank waits for another's turn.
    Raises ValueError for one rank.
    """
    if world.size < 2:
        raise ValueError("one rank has nobody to meet; give two nodes or more")
    wrong = [0] * world.size
    for distance in range(1, world.size):
        receiver = (world.rank + distance) % world.size
        sender = (world.rank - distance) % world.size
        sent = message(world.rank, receiver, world.size, device)
        received = torch.zeros_like(sent)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, receiver), dist.P2POp(dist.irecv, received, sender)]
        ):
            work.wait()
        expected = message(sender, world.rank, world.size, device)
        wrong[sender] = int(not torch.equal(received, expected))
    return Exchange(world, wrong_messages(by_rank(wrong, device)))


def message(sender: int, receiver: int, ranks: int, device: torch.device) -> torch.Tensor:
    """Values that no other pair sends at any position."""
    first = (sender * ranks + receiver) * _VALUES
    return torch.arange(first, first + _VALUES, device=device)


def wrong_messages(by_receiver: Sequence[Sequence[float]]) -> tuple[tuple[int, int], ...]:
    """(sender, receiver) of every flag that is set in the row of a receiver."""
    return tuple(
        (sender, receiver)
        for receiver, flags in enumerate(by_receiver)
        for sender, flag in enumerate(flags)
        if flag
    )

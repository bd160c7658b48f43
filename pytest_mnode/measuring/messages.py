"""Messages between every two ranks, and sums over all: values must arrive as they were sent."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_mnode.culprit import Culprit
from pytest_mnode.measuring.checked_calls import votes
from pytest_mnode.measuring.naming import culprit_of, culprit_of_messages
from pytest_mnode.measuring.ranks import by_rank, send_and_receive
from pytest_mnode.rank.world import World

_VALUES = 1024
_SUMMED_VALUES = 4096
_TURNS = 12
"""Number of sums per dtype, and least number of messages per rank; each has new values."""
_PERIOD, _STEP = 101, 31
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8")


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange. wrong: (sender, receiver) of wrong messages; the same on every rank."""

    world: World
    wrong: tuple[tuple[int, int], ...]

    @property
    def right(self) -> int:
        """Number of the size·(size-1) messages that arrived as they were sent."""
        return self.world.size * (self.world.size - 1) - len(self.wrong)

    @property
    def culprit(self) -> Culprit | None:
        """The rank common to all wrong messages, else those messages; None if none is wrong."""
        return culprit_of_messages(self.world, self.wrong)


@dataclass(frozen=True, slots=True)
class Sums:
    """Wrong values in sums; the same on every rank.

    by_rank: number of wrong values in each rank's results; None if the backend cannot sum this
    dtype. senders: ranks whose values are wrong, as far as known.
    """

    world: World
    by_rank: Sequence[int] | None
    senders: Sequence[int] = ()

    @property
    def wrong(self) -> int | None:
        return None if self.by_rank is None else sum(self.by_rank)

    @property
    def culprit(self) -> Culprit | None:
        """The rank whose result, or whose values in all results, are wrong; None if none is."""
        receivers = [rank for rank, count in enumerate(self.by_rank or ()) if count]
        return culprit_of(self.world, receivers, self.senders)


def sums(world: World, dtype: str, device: torch.device) -> Sums:
    """Sum small whole numbers, exact in every dtype, several times over. All ranks call this.

    At each position only one rank gives a value and all others give 0, so that a wrong value of the
    sum names its sender.
    """
    positions = torch.arange(_SUMMED_VALUES, device=device)
    wrong = torch.zeros(world.size + 1, dtype=torch.int64, device=device)
    for turn in range(_TURNS):
        senders = (positions + turn) % world.size
        expected = ((positions + _STEP * turn) % _PERIOD + 1).to(getattr(torch, dtype))
        total = expected * (senders == world.rank)
        try:
            dist.all_reduce(total)
        except RuntimeError as error:
            if turn or "nvalid scalar type" not in str(error):
                raise
            return Sums(world, None)  # raised before anything was sent
        wrong += torch.bincount(senders[total != expected], minlength=world.size + 1)
    return Sums(world, *votes(wrong, device))


def exchange(world: World, device: torch.device) -> Exchange:
    """Send 8 KiB between every two ranks, both ways; repeatedly if ranks are few. All call this.

    In round d rank r sends to r+d and receives from r-d, so that no rank waits for another rank's
    turn. Raises ValueError for one rank.
    """
    if world.size < 2:
        raise ValueError("one rank has no partner to exchange with; give two nodes or more")
    wrong = [0] * world.size
    rounds = math.ceil(_TURNS / (world.size - 1))
    for turn, distance in itertools.product(range(rounds), range(1, world.size)):
        receiver = (world.rank + distance) % world.size
        sender = (world.rank - distance) % world.size
        sent = message(world.rank, receiver, world.size, device, turn)
        received = torch.zeros_like(sent)
        send_and_receive(sent, receiver, received, sender)
        expected = message(sender, world.rank, world.size, device, turn)
        wrong[sender] |= not torch.equal(received, expected)
    return Exchange(world, wrong_messages(by_rank(wrong, device)))


def message(
    sender: int, receiver: int, ranks: int, device: torch.device, turn: int = 0
) -> torch.Tensor:
    """Values that no other pair, and no other turn of this pair, sends at any position."""
    first = ((turn * ranks + sender) * ranks + receiver) * _VALUES
    return torch.arange(first, first + _VALUES, device=device)


def wrong_messages(by_receiver: Sequence[Sequence[float]]) -> tuple[tuple[int, int], ...]:
    """(sender, receiver) of every flag that is set in `by_receiver`."""
    return tuple(
        (sender, receiver)
        for receiver, flags in enumerate(by_receiver)
        for sender, flag in enumerate(flags)
        if flag
    )

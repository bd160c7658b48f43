"""Pairs of nodes, one at a time, alone on the fabric."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from pytest_mnode.bench.agree import by_rank
from pytest_mnode.bench.timing import finish
from pytest_mnode.world.contract import World

_MESSAGES = 3
_MESSAGE_S = 0.02
_SMALLEST_BYTES = 256 << 10
_LARGEST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class PairRate:
    """How fast `sender` sent to `receiver` when nothing else was sent, in Mbit/s of payload."""

    sender: str
    receiver: str
    mbits_s: float


def message_bytes(line_rate_mbits_s: float) -> int:
    """20 ms worth of the line, so that a burst that a shaper lets through is small beside it."""
    return int(min(_LARGEST_BYTES, max(_SMALLEST_BYTES, line_rate_mbits_s * 1e6 / 8 * _MESSAGE_S)))


def pair_rate(
    world: World, sender: str, receiver: str, size_bytes: int, device: torch.device
) -> PairRate:
    """Send three messages from the first rank of one node to that of another. All ranks call this.

    The receiver times the last two: the first one connects the pair and uses up a shaper's burst.
    """
    source, target = (world.nodes.index(node) * world.local_size for node in (sender, receiver))
    message = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    arrived_s = []
    for _ in range(_MESSAGES):
        if world.rank == source:
            dist.send(message, target)
        elif world.rank == target:
            dist.recv(message, source)
            finish(device)
            arrived_s.append(time.perf_counter())
    taken_s = arrived_s[-1] - arrived_s[0] if arrived_s else 0.0
    agreed_s = by_rank([taken_s], device)[target][0]
    return PairRate(sender, receiver, (_MESSAGES - 1) * size_bytes * 8 / agreed_s / 1e6)

"""Whether results are right on every rank, and whose values are wrong. All ranks call these."""

from __future__ import annotations

import torch
import torch.distributed as dist

from pytest_mnode.measuring.collectives import Measured, Prepared
from pytest_mnode.measuring.limits import CHECKED_CALLS
from pytest_mnode.measuring.ranks import by_rank


def wrong_here(prepared: Prepared, turn: int) -> torch.Tensor:
    """How many values of this rank are not right after one call, as `Prepared.wrong` counts."""
    prepared.fill(turn)
    prepared.run()
    return prepared.wrong()


def votes(mine: torch.Tensor, device: torch.device) -> tuple[list[int], tuple[int, ...]]:
    """Of every rank how many values are wrong, and who sent them, as far as known. All call this.

    mine: of this rank, as `Prepared.wrong` counts. Where collectives are wrong, this exchange may
    be: a rank's own counts stay. Of many senders the first and the last are named.
    """
    known = mine[:-1].nonzero().flatten().tolist() or [-1]
    own = [int(mine.sum()), known[0], known[-1]]
    every = [[int(n) for n in row] for row in by_rank(own, device)]
    every[dist.get_rank()] = own
    senders = {sender for count, *ends in every if count for sender in ends if sender >= 0}
    return [count for count, *_ in every], tuple(sorted(senders))


def wrong_values(
    measured: Measured, size_bytes: int, device: torch.device
) -> tuple[list[int], tuple[int, ...]]:
    """How many values of each rank are wrong in CHECKED_CALLS calls, and who sent them.

    All ranks call this.
    """
    part = measured.part(size_bytes, dist.get_world_size())
    prepared = measured.prepare(part, device, None)
    mine = wrong_here(prepared, 0)
    for turn in range(1, CHECKED_CALLS):
        mine += wrong_here(prepared, turn)
    return votes(mine, device)

"""Over which NICs a rank sends: each local rank alone on its node in turn, by the counters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from pytest_mnode.machine.counters import grown_by, sent_so_far
from pytest_mnode.measuring.agree import by_rank
from pytest_mnode.rank.world import World

_BYTES = 2 << 20
_CARRIES = 0.1
"""Part of what was sent that a NIC must have carried to count: far above what idles along."""


def nics_of_this_rank(world: World, device: torch.device) -> tuple[tuple[str, ...] | None, str]:
    """Interfaces or RDMA ports that carry what this rank sends; or None, and why. All call this.

    The world has two nodes or more. Each rank sends 2 MiB to the same local rank of the next
    node, with its node to itself.
    """
    carried: dict[str, int] = {}
    for turn in range(world.local_size):
        by_rank([0.0], device)  # everybody is here, and whoever sent before has been heard
        before = sent_so_far()
        if turn == world.local_rank:
            _pass_on(world, device)
        by_rank([0.0], device)
        if turn == world.local_rank:
            carried = grown_by(before, sent_so_far())
    return carriers(carried)


def carriers(carried: Mapping[str, int]) -> tuple[tuple[str, ...] | None, str]:
    """Names of those that carried a good part of it, RDMA ports before interfaces; or why not."""
    busy = sorted(name for name, count in carried.items() if count >= _CARRIES * _BYTES)
    ports = tuple(name for name in busy if ":" in name)
    nics = ports or tuple(name for name in busy if name != "lo")
    if nics:
        return nics, ""
    return None, "only lo carried it" if busy else "no counter shows what it sent"


def _pass_on(world: World, device: torch.device) -> None:
    sent = torch.zeros(_BYTES, dtype=torch.uint8, device=device)
    got = torch.empty_like(sent)
    to = (world.rank + world.local_size) % world.size
    of = (world.rank - world.local_size) % world.size
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, got, of)]
    ):
        work.wait()

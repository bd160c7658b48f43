"""Bytes that the NICs of nodes and of single ranks sent, by their counters; all ranks take part."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from pytest_mnode.machine.counters import increases, sent_so_far
from pytest_mnode.measuring.ranks import barrier, gathered, send_and_receive, share_a_machine
from pytest_mnode.measuring.traffic import SentByNode, lower_devices_here
from pytest_mnode.rank.world import World

_LOOPBACK = "lo"
_SENT_BYTES = 2 << 20
_CARRIED_FRACTION = 0.1
"""Share of the sent bytes that a NIC must have carried to count: far above idle traffic."""


class Counted:
    """Context manager that reads byte counters before and after its body; all ranks enter it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> Counted:
        self._before = sent_so_far()
        return self

    def __exit__(self, *_: object) -> None:
        self._after = sent_so_far()

    def by_node(self, least_bytes: Sequence[int]) -> tuple[SentByNode, ...]:
        """Bytes sent, by node in the world's order, as `least_bytes` is. All ranks call this."""
        sent = Counter[str]()
        for name, count in increases(self._before, self._after).items():
            if name != _LOOPBACK or self._world.local_size == 1:
                sent[name.partition(":")[0]] += count  # ports of one device together
        first_ranks = gathered((dict(sent), lower_devices_here()))[:: self._world.local_size]
        return tuple(
            SentByNode(node, counts, least, lower_devices)
            for node, (counts, lower_devices), least in zip(
                self._world.nodes, first_ranks, least_bytes, strict=True
            )
        )


def settling_s(world: World) -> float:
    """Seconds until sent bytes are counted: mlx5 reads its card every 10 ms, bnxt every second.

    Interfaces of nodes that share a machine count immediately. All ranks call this.
    """
    return 0.05 if share_a_machine(world) else 1.2


def nics_of_this_rank(world: World, device: torch.device) -> tuple[tuple[str, ...] | None, str]:
    """Interfaces or RDMA ports that carry this rank's traffic; or None, and why. All call this.

    The world needs two nodes or more. Each rank sends 2 MiB to the same local rank of the next
    node while no other rank of its node sends.
    """
    carried: dict[str, int] = {}
    settle_s = settling_s(world)
    barrier(device)
    time.sleep(settle_s)
    for turn in range(world.local_size):
        barrier(device)  # earlier messages have arrived and are counted
        before = sent_so_far()
        if turn == world.local_rank:
            _send_to_next_node(world, device)
        barrier(device)
        if turn == world.local_rank:
            time.sleep(settle_s)
            carried = increases(before, sent_so_far())
    return carriers(carried)


def nics_by_rank(world: World, device: torch.device) -> list[tuple[str, ...] | None]:
    """`nics_of_this_rank` of each rank, the same on all; None if not known."""
    nics, _ = nics_of_this_rank(world, device)
    return list(gathered(nics))


def carriers(carried: Mapping[str, int]) -> tuple[tuple[str, ...] | None, str]:
    """RDMA ports, else interfaces, that carried at least a tenth of it; or None, and why."""
    busy = sorted(
        name for name, count in carried.items() if count >= _CARRIED_FRACTION * _SENT_BYTES
    )
    ports = tuple(name for name in busy if ":" in name)
    nics = ports or tuple(name for name in busy if name != "lo")
    if nics:
        return nics, ""
    return None, "only lo carried its traffic" if busy else "no byte counter shows its traffic"


def _send_to_next_node(world: World, device: torch.device) -> None:
    sent = torch.zeros(_SENT_BYTES, dtype=torch.uint8, device=device)
    received = torch.empty_like(sent)
    following = (world.rank + world.local_size) % world.size
    before = (world.rank - world.local_size) % world.size
    send_and_receive(sent, following, received, before)

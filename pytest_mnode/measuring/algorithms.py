"""Algorithms that each backend's collectives are measured with, and the communicators for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.measuring.collectives import Group
from pytest_mnode.measuring.ranks import finish
from pytest_mnode.spec.bandwidth import Collective

RING, DEFAULT, RAILS = "ring", "default", "rails"
_VARIABLE = "NCCL_ALGO"
_HAS_ALGORITHMS = frozenset(
    {Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST}
)
_GLOO = {
    Collective.ALL_REDUCE: (RING, "gloo's all_reduce is a ring"),
    Collective.ALL_GATHER: (RING, "gloo's all_gather is a ring"),
    Collective.REDUCE_SCATTER: (DEFAULT, "gloo's reduce_scatter is an all_reduce inside"),
    Collective.ALL_TO_ALL: (DEFAULT, "gloo sends directly from each rank to each"),
    Collective.BROADCAST: (DEFAULT, "gloo's broadcast is a tree from rank 0"),
}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm to measure a collective with.

    name: "ring" if a ring moves the data, "rails" if ranks exchange with those of their place on
    neighbouring nodes, so that each NIC carries its rank's, else "default". pinned: whether NCCL is
    told to use it. physical: whether the line rate of a node's NICs limits busbw; a hierarchical
    algorithm, or a switch that reduces, sends fewer bytes. note: an explanation for readers.
    """

    name: str
    pinned: bool
    physical: bool
    note: str

    @property
    def label(self) -> str:
        """What tells its measurements from those of the other algorithm of a collective."""
        if self.name == RAILS:
            return ", equal local ranks"
        return ", ring pinned" if self.pinned else ""


def algorithms_of(
    collective: Collective, backend: str, ranks_per_node: int, chosen: str = ""
) -> tuple[Algorithm, ...]:
    """Algorithms to measure a collective with: on NCCL a pinned ring and the default, else one; of
    an exchange between several ranks a node to the next rank, and by rails.

    chosen: the ranks' NCCL_ALGO, which the default communicator follows; empty if it is not set.
    """
    rails = Algorithm(RAILS, False, True, "rank to the rank of its place on the next node")
    if collective is Collective.SEND_RECV:
        next_rank = Algorithm(DEFAULT, False, True, "rank to next rank")
        return (next_rank, rails) if ranks_per_node > 1 else (next_rank,)
    if backend == "gloo" and collective in _GLOO:
        name, note = _GLOO[collective]
        return (Algorithm(name, False, True, note),)
    if collective not in _HAS_ALGORITHMS:
        return (Algorithm(DEFAULT, False, True, "rank to rank, without an algorithm to choose"),)
    if backend != "nccl":
        alone = ranks_per_node == 1 and collective is not Collective.ALL_REDUCE
        return (Algorithm(DEFAULT, False, alone, f"as {backend} chooses"),)
    what_users_get = f"{_VARIABLE}={chosen}" if chosen else "as NCCL chooses"
    return (
        Algorithm(RING, True, True, f"{_VARIABLE}=RING"),
        Algorithm(DEFAULT, False, False, what_users_get),
    )


@contextmanager
def fresh_group(algorithm: Algorithm, device: torch.device) -> Iterator[Group]:
    """Yield a new process group of all ranks, with connections of its own; destroy it afterwards.

    New connections have new ports, from which the switches choose their paths (ECMP).

    NCCL reads NCCL_ALGO when it creates a communicator, at the first collective or earlier, so the
    variable is set until then and restored. All ranks enter and leave together.
    """
    group = None
    try:
        with pytest.MonkeyPatch.context() as patch:
            if algorithm.pinned:
                patch.setenv(_VARIABLE, "RING")
            group = dist.new_group()
            dist.all_reduce(torch.zeros(1, device=device), group=group)
            finish(device)
        yield group
        finish(device)
    finally:
        if group is not None:
            dist.destroy_process_group(group)

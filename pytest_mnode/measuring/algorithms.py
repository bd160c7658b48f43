"""Which algorithms a backend's collective is measured with, and how a ring is pinned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from pytest_mnode.measuring.collectives import Group
from pytest_mnode.measuring.ranks import finish
from pytest_mnode.spec.bandwidth import Collective

RING, DEFAULT = "ring", "default"
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
    Collective.SEND_RECV: (DEFAULT, "rank to next rank"),
}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way in which a collective is measured.

    name: "ring" where a ring moves the data, else "default". pinned: whether that takes a
    communicator of its own. physical: whether no more can leave a node than its NICs carry for
    each byte of busbw; a hierarchy, or a switch that adds up, may do with less. note: for readers.
    """

    name: str
    pinned: bool
    physical: bool
    note: str


def algorithms_of(
    collective: Collective, backend: str, ranks_per_node: int, chosen: str | None = None
) -> tuple[Algorithm, ...]:
    """How to measure a collective: on NCCL over a pinned ring and by default, else once.

    chosen: NCCL_ALGO as the ranks have it, which the default communicator follows.
    """
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
def group_for(algorithm: Algorithm, device: torch.device) -> Iterator[Group]:
    """The process group to measure with: None, the default one, unless a ring is to be pinned.

    NCCL reads NCCL_ALGO when a communicator is made, at its first collective or before: the
    variable is set until then and put back. All ranks enter and leave together.
    """
    if not algorithm.pinned:
        yield None
        return
    group = None
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(_VARIABLE, "RING")
            group = dist.new_group()
            dist.all_reduce(torch.zeros(1, device=device), group=group)
            finish(device)
        yield group
        finish(device)
    finally:
        if group is not None:
            dist.destroy_process_group(group)


def chosen_algorithm() -> str | None:
    """NCCL_ALGO as this rank has it."""
    return os.environ.get(_VARIABLE) or None

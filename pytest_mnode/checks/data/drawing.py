"""What a rank's generators of random numbers draw: python, numpy, torch, device, loader workers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from pytest_mnode.checks.data.facts import At, Draws
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.randomness import random_states, set_random_states

_NUMBERS = 16
_DROPPED = 256
"""Values of a dropout mask: two are equal by chance in one of 2^256."""


def draw(
    world: World,
    device: torch.device,
    *,
    workers: int = 0,
    worker_init: Callable[[int], None] | None = None,
) -> Draws:
    """Draw from every generator of this rank, and put their states back as they were.

    workers, worker_init: of a DataLoader like the one in use, whose workers draw as well.
    """
    states = random_states(device)
    try:
        digests = _own(device)
        if workers:
            loader: DataLoader[Any] = DataLoader(
                _Drawing(workers),
                batch_size=1,
                num_workers=workers,
                worker_init_fn=worker_init,
                collate_fn=_first,
            )
            for number, drawn in enumerate(loader):
                digests |= {f"worker {number}: {kind}": one for kind, one in drawn.items()}
    finally:
        set_random_states(states, device)
    return Draws(At(world.rank, world.node), digests)


def _own(device: torch.device) -> dict[str, str]:
    """Digests of what this process draws next."""
    found = {
        "python": repr([random.random() for _ in range(_NUMBERS)]),
        "numpy": repr(np.random.rand(_NUMBERS).tolist()),
        "torch": repr(torch.rand(_NUMBERS).tolist()),
    }
    if device.type != "cpu":
        found[device.type] = repr(torch.rand(_NUMBERS, device=device).tolist())
    mask = torch.nn.functional.dropout(torch.ones(_DROPPED, device=device), 0.5)
    found["dropout"] = repr(mask.ne(0).tolist())
    return {kind: hashlib.sha256(text.encode()).hexdigest()[:16] for kind, text in found.items()}


class _Drawing(Dataset[dict[str, str]]):
    """One sample a worker: what that worker draws."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, str]:
        return _own(torch.device("cpu"))


def _first(samples: list[dict[str, str]]) -> dict[str, str]:
    return samples[0]

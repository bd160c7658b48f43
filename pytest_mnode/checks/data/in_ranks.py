"""Functions for ranks: read samples, reduce metrics, draw random numbers, record gradients.

All ranks call these functions; the results of each rank are gathered on all of them.
"""

from __future__ import annotations

import hashlib
import operator
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from pytest_mnode.checks.data.batches import Step, judge_batches
from pytest_mnode.checks.data.digests import Digests
from pytest_mnode.checks.data.metrics import Reduced, judge_count, judge_mean
from pytest_mnode.checks.data.readings import Reading, SamplerFacts
from pytest_mnode.checks.judged import At
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.ranks import gathered
from pytest_mnode.processes import last_line
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.randomness import random_states, set_random_states

_NUMBERS = 16
_DROPPED = 256
"""Values of a dropout mask: two masks are equal by chance once in 2^256."""


class Indices(Dataset[int]):
    """A data set whose samples are their own indices, 0 … size-1."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def sharded(
    samples: int,
    world: World,
    *,
    batch: int,
    workers: int = 0,
    drop_last: bool = False,
    seed: int = 0,
) -> tuple[DataLoader[Any], DistributedSampler[int]]:
    """A loader of indices with torch's DistributedSampler over the ranks of a world."""
    indices = Indices(samples)
    sampler: DistributedSampler[int] = DistributedSampler(
        indices, world.size, world.rank, shuffle=True, seed=seed, drop_last=drop_last
    )
    return DataLoader(indices, batch, sampler=sampler, num_workers=workers), sampler


def shard_of(
    samples: int, ranks: int, rank: int, *, seed: int = 0, epoch: int = 0, drop_last: bool = False
) -> list[int]:
    """Samples that DistributedSampler gives a rank: every `ranks`-th one of a permutation.

    The permutation is torch's for seed + epoch, cut or repeated from its beginning to equal shards.
    """
    generator = torch.Generator().manual_seed(seed + epoch)
    order: list[int] = torch.randperm(samples, generator=generator).tolist()
    if drop_last:
        order = order[: samples - samples % ranks]
    else:
        length = samples + -samples % ranks
        order = (order * (length // max(1, samples) + 1))[:length]
    return order[rank::ranks]


_SOCKET_BYTES = 107
"""Of a socket's path (sun_path). A worker's has 32 more bytes than TMPDIR."""
_OPENS = "from multiprocessing.connection import Listener; Listener(family='AF_UNIX').close()"


def worker_socket_error() -> str:
    """Why a loader's worker could not open its socket below TMPDIR; "" if it could."""
    size = len(os.fsencode(tempfile.gettempdir()))
    if size + len("/pymp-xxxxxxxx/listener-xxxxxxxx") <= _SOCKET_BYTES:
        return ""
    # Some versions of Python use another directory then.
    done = subprocess.run(
        [sys.executable, "-c", _OPENS], capture_output=True, text=True, check=False, timeout=60
    )
    return f"{last_line(done.stderr)}; TMPDIR has {size} bytes" if done.returncode else ""


def _indices_in(batch: Any) -> list[int]:
    found = np.asarray(batch.tolist() if hasattr(batch, "tolist") else batch)
    if found.size and (found.ndim > 1 or found.dtype.kind not in "iu"):
        raise TypeError(
            f"a batch of {type(batch).__name__} is no list of indices; give indices=, a function "
            "that returns those of the samples in a batch"
        )
    return [int(index) for index in found.flat]


def read(
    batches: Iterable[Any],
    world: World,
    *,
    epoch: int = 0,
    sampler: object = None,
    indices: Callable[[Any], Iterable[int]] = _indices_in,
) -> tuple[Reading, ...]:
    """Read the batches of an epoch on every rank, and gather the samples read.

    batches: a loader, or a sampler's own indices. indices: the data set's indices in one batch; by
    default a batch is one index, or a list, array or tensor of them. sampler: its attributes
    (SamplerFacts) are recorded. Raises TypeError for indices that are not whole numbers.
    """
    came: list[int] = []
    for batch in batches:
        came += [batch] if isinstance(batch, int) else map(operator.index, indices(batch))
    facts = {one.name: getattr(sampler, one.name, None) for one in fields(SamplerFacts)}
    known = SamplerFacts(**{name: v for name, v in facts.items() if isinstance(v, int)})
    return gathered(Reading(At(world.rank, world.node), epoch, tuple(came), known))


def read_epochs(
    begin: Callable[[int], Iterable[Any]],
    epochs: int,
    world: World,
    *,
    sampler: object = None,
    indices: Callable[[Any], Iterable[int]] = _indices_in,
) -> list[tuple[Reading, ...]]:
    """Readings of epochs 0, 1, …; `begin` prepares one and returns its batches."""
    return [
        read(begin(epoch), world, epoch=epoch, sampler=sampler, indices=indices)
        for epoch in range(epochs)
    ]


def sum_over_ranks(count: int, device: torch.device) -> int:
    """The sum of whole numbers of all ranks, exact in int64."""
    total = torch.tensor([count], dtype=torch.int64, device=device)
    dist.all_reduce(total)
    return int(total)


def mean_over_ranks(values: Sequence[float] | torch.Tensor, device: torch.device) -> float | None:
    """The mean of all values of all ranks, in float64; None if there are none.

    Ranks may have unequally many: the sum and the number are reduced, not each rank's mean.
    """
    mine = torch.as_tensor(values, dtype=torch.float64, device=device).flatten()
    total = mine.sum().reshape(1)
    dist.all_reduce(total)
    number = sum_over_ranks(mine.numel(), device)
    return float(total) / number if number else None


def mean(label: str, values: Sequence[float], result: float | None, world: World) -> Measurement:
    """Judge whether `result` on every rank is the mean of the values of all ranks."""
    return judge_mean(
        label, gathered(Reduced(At(world.rank, world.node), tuple(map(float, values)), result))
    )


def count(label: str, own: int, result: int | None, world: World) -> Measurement:
    """Judge whether `result` on every rank is exactly the sum of all `own`."""
    return judge_count(label, gathered(Reduced(At(world.rank, world.node), (own,), result)))


def draw(
    world: World,
    device: torch.device,
    *,
    workers: int = 0,
    worker_init: Callable[[int], None] | None = None,
) -> Digests:
    """Draw from every generator of this rank, and restore the generators' states.

    workers, worker_init: of a DataLoader like the one in use, whose workers draw too.
    """
    states = random_states(device)
    try:
        digests = _own(device)
        if workers:
            loader: DataLoader[Any] = DataLoader(
                Indices(workers),
                batch_size=1,
                num_workers=workers,
                worker_init_fn=worker_init,
                collate_fn=_in_worker,
            )
            for number, drawn in enumerate(loader):
                digests |= {f"worker {number}: {kind}": one for kind, one in drawn.items()}
    finally:
        set_random_states(states, device)
    return Digests(At(world.rank, world.node), digests)


def _own(device: torch.device) -> dict[str, str]:
    """Digests of the next random numbers of this process."""
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


def _in_worker(_: list[int]) -> dict[str, str]:
    """Digests of a worker's draws, in place of a batch."""
    return _own(torch.device("cpu"))


class Ledger(nn.Module):
    """A model with one weight per sample, in which the loss `ledger(indices).mean()` is linear.

    Train it in place of a model, wrapped like it, with the loop under test; then call
    `global_batch`. The gradient at a sample's weight is that sample's part in the step.
    """

    def __init__(self, samples: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(samples, dtype=torch.float64, device=device))
        self._fed: list[int] = []
        self._steps: list[Step] = []

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Losses of samples, (batch,) of indices to (batch,) of float64."""
        self._fed += indices.tolist()
        return self.weight[indices.to(self.weight.device)]

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the gradient that each step of this optimiser takes."""
        optimizer.register_step_pre_hook(self._note)

    def _note(self, *_: Any) -> None:
        gradient = self.weight.grad
        weights = torch.zeros_like(self.weight) if gradient is None else gradient
        samples = weights.nonzero().flatten()
        self._steps.append(
            Step(samples.cpu().numpy(), weights[samples].cpu().numpy(), np.array(self._fed, int))
        )
        self._fed.clear()

    def global_batch(self, world: World, *, local: int, accumulation: int) -> list[Measurement]:
        """The samples of each step, judged over all ranks.

        local: samples of one rank's micro-batch. accumulation: micro-batches of a step.
        """
        seen = gathered((At(world.rank, world.node), self._steps))
        return judge_batches("optimiser", seen, local, accumulation)

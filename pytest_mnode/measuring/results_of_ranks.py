"""Correctness of what ranks compute: matrix products, and training steps compared bit by bit.

For the steps, every rank trains a small model of its own, without other ranks, and then those of
the next ranks, which are on other nodes, so that several ranks train each model and their digests
vote. Finally each rank trains its own model again, so that one with intermittent errors contradicts
itself.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_mnode.culprit import Culprit
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.ranks import by_rank, gathered
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job import JobConfig
from pytest_mnode.reference_job.model import train_alone
from pytest_mnode.spec.devices import TrainingStepPromise


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Digests of the models that a rank trained.

    kind: device and library versions; digests may differ between kinds. models: rank numbers of
    the models' owners, this rank first and last. why: why the rank could not train, else "".
    """

    name: str
    kind: str
    models: tuple[int, ...]
    digests: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class SameSteps:
    """Digests of all ranks, by rank; the same on every rank. steps: training steps per model."""

    rows: tuple[RankSteps, ...]
    steps: int

    @property
    def wrong(self) -> dict[str, int]:
        """By rank name, the number of its digests that a majority or its own rerun contradicts."""
        found: Counter[str] = Counter()
        every = self._votes
        for model, own in enumerate(self.rows):
            votes = every.get(model, {})
            usual, count = Counter(votes.values()).most_common(1)[0] if votes else ("", 0)
            if 2 * count > len(votes):
                found.update(name for name, digest in votes.items() if digest != usual)
                found.update([own.name] if own.digests and own.digests[-1] != usual else [])
            elif own.digests and own.digests[0] != own.digests[-1]:
                found.update([own.name])
        return dict(found)

    @property
    def unresolved(self) -> tuple[Culprit, ...]:
        """Ranks that disagree, where neither a majority nor another model shows which is wrong."""
        found, wrong = [], self.wrong
        for _, votes in sorted(self._votes.items()):
            count = max(Counter(votes.values()).values(), default=0)
            if 2 * count <= len(votes) and not votes.keys() & wrong.keys():
                found.append(Culprit.one_of(" or ".join(sorted(votes)), votes))
        return tuple(dict.fromkeys(found))

    @property
    def _votes(self) -> dict[int, dict[str, str]]:
        """By model, the first digest of each rank that trained it."""
        found: dict[int, dict[str, str]] = {}
        for row in self.rows:
            for model, digest in zip(row.models, row.digests, strict=False):
                found.setdefault(model, {}).setdefault(row.name, digest)
        return found


def repeated_steps(
    promise: TrainingStepPromise, world: World, device: torch.device, *, first: int = 0
) -> tuple[SameSteps, ...]:
    """`compare_steps` in turns until their number and duration are reached. All ranks call this.

    first: number of the first turn.
    """
    started, found = time.perf_counter(), list[SameSteps]()
    while True:
        found.append(compare_steps(promise, world, device, first + len(found)))
        taken = by_rank([time.perf_counter() - started], device)
        over = max(seconds for [seconds] in taken) >= (promise.duration_s or 0.0)
        if len(found) >= promise.turns and over:
            return tuple(found)


def compare_steps(
    promise: TrainingStepPromise, world: World, device: torch.device, turn: int = 0
) -> SameSteps:
    """Train on every rank and compare digests. All ranks call this.

    turn: each turn has other models, and other ranks that train the same one.
    """
    kinds = gathered(kind_of(device))
    models = models_of(world, kinds, promise.ranks, turn)
    digests: list[str] = []
    why = ""
    try:
        for model in models:
            seed = turn * world.size + model
            digests.append(train_alone(job_of(promise, seed), device))
    except (RuntimeError, MemoryError) as error:
        digests, why = [], str(error).partition("\n")[0]
    name = rank_name(world, world.rank)
    return SameSteps(
        gathered(RankSteps(name, kinds[world.rank], models, tuple(digests), why)), promise.steps
    )


def models_of(world: World, kinds: Sequence[str], ranks: int, turn: int = 0) -> tuple[int, ...]:
    """Owners of the models this rank trains: itself, the next ranks of its kind, itself again.

    The ranks form a ring in which neighbours are on different nodes if there are several nodes.
    ranks: maximum number of ranks that train each model. turn: in the next turn the partners are
    those that follow in the ring.
    """
    return models_of_all(world, kinds, ranks, turn)[world.rank]


def models_of_all(
    world: World, kinds: Sequence[str], ranks: int, turn: int = 0
) -> list[tuple[int, ...]]:
    """`models_of` of each rank."""
    found: dict[int, tuple[int, ...]] = {}
    for kind in dict.fromkeys(kinds):
        alike = [rank for rank, its_kind in enumerate(kinds) if its_kind == kind]
        alike.sort(key=lambda rank: (rank % world.local_size, rank))
        partners, others = min(ranks, len(alike)) - 1, len(alike) - 1
        away = [(turn * partners + i) % others + 1 for i in range(partners)]
        for place, own in enumerate(alike):
            following = (alike[(place + distance) % len(alike)] for distance in away)
            found[own] = (own, *following, own)
    return [found[rank] for rank in range(len(kinds))]


def job_of(promise: TrainingStepPromise, seed: int) -> JobConfig:
    """The reference job that a promise describes."""
    return JobConfig(
        "alone",  # no file is written
        seed=seed,
        context=promise.context,
        width=promise.width,
        heads=1 if promise.width % 64 else promise.width // 64,
        layers=promise.layers,
        dropout=0.0,
        samples=promise.steps * promise.batch,
        global_batch=promise.batch,
        steps=promise.steps,
        dtype=promise.dtype,
    )


def kind_of(device: torch.device) -> str:
    """Device and library versions, on which digests depend."""
    if device.type == "cpu":
        return (
            f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
        )
    name = torch.get_device_module(device).get_device_name(device)
    return f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def wrong_rows(size: int, dtype: str, device: torch.device, seed: int) -> int:
    """Number of wrong rows of a matrix product on a device; NaN is wrong.

    The factors' values are -1, 0 and 1, with so many zeros that the dtype holds every sum exactly.
    The product is checked by Freivalds' method, A(Bx) = (AB)x in float64 with random signs x, which
    detects every single wrong value.
    """
    generator = torch.Generator().manual_seed(seed)
    part = min(0.5, (1 << 5) / size**0.5 / 2)

    def factor() -> torch.Tensor:
        signs = torch.randint(0, 2, (size, size), generator=generator) * 2 - 1
        there = torch.rand(size, size, generator=generator) < part
        made: torch.Tensor = (signs * there).to(torch.float64)
        return made

    a, b = factor(), factor()
    signs = (torch.randint(0, 2, (size, 4), generator=generator) * 2 - 1).to(torch.float64)
    kind: torch.dtype = getattr(torch, dtype)
    product = torch.mm(a.to(device, kind), b.to(device, kind)).to("cpu", torch.float64)
    right = a @ (b @ signs)
    return int((~((product @ signs) == right).all(dim=1)).sum())


def wrong_products(
    size: int, dtype: str, world: World, device: torch.device, *, seed: int = 0
) -> dict[str, int | None]:
    """By rank name, the number of wrong rows of one product; None if it could not be computed.

    All ranks call this. seed: of rank 0; the next rank has the next.
    """
    try:
        mine = float(wrong_rows(size, dtype, device, seed + world.rank))
    except RuntimeError:
        mine = -1.0
    return {
        rank_name(world, rank): None if count < 0 else int(count)
        for rank, [count] in enumerate(by_rank([mine], device))
    }

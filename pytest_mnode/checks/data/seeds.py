"""Judges random numbers of new ranks. Called by the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_mnode.checks.data.digests import (
    SEED,
    Digests,
    judge_alike,
    judge_depends,
    judge_distinct,
    judge_reproduced,
)
from pytest_mnode.measurement import Measurement

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.rank.world import World


def seeds_of_two_runs(cluster: Cluster, *, workers: int, on_accelerator: bool) -> list[Measurement]:
    """Judge whether a run in new ranks draws the same on each rank, and no two ranks draw alike."""
    with cluster.world(fresh=True) as ranks:
        first = ranks.run(_drawn, SEED, workers, on_accelerator)
    with cluster.world(fresh=True) as ranks:
        again = ranks.run(_drawn, SEED, workers, on_accelerator)
        other = ranks.run(_drawn, SEED + 1, workers, on_accelerator)
    label = f"{len(first)} ranks with seed {SEED}"
    return [
        judge_distinct(label, first),
        judge_reproduced(label, first, again),
        judge_depends(label, first, other),
    ]


def one_seed_of_two_runs(
    cluster: Cluster, *, workers: int, on_accelerator: bool
) -> list[Measurement]:
    """Judge whether one seed gives all ranks the same numbers, and the same in new ranks.

    Nodes with other versions, CPUs or settings draw other numbers; ranks that shuffle one data set
    then read other shards.
    """
    runs = []
    for _ in range(2):
        with cluster.world(fresh=True) as ranks:
            runs.append(ranks.run(_drawn, SEED, workers, on_accelerator, own=False))
    label = f"{len(runs[0])} ranks with seed {SEED}"
    return [
        judge_alike(
            f"{label}: generators that draw other numbers than on most ranks",
            runs[0],
            "one seed gives the same numbers on every node",
            "draws",
        ),
        judge_reproduced(label, *runs),
    ]


def _drawn(
    seed: int, workers: int, on_accelerator: bool, own: bool = True, *, world: World
) -> Digests:
    """Seed this rank as a job does, and draw. own: with the rank in its seed."""
    import torch

    from pytest_mnode.checks.data.in_ranks import draw
    from pytest_mnode.reference_job import randomness

    device = torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    if on_accelerator and accelerator is not None and torch.accelerator.is_available():
        count = torch.accelerator.device_count()
        device = torch.device(accelerator.type, world.local_rank % count)
    randomness.seed_all(seed, world.rank if own else 0)
    return draw(world, device, workers=workers)

"""Runs parts of the reference job in warm ranks, for which no interpreter is started.

The controller drives these runs. Only the functions that run in ranks import torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_mnode.criteria.restart.comparing import Parameters
from pytest_mnode.errors import RankError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.config import ALGORITHM, JobConfig

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster

_LIMIT_S = 120.0


def killed_after(
    cluster: Cluster, config: JobConfig, nodes: Sequence[str], procs: int, step: int
) -> None:
    """Train to this step, then kill all ranks with SIGKILL. Raises RankError if the ranks fail."""
    world = cluster.world(nodes, procs)
    try:
        world.run(train, config, step, group=True, timeout=_LIMIT_S)
    except RankError as error:
        if "SIGKILL" not in str(error):
            raise
    finally:
        world.close()


def finished(
    cluster: Cluster, config: JobConfig, nodes: Sequence[str], procs: int
) -> Parameters | RankError:
    """Resume and train to the end; return the final parameters, or the error if ranks failed."""
    with cluster.world(nodes, procs) as world:
        try:
            return world.run(train, config, group=True, timeout=_LIMIT_S)[0]  # type: ignore[no-any-return]
        except RankError as error:
            return error


def saved_parameters(cluster: Cluster, config: JobConfig, node: str) -> Parameters:
    """The parameters of a run's newest checkpoint."""
    with cluster.world([node], 1) as world:
        return world.run(final_parameters, config, group=True, timeout=_LIMIT_S)[0]  # type: ignore[no-any-return]


def train(config: JobConfig, until: int | None = None, *, world: World) -> dict[str, Any] | None:
    """In ranks: resume, train to step `until`, then die by SIGKILL; None: train to the end.

    Rank 0 returns the final parameters by name, as arrays; the others None.
    """
    from pytest_mnode.reference_job.device import device_of
    from pytest_mnode.reference_job.randomness import repeatable
    from pytest_mnode.reference_job.trainer import Trainer

    with repeatable(config.deterministic), _group(config, world) as group:
        trainer = Trainer(config, world, device_of(config.device, world.local_rank), group=group)
        trainer.resume()
        while trainer.finished_steps < (until or config.steps):
            trainer.step()
        if until is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.end()
        values = _whole(trainer.model) if world.rank == 0 or config.parallel == "fsdp2" else {}
        trainer.close()
    return values if world.rank == 0 else None


@contextlib.contextmanager
def _group(config: JobConfig, world: World) -> Iterator[Any]:
    """The group to train over: None, the default group, or on NCCL one whose sums repeat."""
    import torch.distributed as dist

    from pytest_mnode.measuring.algorithms import RING, Algorithm, fresh_group
    from pytest_mnode.reference_job.device import device_of

    unset = set(config.settings) - os.environ.keys()
    pinned = ALGORITHM in unset and dist.is_initialized() and dist.get_backend() == "nccl"
    if not pinned:
        yield None
        return
    ring = Algorithm(RING, pinned, True, f"{ALGORITHM}={config.settings.get(ALGORITHM)}")
    with fresh_group(ring, device_of(config.device, world.local_rank)) as group:
        yield group


def final_parameters(config: JobConfig, *, world: World) -> dict[str, Any]:
    """In a world of one rank: the parameters of a run's newest checkpoint, by name."""
    from pytest_mnode.reference_job.device import device_of
    from pytest_mnode.reference_job.trainer import Trainer

    trainer = Trainer(
        replace(config, reshard=True), world, device_of(config.device, world.local_rank)
    )
    try:
        trainer.resume()
        return _whole(trainer.model)
    finally:
        trainer.close()


def _whole(model: Any) -> dict[str, Any]:
    """Unsharded parameters by name, on every rank, without DDP's prefix."""
    found = {}
    for name, value in model.named_parameters():
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[name.removeprefix("module.")] = full.detach().float().cpu().numpy()
    return found

"""What runs in ranks that are there already: a part of the reference job, and what it came to."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.config import JobConfig


def train(config: JobConfig, until: int | None = None, *, world: World) -> dict[str, Any] | None:
    """Resume, train to step `until` (None: to the end), and then die by SIGKILL, or end well.

    Rank 0 returns the final parameters by name, as arrays; the others None.
    """
    from pytest_mnode.reference_job.device import device_of
    from pytest_mnode.reference_job.randomness import repeatable
    from pytest_mnode.reference_job.trainer import Trainer

    with repeatable(config.deterministic):
        trainer = Trainer(config, world, device_of(config, world.local_rank))
        trainer.resume()
        while trainer.finished_steps < (until or config.steps):
            trainer.step()
        if until is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.end()
        values = _whole(trainer.model) if world.rank == 0 or config.parallel == "fsdp2" else {}
        trainer.close()
    return values if world.rank == 0 else None


def final_parameters(config: JobConfig, *, world: World) -> dict[str, Any]:
    """The parameters of a run's newest checkpoint by name, as arrays; in a world of one rank."""
    from pytest_mnode.reference_job.device import device_of
    from pytest_mnode.reference_job.trainer import Trainer

    trainer = Trainer(replace(config, reshard=True), world, device_of(config, world.local_rank))
    try:
        trainer.resume()
        return _whole(trainer.model)
    finally:
        trainer.close()


def _whole(model: Any) -> dict[str, Any]:
    """Parameters by name, whole on every rank; DDP's prefix left out."""
    found = {}
    for name, value in model.named_parameters():
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[name.removeprefix("module.")] = full.detach().float().cpu().numpy()
    return found

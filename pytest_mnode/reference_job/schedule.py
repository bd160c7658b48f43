"""The learning rate over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Callable

from pytest_mnode.reference_job.config import JobConfig


def factor_of(config: JobConfig) -> Callable[[int], float]:
    """Factor of the learning rate by step: up in a line over the warm-up, then down by a cosine."""

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / (config.warmup_steps + 1)
        left = max(1, config.steps - config.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - config.warmup_steps) / left)))

    return factor

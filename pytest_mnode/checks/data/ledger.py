"""A model whose gradient says which samples it is of: what the optimiser really sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pytest_mnode.checks.data.batches import GlobalBatch, judge_batches
from pytest_mnode.checks.data.facts import At, StepSeen, StepsSeen
from pytest_mnode.measuring.agree import gathered
from pytest_mnode.rank.world import World


class Ledger(nn.Module):
    """One weight a sample: the loss of a batch, `ledger(indices).mean()`, is linear in them.

    Train it in the place of a model, wrapped as that is, with the loop under test; then ask for
    `global_batch`. The gradient at a sample's weight is that sample's part in the step.
    """

    def __init__(self, samples: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(samples, dtype=torch.float64, device=device))
        self._fed: list[int] = []
        self._steps: list[StepSeen] = []

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Losses of samples, (batch,) of indices to (batch,) of float64."""
        self._fed += indices.tolist()
        return self.weight[indices.to(self.weight.device)]

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the gradient that each step of this optimiser takes."""
        optimizer.register_step_pre_hook(self._note)

    def _note(self, *_: Any) -> None:
        gradient = self.weight.grad
        weights: tuple[tuple[int, float], ...] = ()
        if gradient is not None:
            samples = gradient.nonzero().flatten().tolist()
            weights = tuple((sample, float(gradient[sample])) for sample in samples)
        self._steps.append(StepSeen(weights, tuple(self._fed)))
        self._fed.clear()

    def global_batch(
        self, world: World, *, local: int, accumulation: int, label: str = "optimiser"
    ) -> GlobalBatch:
        """What the steps were of, judged over all ranks. All ranks call this.

        local: samples of one rank's micro-batch. accumulation: micro-batches of a step.
        """
        seen = StepsSeen(At(world.rank, world.node), tuple(self._steps))
        return judge_batches(label, gathered(seen), local, accumulation)

"""What a rank trains on, batch by batch, epoch by epoch, from wherever a run was cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.data import Documents, ResumableSampler
from pytest_mnode.reference_job.emulated import input_pause_s


class Feed:
    """Batches of one rank; `consumed` counts the samples that all ranks have had, of all epochs.

    Raises UsageError where the global batch cannot be divided among the ranks.
    """

    def __init__(self, config: JobConfig, rank: int, ranks: int, device: torch.device) -> None:
        self.config, self.device = config, device
        self.local_batch = config.local_batch(ranks)
        self.data = Documents(
            config.samples, config.vocab, config.context, config.seed, input_pause_s
        )
        self.sampler = ResumableSampler(self.data, ranks, rank, seed=config.seed)
        self._batches: Iterator[Any] = iter(())
        self._go_to(0)

    @property
    def epoch(self) -> int:
        return self.consumed // self.config.samples

    def next(self) -> tuple[Tensor, Tensor, Tensor]:
        """Indices (on the host), tokens and targets of this rank's next pass."""
        indices, tokens, targets = next(self._batches)
        move = {"device": self.device, "non_blocking": True}
        return indices, tokens.to(**move), targets.to(**move)

    def advance(self) -> None:
        """All ranks have done a step."""
        self.consumed += self.config.global_batch
        if self.consumed % self.config.samples == 0:
            self._go_to(self.consumed)

    def close(self) -> None:
        self._batches = iter(())

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps: the position, and of what it is one."""
        config = self.config
        return {
            **{"consumed": self.consumed, "samples": config.samples},
            **{"seed": config.seed, "global_batch": config.global_batch},
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to where the state was saved. Raises UsageError where that was in other data."""
        for name, here in self.state_dict().items():
            if name != "consumed" and state[name] != here:
                raise UsageError(
                    f"{name}={here}: the checkpoint is of a run with {name}={state[name]}; give "
                    "the same, or a directory of its own"
                )
        self._go_to(state["consumed"])

    def _go_to(self, consumed: int) -> None:
        self.consumed = consumed
        self.sampler.go_to(*divmod(consumed, self.config.samples))
        loader = DataLoader(
            self.data,
            batch_size=self.local_batch,
            sampler=self.sampler,
            pin_memory=self.device.type != "cpu",
        )
        self._batches = iter(loader)

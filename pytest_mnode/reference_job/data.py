"""The data set, a sampler that resumes within an epoch, and the batches of a rank."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.device import input_pause_s

IGNORED = -100
"""Target of positions after a document's end: no loss and no token is counted there."""


class Documents(Dataset[tuple[int, Tensor, Tensor]]):
    """Documents of different lengths, each a walk over the vocabulary with its own step.

    A sample is its index, tokens (context,) and targets (context,): the token after each.
    pause_s: called for each sample; returns the additional seconds that reading it takes.
    """

    def __init__(self, config: JobConfig, pause_s: Callable[[], float] = lambda: 0.0) -> None:
        self.config, self._pause_s = config, pause_s

    def __len__(self) -> int:
        return self.config.samples

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        vocab, context = self.config.vocab, self.config.context
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + index)
        begin, stride, length = torch.randint(1, vocab, (3,), generator=generator).tolist()
        walk = (begin + stride % 7 * torch.arange(context + 1)) % vocab
        targets = walk[1:].clone()
        targets[context // 2 + length % (context // 2 + 1) :] = IGNORED
        if (pause_s := self._pause_s()) > 0:
            time.sleep(pause_s)
        return index, walk[:-1].clone(), targets


class ResumableSampler(DistributedSampler[Any]):
    """A DistributedSampler that begins after `position` samples of this epoch, over all ranks.

    Any number of ranks that divides the position can resume from it, and every sample still comes
    once per epoch: the remaining samples depend on seed, epoch and position alone.
    """

    position = 0

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), self.position // self.num_replicas, None)

    def go_to(self, epoch: int, position: int) -> None:
        self.set_epoch(epoch)
        self.position = position


class Feed:
    """Batches of one rank, epoch by epoch, from wherever a run was interrupted.

    consumed: number of samples that all ranks together have had, over all epochs.

    Raises UsageError if the global batch cannot be divided among the ranks.
    """

    def __init__(self, config: JobConfig, rank: int, ranks: int, device: torch.device) -> None:
        self.config, self.device = config, device
        self.local_batch = config.local_batch(ranks)
        self.data = Documents(config, input_pause_s)
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
        """Count a step of all ranks."""
        self.consumed += self.config.global_batch
        if self.consumed % self.config.samples == 0:
            self._go_to(self.consumed)

    def close(self) -> None:
        self._batches = iter(())

    def state_dict(self) -> dict[str, int]:
        """The position in the data, and the values that identify the data."""
        config = self.config
        return {
            **{"consumed": self.consumed, "samples": config.samples},
            **{"seed": config.seed, "global_batch": config.global_batch},
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to the saved position. Raises UsageError if the state is of other data."""
        for name, here in self.state_dict().items():
            if name != "consumed" and state[name] != here:
                raise UsageError(
                    f"{name}={here}: the checkpoint is of a run with {name}={state[name]}; give "
                    "the same value, or another directory"
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

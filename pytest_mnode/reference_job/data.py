"""The data set, and a sampler that goes on where a run was cut."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler

IGNORED = -100
"""Target of places behind a document's end; no loss and no token is counted there."""


class Documents(Dataset[tuple[int, Tensor, Tensor]]):
    """Documents of different lengths, each a walk over the vocabulary with a step of its own.

    A sample is its index, tokens (context,) and targets (context,): the token after each.
    pause_s: how much longer a sample takes to read; asked for each time.
    """

    def __init__(
        self,
        size: int,
        vocab: int,
        context: int,
        seed: int,
        pause_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.size, self.vocab, self.context, self.seed = size, vocab, context, seed
        self._pause_s = pause_s

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        begin, stride, length = torch.randint(1, self.vocab, (3,), generator=generator).tolist()
        walk = (begin + stride % 7 * torch.arange(self.context + 1)) % self.vocab
        targets = walk[1:].clone()
        targets[self.context // 2 + length % (self.context // 2 + 1) :] = IGNORED
        if (pause_s := self._pause_s()) > 0:
            time.sleep(pause_s)
        return index, walk[:-1].clone(), targets


class ResumableSampler(DistributedSampler[Any]):
    """A DistributedSampler that begins at `position`: samples of this epoch that all ranks had.

    Any number of ranks that divides the position can go on from it, and every sample still comes
    once an epoch: which ones are left depends on seed, epoch and position alone.
    """

    position = 0

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), self.position // self.num_replicas, None)

    def go_to(self, epoch: int, position: int) -> None:
        self.set_epoch(epoch)
        self.position = position

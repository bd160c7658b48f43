"""What is promised of how data reaches ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pytest_mnode.spec.fields import Bytes, Count, Page, Some


class DataCriterion(Page):
    """Shards are disjoint and complete, batches and metrics count right, seeds differ.

    All of it is exact: what can be set is only what it is tried with.
    """

    samples_per_rank: Annotated[int, Field(strict=True, ge=16)] = 64
    """Of the data set that is shared out; there are some more, so that shards come out uneven."""
    batch: Some = 8
    """Samples of one rank's micro-batch."""
    accumulation: Annotated[int, Field(strict=True, ge=1)] = 2
    """Micro-batches of a step of the optimiser."""
    workers: Count = 2
    """Of a rank's DataLoader, besides none."""
    sample_files: Some = 8
    """How many files of storage.datasets every rank reads, the first by name."""
    sample_size_bytes: Bytes = Field(1 << 20, alias="sample_size")
    """How much of the head of each is read."""

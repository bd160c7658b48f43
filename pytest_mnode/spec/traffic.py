"""Promises about the traffic of today's jobs: experts, groups at the same time, two jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pytest_mnode.spec.at_once import HostList
from pytest_mnode.spec.fields import Bytes, Fraction, Page, Share, Sizes, Some
from pytest_mnode.spec.inventory import NonEmptyCriterion

CALLS_FOR_P99 = 459
"""Of fewer calls not even the slowest is above the 99th percentile with 99 %: 0.99^459 < 0.01."""
Times = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class ExpertsPromise(Page):
    """Tokens that go to experts on all ranks and back: dispatch and combine, one at a time."""

    sizes_bytes: Sizes = Field((4 << 10, 64 << 10, 1 << 20), alias="sizes")
    """Bytes of a rank for the average other rank."""
    skew: Times = 3.0
    """Share of the rank whose experts are chosen most, over the average; each rank in its turn."""
    calls: Annotated[int, Field(strict=True, ge=20)] = 100
    """Number of timed calls of each size; at least one for each rank, and with p99_at_most_times
    459."""
    p50_at_most_times: Times | None = None
    """Median time, over that of the model: steps × α + bytes of the busiest node / line rate."""
    p99_at_most_times: Times | None = None
    """Time that 99 of 100 calls keep, over the median of the same size."""

    def calls_over(self, ranks: int) -> int:
        """Calls in which each rank is hot, and which say up to where a 99th percentile may be."""
        needed = 1 if self.p99_at_most_times is None else CALLS_FOR_P99
        return max(self.calls, ranks, needed)


class ParallelPromise(Page):
    """All dimensions of a mesh (`groups.meshes`, the last) at the same time."""

    size_bytes: Bytes | None = Field(None, alias="size")
    """Bytes of a call in each group; left out: what NICs send in 50 ms."""
    at_least_fraction: Annotated[Fraction, Field(le=1)] | None = None
    """Rate of each dimension by itself, as a fraction of the model's."""
    together_at_least_fraction: Annotated[Fraction, Field(le=1)] | None = None
    """Time of the dimensions one after the other, over that of all at once: 1 if they share one
    network fully and lose nothing, more if they use different ones."""
    rounds: Annotated[int, Field(strict=True, ge=3)] = 8


class JobsPromise(Page):
    """Two jobs side by side, each with all-reduces over its nodes."""

    loss_at_most: Share | None = None
    """Part of its rate that either may lose."""
    nodes: tuple[HostList, HostList] | None = None
    """Nodes of each; left out: every second node of the run, and the others."""
    size_bytes: Bytes | None = Field(None, alias="size")
    """Bytes of a call; left out: what NICs send in 50 ms."""
    rounds: Annotated[int, Field(strict=True, ge=3)] = 8


class TrafficCriterion(NonEmptyCriterion):
    """What jobs of today send: small skewed messages, several groups at once, beside other jobs."""

    experts: ExpertsPromise | None = None
    parallel: ParallelPromise | None = None
    jobs: JobsPromise | None = None
    most_paths: Some = 64
    """Paths between nodes that are measured alone, at most, to name what is slow."""

"""The plan of a scaling job: numbers of nodes, groups and turns. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job.config import device_for
from pytest_mnode.spec.scaling import ScalingCriterion

Group = tuple[int, ...]
"""Nodes that train together: ascending indices into all nodes of the job."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Groups of `count` nodes that train at the same time; nodes in no group are idle."""

    round: int
    count: int
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the ranks of a scaling job need.

    accelerators_per_node: of the spec; if there are any, ranks train on nothing else. Raises
    UsageError for one node.
    """

    nodes: tuple[str, ...]
    ranks_per_node: int
    accelerators_per_node: int
    promise: ScalingCriterion

    def __post_init__(self) -> None:
        if len(self.nodes) < 2:
            raise UsageError("one node scales to nothing; give --mnode-nodes=2 or more")

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of nodes, ascending from 1 to all."""
        return counts_up_to(len(self.nodes))

    @property
    def training(self) -> dict[str, Any]:
        """Keys of the reference job that are the same for all groups."""
        promise = self.promise
        return {
            **promise.model.model_dump(),
            "parallel": promise.parallel,
            "dtype": promise.dtype,
            "bucket_bytes": promise.bucket_bytes,
            "device": device_for(self.accelerators_per_node),
        }

    def turns(self, round_: int) -> Iterator[Turn]:
        """One round: every number of nodes once, so that a drift affects all of them.

        Each round begins with another number, because the first has the coldest caches. Every
        other round has other groups, in which nodes that were left over train: each group is a
        communicator, which all ranks take part in making, so that more divisions would cost more.
        """
        first, size = round_ % len(self.counts), len(self.nodes)
        for count in self.counts[first:] + self.counts[:first]:
            offset = (size % count or count // 2) * (round_ % 2)
            yield Turn(round_, count, groups_of(count, size, offset))

    def group_batch(self, count: int) -> int:
        """Samples of a step over `count` nodes, all ranks together."""
        of_all = self.promise.samples_per_rank * self.ranks_per_node * len(self.nodes)
        if self.promise.kind == "strong":
            return of_all
        return self.promise.samples_per_rank * self.ranks_per_node * count

    def group_compute_s(self, count: int) -> float | None:
        """Declared compute of a step over `count` nodes, in proportion to a rank's samples."""
        if self.promise.compute_s is None:
            return None
        each = self.group_batch(count) / (self.ranks_per_node * count)
        return self.promise.compute_s * each / self.promise.samples_per_rank

    @property
    def unequal(self) -> tuple[int, ...]:
        """Numbers of nodes over which the samples of a step do not divide evenly."""
        ranks = self.ranks_per_node
        return tuple(n for n in self.counts if self.group_batch(n) % (n * ranks))


def counts_up_to(nodes: int) -> tuple[int, ...]:
    """1, 2, 4, … and `nodes` itself."""
    return (*(1 << power for power in range((nodes - 1).bit_length())), nodes)


def groups_of(count: int, nodes: int, offset: int) -> tuple[Group, ...]:
    """As many disjoint groups of `count` neighbours in the ring of nodes as fit, from `offset` on.

    Fewer than `count` nodes may be left over, and stay idle; `offset` decides which nodes.
    Nodes of a group are in ascending order, as torch numbers their ranks.
    """
    return tuple(
        tuple(sorted((offset + start + i) % nodes for i in range(count)))
        for start in range(0, nodes - count + 1, count)
    )

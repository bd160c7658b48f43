"""What a scaling job does: which numbers of nodes, in which groups, in which turns. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from pytest_mnode.errors import UsageError
from pytest_mnode.spec.scaling import ScalingCriterion

Group = tuple[int, ...]
"""Nodes that train together, by their place among all nodes of the job, rising."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Groups of `count` nodes that train at the same time; the nodes of none are idle meanwhile."""

    round: int
    count: int
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the ranks of a scaling job are told.

    counts: numbers of nodes, rising, from 1 to all. compute_s: declared, for `samples_per_rank`
    samples. bound: of the efficiency, on whose one side it may be known to be. within_s: how long
    ranks wait for each other at one place. training: keys of the reference job that are the same
    for all groups. hidden: of the throughput, with more the mean of steps counts and not their
    median. seed: of the resampling that decides on more rounds.
    """

    nodes: tuple[str, ...]
    ranks_per_node: int
    counts: tuple[int, ...]
    kind: str
    samples_per_rank: int
    compute_s: float | None
    warmup: int
    steps: int
    rounds: int
    most_rounds: int
    at_most_uncertainty: float
    bound: float
    within_s: float
    training: Mapping[str, Any]
    hidden: float
    seed: int = 0

    @classmethod
    def of(
        cls,
        promise: ScalingCriterion,
        nodes: Sequence[str],
        ranks_per_node: int,
        accelerators_per_node: int,
    ) -> Self:
        """The plan that answers what the spec promises. Raises UsageError for one node.

        accelerators_per_node: of the spec. Where there are any, ranks train on nothing else.
        """
        if len(nodes) < 2:
            raise UsageError("one node scales to nothing; give --mnode-nodes=2 or more")
        model = promise.model
        return cls(
            nodes=tuple(nodes),
            ranks_per_node=ranks_per_node,
            counts=counts_up_to(len(nodes)),
            kind=promise.kind,
            samples_per_rank=promise.samples_per_rank,
            compute_s=promise.compute_s,
            warmup=promise.warmup,
            steps=promise.steps,
            rounds=promise.rounds,
            most_rounds=promise.most_rounds,
            at_most_uncertainty=promise.at_most_uncertainty,
            bound=promise.at_least_efficiency,
            within_s=promise.within_s,
            hidden=promise.parts_within,
            training={
                "vocab": model.vocab,
                "context": model.context,
                "width": model.width,
                "heads": model.heads,
                "layers": model.layers,
                "parallel": promise.parallel,
                "dtype": promise.dtype,
                "bucket_bytes": promise.bucket_bytes,
                "device": device_for(accelerators_per_node),
            },
        )

    def turns(self, round_: int) -> Iterator[Turn]:
        """One round: every number of nodes once, so that whatever drifts does so for all alike.

        The order is turned round by round, since who comes first has the coldest caches.
        """
        first = round_ % len(self.counts)
        for count in self.counts[first:] + self.counts[:first]:
            yield Turn(round_, count, groups_of(count, len(self.nodes), round_))

    def group_batch(self, count: int) -> int:
        """Samples of a step over `count` nodes, all ranks together."""
        of_all = self.samples_per_rank * self.ranks_per_node * len(self.nodes)
        if self.kind == "strong":
            return of_all
        return self.samples_per_rank * self.ranks_per_node * count

    def group_compute_s(self, count: int) -> float | None:
        """Declared compute of a step over `count` nodes: as long as a rank has samples."""
        if self.compute_s is None:
            return None
        each = self.group_batch(count) / (self.ranks_per_node * count)
        return self.compute_s * each / self.samples_per_rank

    @property
    def unequal(self) -> tuple[int, ...]:
        """Numbers of nodes over which the samples of a step do not divide evenly."""
        ranks = self.ranks_per_node
        return tuple(n for n in self.counts if self.group_batch(n) % (n * ranks))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`. Raises UsageError for a text that is no plan."""
        try:
            told = json.loads(text)
            told |= {"nodes": tuple(told["nodes"]), "counts": tuple(told["counts"])}
            return cls(**told)
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"not a plan of a scaling job: {error}") from None


def device_for(accelerators_per_node: int) -> str:
    """What ranks train on, as the reference job is told: CPUs only where nothing else is there."""
    return "accelerator" if accelerators_per_node else "cpu"


def counts_up_to(nodes: int) -> tuple[int, ...]:
    """1, 2, 4, … and `nodes` itself."""
    powers = {1 << power for power in range(nodes.bit_length())}
    return tuple(sorted({n for n in powers if n <= nodes} | {nodes}))


def groups_of(count: int, nodes: int, offset: int) -> tuple[Group, ...]:
    """As many disjoint groups of `count` neighbours in the ring of nodes as fit, from `offset` on.

    The last of fewer than `count` left over stay idle; another offset leaves others over. Nodes of
    a group are in rising order, as torch numbers their ranks.
    """
    return tuple(
        tuple(sorted((offset + start + i) % nodes for i in range(count)))
        for start in range(0, nodes - count + 1, count)
    )

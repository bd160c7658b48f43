"""What each rank says of the data it read, gathered from all and judged as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class At:
    """Which rank says it, and on which node."""

    rank: int
    node: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node}"


@dataclass(frozen=True, slots=True)
class SamplerFacts:
    """What a sampler says of itself; None where it has no such thing."""

    rank: int | None = None
    replicas: int | None = None
    seed: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Samples that one rank read in one epoch: indices of the data set, as they came."""

    at: At
    epoch: int
    indices: tuple[int, ...]
    sampler: SamplerFacts = SamplerFacts()


@dataclass(frozen=True, slots=True)
class StepSeen:
    """What the optimiser of one rank was given in one step.

    weights: by sample, its part in the gradient; of a mean over the global batch each is one over
    that batch. fed: samples that this rank computed since the step before, in order.
    """

    weights: tuple[tuple[int, float], ...]
    fed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepsSeen:
    """All steps of one rank's optimiser."""

    at: At
    steps: tuple[StepSeen, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """One rank's own values of a metric, and what it took for the result over all ranks."""

    at: At
    values: tuple[float, ...]
    result: float | None


@dataclass(frozen=True, slots=True)
class Counted:
    """One rank's own count, and what it took for the sum over all ranks."""

    at: At
    count: int
    result: int | None


@dataclass(frozen=True, slots=True)
class Draws:
    """What one rank drew, as a digest by source, such as "numpy" or "worker 0: torch"."""

    at: At
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FilesRead:
    """Digests of the first files of a directory as one rank read them; or why it could not."""

    at: At
    digests: Mapping[str, str]
    problem: str = ""

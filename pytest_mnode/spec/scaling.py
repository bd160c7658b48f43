"""Promises about a training job over increasing numbers of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pytest_mnode.spec.fields import Bytes, Count, Fraction, Seconds, Section, Some
from pytest_mnode.spec.inventory import Criterion, Inventory

AllowedCause = Literal[
    "communication",
    "contention",
    "fabric",
    "overlap",
    "straggler",
    "skew",
    "compute",
    "input",
    "optimiser",
    "checkpoint",
]
"""Causes that a spec may allow. Traffic on another network and unattributed time never are."""
_Part = Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)]
_KEY = "criteria.scaling"


class ReferenceModel(Section):
    """The transformer that is trained."""

    layers: Some = 12
    """Blocks of attention and feed-forward."""
    width: Some = 768
    """Width of the embedding: a multiple of heads."""
    heads: Some = 12
    """Attention heads."""
    context: Some = 1024
    """Tokens of a sample."""
    vocab: Annotated[int, Field(strict=True, ge=2)] = 50304
    """Number of different tokens."""

    @model_validator(mode="after")
    def _has_whole_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} over heads {self.heads}; accepted: a multiple of heads"
            )
        return self


class ScalingCriterion(Criterion):
    """A training job over n nodes does n times the work of one; losses are attributed."""

    at_least_efficiency: Annotated[Fraction, Field(le=1)] = 0.95
    """Throughput of n nodes, as a fraction of n times the throughput of one."""
    explained_from: Annotated[Fraction, Field(le=1)] = 0.90
    """From here up to at_least_efficiency the criterion passes if the loss is explained."""
    explained_fraction: Annotated[Fraction, Field(le=1)] = 0.8
    """Part of the loss that allowed causes have to account for in that range."""
    allowed_causes: tuple[AllowedCause, ...] = ()
    """Causes that may explain a loss: communication (exposed, as much as the fabric alone needs),
    contention (exposed beyond that), fabric (short of its line rate), overlap (communication that
    is not hidden), straggler (some nodes or ranks compute slower), skew (another one at each step),
    compute (all do), input, optimiser, checkpoint."""
    kind: Literal["weak", "strong"] = "weak"
    """weak: each rank has samples_per_rank on any number of nodes; strong: it has them on all
    nodes, and proportionally more on fewer nodes."""
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    """How the model is trained: replicated, or sharded."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the computation; bfloat16 on accelerators."""
    model: ReferenceModel = Field(default_factory=ReferenceModel)
    samples_per_rank: Some = 8
    """Samples of a rank in a step."""
    bucket_bytes: Bytes = Field(25 << 20, alias="bucket")
    """Gradients that DDP sends at once, at least, such as 25 MiB."""
    compute_s: Seconds | None = Field(None, alias="compute")
    """Declared time of forward and backward of a step, emulated by waiting; only for nodes that
    share the processors of one machine. Gradients and collectives stay real."""
    warmup: Count = 3
    """Steps before the first timed step, each time."""
    steps: Annotated[int, Field(strict=True, ge=3)] = 10
    """Timed steps in a row on each number of nodes, in each round."""
    rounds: Annotated[int, Field(strict=True, ge=2)] = 3
    """How often all numbers of nodes take their turn, beginning at another node each time."""
    most_rounds: Annotated[int, Field(strict=True, ge=2)] | None = None
    """Maximum number of rounds; 3 × rounds if not given, 8 at least. More than `rounds` follow
    while an efficiency is too close to its bound, while it is too uncertain, and while noise
    exceeds what the bound tolerates; a miss of at_least_efficiency takes three rounds."""
    at_most_uncertainty: _Part = 0.02
    """Half of the 95 % confidence interval of an efficiency that reaches its bound; more rounds
    follow while it is more. An efficiency whose interval has the bound in it is inconclusive."""
    parts_within: _Part = 0.02
    """Part of the step time by which the sum of its parts may miss it, on each rank; and part of
    the efficiency by which the mean of steps may be below their median before the mean counts."""
    fabric_fraction: Annotated[Fraction, Field(le=1)] = 0.8
    """Fraction of the model's speed that a step's collectives reach back to back without other
    load, and of the line rate that an all-reduce of all gradients reaches; if either does not, the
    fabric is to blame for the cost of communication."""
    elsewhere_fraction: _Part = 0.1
    """Part of the bytes sent during the steps that may go over other NICs than the fabric's."""
    within_s: Seconds = Field(600.0, alias="within")
    """Limit of the whole job."""

    @property
    def rounds_at_most(self) -> int:
        """Maximum number of rounds."""
        return self.most_rounds or max(8, 3 * self.rounds)

    @model_validator(mode="after")
    def _leaves_a_question(self) -> Self:
        if self.explained_from > self.at_least_efficiency:
            raise ValueError(
                f"explained_from {self.explained_from:g} is above at_least_efficiency "
                f"{self.at_least_efficiency:g}; accepted: at most as much"
            )
        if self.rounds_at_most < self.rounds:
            raise ValueError(
                f"most_rounds {self.most_rounds} is below rounds {self.rounds}; "
                f"accepted: at least as many"
            )
        if len(set(self.allowed_causes)) < len(self.allowed_causes):
            raise ValueError("allowed_causes lists one twice; accepted: each once")
        return self

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """One line for each promise that cannot be right, or that would hide a fault."""
        if cluster.nodes == 1:
            yield f"{_KEY}: promised for nodes: 1, which has no other node to scale to"
        if self.explained_from < 0.8:
            yield (
                f"{_KEY}.explained_from: {self.explained_from:g} lets a cluster pass that loses "
                f"more than a fifth"
            )
        if self.at_least_efficiency > 0.99:
            yield (
                f"{_KEY}.at_least_efficiency: {self.at_least_efficiency:g} is more than clocks and "
                f"the last bucket of gradients leave a healthy cluster"
            )
        elif self.at_most_uncertainty > 1 - self.at_least_efficiency:
            yield (
                f"{_KEY}.at_most_uncertainty: {self.at_most_uncertainty:g} is more than the loss "
                f"that is asked about, {1 - self.at_least_efficiency:.3g}"
            )
        yield from self._lax()
        if self.compute_s is not None and not cluster.emulated:
            yield f"{_KEY}.compute: emulated, and emulated: does not say so"
        if self.dtype == "bfloat16" and not cluster.accelerators.per_node:
            yield f"{_KEY}.dtype: bfloat16, but accelerators.per_node is 0"

    def _lax(self) -> Iterator[str]:
        """Doubts about limits under which missing, unexplained or misdirected parts would pass."""
        if self.parts_within > 0.05:
            yield (
                f"{_KEY}.parts_within: {self.parts_within:g} of a step may be unattributed: more "
                "than the loss that is asked about"
            )
        if self.explained_fraction < 0.5:
            yield (
                f"{_KEY}.explained_fraction: {self.explained_fraction:g} lets a loss pass of which "
                "most is not explained"
            )
        if self.fabric_fraction < 0.5:
            yield (
                f"{_KEY}.fabric_fraction: {self.fabric_fraction:g} calls a fabric at half its "
                "speed fast"
            )
        if self.elsewhere_fraction > 0.2:
            yield (
                f"{_KEY}.elsewhere_fraction: {self.elsewhere_fraction:g} lets more than a fifth of "
                "the bytes go over another network"
            )

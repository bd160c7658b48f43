"""Promises about the buyer's own job: a training command that knows nothing of this project."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from pytest_mnode.logs.training import FORMATS, VALUE_NAMES
from pytest_mnode.spec.fields import Count, Fraction, Seconds, Section, Share, Some, Text, rising
from pytest_mnode.spec.inventory import Criterion, Dtype, Inventory

Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Format = Literal[
    "auto", "torchtitan", "megatron", "nemo", "deepspeed", "lightning", "huggingface", "plain"
]
PartName = Literal[
    "starting",
    "compiling",
    "stepping",
    "input",
    "communicating",
    "slow rank",
    "checkpointing",
    "stalled",
    "restarting",
    "lost steps",
    "observing",
    "ending",
    "unattributed",
]


class LossPromise(Section):
    """The loss at some steps is that of a reference run, give or take its spread."""

    curve: tuple[tuple[Count, Above], ...] = Field(min_length=1)
    """Steps and losses of the reference, such as [[100, 7.2], [500, 5.1]]."""
    within: Above
    """How far a loss may be from it: the spread of reference runs with other seeds."""


class ResumePromise(Section):
    """The job goes on from its last checkpoint after one of its ranks is killed."""

    after_step: Some
    """Steps after which the last rank gets SIGKILL."""
    within_s: Seconds = Field(alias="within")
    """From the kill to the end of the first step after it."""
    lost_steps_at_most: Count
    """Steps that are made twice: the interval of checkpoints, at most."""


class WorkloadCriterion(Criterion):
    """A training command runs to its end, as fast as promised, and learns."""

    command: tuple[Text, ...] = Field(min_length=1)
    """What follows torchrun's own options, such as [train.py, --steps, "200"], [-m, my.train], or
    [--no-python, ./train.sh]. torchrun starts it with one rank per accelerator."""
    torchrun: tuple[Text, ...] = ()
    """Further options of torchrun."""
    env: dict[Text, str] = Field(default_factory=dict)
    """Variables of all its processes."""
    nodes: tuple[Some, ...] = ()
    """Numbers of nodes on which it runs, one after the other, such as [1, 2, 4]; left out: all."""
    within_s: Seconds = Field(1800.0, alias="within")
    """Limit from its start to its end, on each number of nodes."""
    reads: Format | Text = "auto"
    """How it prints a step: a known format, or a regular expression with the groups step, and loss,
    seconds, milliseconds, tokens_per_s and tflops (of one accelerator), job_tokens_per_s,
    samples_per_s and batch (of the whole job), mfu_percent."""
    warmup: Count = 5
    """First steps that do not count."""
    tokens_per_s_at_least: Above | None = None
    """Tokens per second of one accelerator, on the largest number of nodes."""
    samples_per_s_at_least: Above | None = None
    """Samples per second of one accelerator, on the largest number of nodes."""
    mfu_at_least: Annotated[Fraction, Field(le=1)] | None = None
    """Model FLOPs utilisation: as the program prints it, else its TFLOP/s over peak_tflops, else
    6 × parameters × tokens per second over peak_tflops."""
    peak_tflops: Above | None = None
    """Peak of one accelerator in the job's data type; left out: that of accelerators.peak_tflops,
    which the profiles have."""
    dtype: Dtype = "bfloat16"
    """Data type of the job, for the peak."""
    parameters: Above | None = None
    """Parameters of the model, for 6·N·D."""
    efficiency_at_least: Annotated[Fraction, Field(le=1)] | None = None
    """Rate of one accelerator on each number of nodes, as a fraction of that on the smallest. A
    program that prints no rate has to do the same work on each rank."""
    loss: LossPromise | None = None
    restarts: Count = 0
    """How often torchrun may start all ranks again after one failed; they resume by themselves."""
    resume: ResumePromise | None = None
    """Judged in a run of its own, on the largest number of nodes."""
    goodput_at_least: Annotated[Fraction, Field(le=1)] | None = None
    """Fraction of the wall time in which the job makes progress: stepping and communicating."""
    at_most: dict[PartName, Share] = Field(default_factory=dict)
    """Fractions of the wall time that parts of the ledger may take, such as {input: 0.02}."""
    stalled_after_s: Seconds | None = Field(None, alias="stalled_after")
    """A job that makes no step for this long hangs: it is ended, and the ranks that others wait for
    are named. Longer than its longest checkpoint or evaluation."""

    @property
    def observed(self) -> bool:
        """Whether the ranks note where their time goes."""
        asked = (self.goodput_at_least, self.stalled_after_s, self.resume)
        return bool(self.at_most) or any(one is not None for one in asked)

    @field_validator("nodes")
    @classmethod
    def _rises(cls, numbers: tuple[int, ...]) -> tuple[int, ...]:
        return rising(numbers, "number", str)

    @field_validator("reads")
    @classmethod
    def _is_known(cls, written: str) -> str:
        if written == "auto" or written in FORMATS:
            return written
        try:
            groups = re.compile(written).groupindex
        except re.error as error:
            raise ValueError(f"{written!r} is no regular expression: {error}") from None
        if "step" not in groups:
            known = ", ".join(("auto", *FORMATS))
            raise ValueError(f"{written!r} has no group step; accepted: {known}, or (?P<step>…)")
        if unknown := sorted(set(groups) - set(VALUE_NAMES)):
            accepted = ", ".join(VALUE_NAMES)
            raise ValueError(f"group {unknown[0]} is not known; accepted: {accepted}")
        if {"minutes", "rest", "hours"} & set(groups) and not {"minutes", "rest"} <= set(groups):
            raise ValueError(
                f"{written!r} has a part of a clock; accepted: minutes and rest, or neither"
            )
        return written

    @model_validator(mode="after")
    def _has_a_base(self) -> Self:
        if self.efficiency_at_least is not None and len(self.nodes) < 2:
            raise ValueError("efficiency_at_least needs nodes: two or more numbers, such as [1, 4]")
        if self.resume is not None and not self.restarts:
            raise ValueError("resume needs restarts: 1 or more")
        return self

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """One line for each promise that cannot be judged."""
        key = "criteria.workload"
        if cluster.nodes is not None and self.nodes and self.nodes[-1] > cluster.nodes:
            yield f"{key}.nodes: {self.nodes[-1]}, but the cluster has {cluster.nodes}"
        promised = (
            self.tokens_per_s_at_least,
            self.samples_per_s_at_least,
            self.mfu_at_least,
            self.efficiency_at_least,
            self.goodput_at_least,
        )
        if not any(promised):
            yield f"{key}: no rate is promised: a job at a tenth of its speed passes"

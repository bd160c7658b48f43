"""The job file of a user: image, nodes, accelerators per node, command, style, variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator

from pytest_mnode.errors import UsageError
from pytest_mnode.spec.fields import Page, Some, Text
from pytest_mnode.spec.load import read_model
from pytest_mnode.spec.quantity import shown

HERE, RANKS = "{here}", "{ranks_per_node}"
"""Placeholders in a command: the folder of the job file, and the number of ranks per node."""
Word = Annotated[str, StringConstraints(min_length=1)]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _or_all(least: int) -> BeforeValidator:
    def check(value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if not whole and value != "all":
            raise ValueError(f"{shown(value)}; accepted: a whole number of {least} or more, or all")
        return value

    return BeforeValidator(check)


class LaunchJob(Page):
    """A job as a user describes it."""

    name: Text
    """Name of the job."""
    image: Text | None = None
    """Container image that the command runs in; left out: none."""
    nodes: Annotated[int | Literal["all"], _or_all(1)]
    """Number of nodes, or all."""
    accelerators_per_node: Annotated[int | Literal["all"], _or_all(0)]
    """Number of accelerators per node; 0 if ranks compute on CPUs."""
    ranks_per_node: Some | None = None
    """Number of ranks per node where ranks compute on CPUs; left out: 1. On accelerators it is one
    rank per accelerator."""
    command: Annotated[tuple[Word, ...], Field(min_length=1)]
    """Program and arguments, word by word; {here} stands for the folder of this file, and
    {ranks_per_node} for the number of ranks per node."""
    style: Literal["torchrun", "deepspeed", "megatron", "plain"] = "torchrun"
    """What starts the ranks: one torchrun per node; deepspeed's launcher; the scheduler, with one
    task per rank; or nothing: the command runs once per node."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of every process."""

    @field_validator("env")
    @classmethod
    def _leaves_the_contract(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
                raise ValueError(
                    f"{name} would be the same in every process; accepted: variables that the "
                    "launcher does not set"
                )
            if not _NAME.fullmatch(name):
                raise ValueError(f"{shown(name)}; accepted: names of variables, such as NCCL_DEBUG")
        return env

    @field_validator("ranks_per_node")
    @classmethod
    def _is_one_per_accelerator(cls, ranks: int | None, info: ValidationInfo) -> int | None:
        each = info.data.get("accelerators_per_node")
        if isinstance(each, int) and each and ranks not in (None, each):
            raise ValueError(
                f"{ranks} with accelerators_per_node {each}; accepted: {each}, one per "
                "accelerator, or left out"
            )
        return ranks

    def placed(self, nodes: int, accelerators: int, *, every: int | None = None) -> Self:
        """The job with numbers in place of `all`.

        nodes: the most that it may have. accelerators: per node, of the spec. every: the number of
        nodes that `all` means, if that is not `nodes`. Raises UsageError if the job requests more
        than there is.
        """
        count = (every or nodes) if self.nodes == "all" else self.nodes
        each = accelerators if self.accelerators_per_node == "all" else self.accelerators_per_node
        if count > nodes:
            raise UsageError(f"job {self.name}: nodes {count}; accepted: up to {nodes}")
        if each > accelerators:
            raise UsageError(
                f"job {self.name}: accelerators_per_node {each}; the spec has {accelerators} "
                "per node"
            )
        ranks = each or self.ranks_per_node or 1
        placed = self.model_copy(
            update={"nodes": count, "accelerators_per_node": each, "ranks_per_node": ranks}
        )
        words = tuple(word.replace(RANKS, str(placed.rank_count)) for word in self.command)
        return placed.model_copy(update={"command": words})

    @property
    def node_count(self) -> int:
        assert isinstance(self.nodes, int), "not placed"
        return self.nodes

    @property
    def rank_count(self) -> int:
        return 1 if self.style == "plain" else self.ranks_per_node or 1


def read_job(path: Path) -> LaunchJob:
    """The job in the YAML file `path`.

    Raises UsageError, one line with the file, the dotted key, the value met and the accepted form.
    """
    job = read_model(path, LaunchJob)
    here = str(path.absolute().parent)
    command = tuple(word.replace(HERE, here) for word in job.command)
    return job.model_copy(update={"command": command})

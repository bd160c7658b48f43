"""Promises about a training job that is killed and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pytest_mnode.spec.fields import Fraction, Seconds, Some
from pytest_mnode.spec.inventory import Criterion, Inventory

Kill = Literal["rank", "node", "preemption", "checkpoint"]
KILLS: tuple[Kill, ...] = ("rank", "node", "preemption", "checkpoint")
_Steps = Annotated[int, Field(strict=True, ge=18)]
_LAX = 0.05
"""A larger tolerance also accepts the losses of another learning rate or of skipped samples."""
_KEY = "criteria.restart"


class RestartCriterion(Criterion):
    """A killed job comes back without manual help and loses nothing after its last checkpoint."""

    kills: Annotated[tuple[Kill, ...], Field(min_length=1)] = KILLS
    """What the job comes back from: SIGKILL of a rank; a node that is powered off; preemption,
    which is SIGTERM to the whole job; SIGKILL while a checkpoint is written. Left out: all that the
    site can do, as without a `power` section nothing switches its nodes off."""
    within_s: Seconds = Field(alias="within")
    """Limit from the kill to the end of the first step of the restarted job, such as 60 s."""
    node_loss: Literal["spare", "fewer", "rebooted"] = "spare"
    """Where a job continues after it lost a node: on a standby spare, on one node fewer, or on the
    same node after it was booted again."""
    tolerance: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """Largest relative difference of losses from those of a run that was never killed; 0: equal bit
    by bit, as are final parameters and optimiser states. Above 0 if the backend is not
    deterministic; parameters are then compared as values, relative to the largest."""
    resharded_tolerance: Annotated[Fraction, Field(lt=1)] | None = None
    """The same for a job that continues with another number of ranks, which sum in another order;
    left out: it is not promised that another number of ranks can load checkpoints."""
    checkpoint_within_s: Seconds | None = Field(None, alias="checkpoint_within")
    """Time limit of a checkpoint of the job."""
    visible_within_s: Seconds = Field(60.0, alias="visible_within")
    """Time limit until all nodes see a file that one of them wrote to the shared directory: a file
    server may show it up to a minute late."""
    grace_s: Seconds = Field(30.0, alias="grace")
    """Time that a preempted job is given to save, before it is killed."""
    back_within_s: Seconds = Field(120.0, alias="back_within")
    """How long a job waits for its node to be booted again (node_loss: rebooted)."""
    steps: _Steps = 20
    """Optimiser steps of the job, of which 10 are an epoch; 8 more if a node is lost. A
    checkpoint is saved at every 4th step. Kills come after step 6 (rank), while the checkpoint of
    step 12 is written, after step 14 (preemption) and after step 18 (node)."""
    pause_s: Seconds = Field(0.1, alias="pause")
    """Pause after each step of the runs that are killed. After the step of a kill they wait for it,
    for up to 60 s, so that a scheduler may be slow."""
    parallel: Literal["ddp", "fsdp2"] = "ddp"
    """How the model is trained: replicated, or sharded."""
    width: Some = 64
    """Width of the model's embedding, a multiple of 4; parameters grow with its square."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if len(set(self.kills)) < len(self.kills):
            raise ValueError(f"kills lists one twice; accepted: each of {', '.join(KILLS)} once")
        if self.node_loss == "fewer" and "node" in self.kills and not self.resharded_tolerance:
            raise ValueError(
                "node_loss fewer goes on with another number of ranks; accepted: with "
                "resharded_tolerance, such as 0.01"
            )
        if self.width % 4:
            raise ValueError(f"width {self.width}; accepted: a multiple of 4")
        return self

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """One line for each promise that cannot be kept or tried, or that would hide a fault."""
        shared = cluster.storage and cluster.storage.checkpoints
        if not shared and not cluster.emulated:
            yield (
                f"{_KEY}: promised, and storage.checkpoints names no directory that all nodes see: "
                "unless the launcher finds one, nothing can be judged"
            )
        for key in ("tolerance", "resharded_tolerance"):
            value = getattr(self, key)
            if value is not None and value > _LAX:
                yield (
                    f"{_KEY}.{key}: {value:g} is more than {_LAX:g}: the losses of another job are "
                    "within it"
                )
        if cluster.nodes == 1 and "node" in self.kills and self.node_loss != "rebooted":
            yield (
                f"{_KEY}.kills: node, with node_loss {self.node_loss}, for nodes: 1, which has no "
                "other node to go on with"
            )

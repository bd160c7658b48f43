"""Promises about gang jobs (co-scheduling): they get all of their nodes at once, or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pytest_mnode.spec.fields import Count, Seconds, Text
from pytest_mnode.spec.inventory import Criterion, Inventory
from pytest_mnode.spec.quantity import DURATION

_FEWEST_RUN_S = 1.0
"""Time of a few heartbeats, one every 0.2 s, and of a few polls."""
NodeLoss = Literal["either", "requeued", "cancelled"]


class GangCriterion(Criterion):
    """The scheduler starts a gang whole or lets it wait, and takes it down whole."""

    nodes: Annotated[int, Field(strict=True, ge=2)] | None = None
    """Nodes of a gang; left out: one more than half of the free nodes, so that two never fit."""
    among: Annotated[tuple[Text, ...], Field(min_length=2)] | None = None
    """Names of the nodes that the experiment is confined to; left out: all free nodes."""
    rounds: Annotated[int, Field(strict=True, ge=1)] = 3
    """How often each experiment is repeated, each time in another order."""
    seed: Count = 1
    """Seed of the random orders."""
    runs_s: Seconds = Field(15.0, alias="runs")
    """How long the ranks of a gang run: longer than `together`, so that all run at once."""
    waits_s: Seconds = Field(30.0, alias="waits")
    """How long a gang that has to wait is watched: longer than the scheduler's cycle."""
    next_within_s: Seconds = Field(60.0, alias="next_within")
    """Limit for a job to start once there is room for it, and for an ended job to be gone."""
    settle_s: Seconds | None = Field(None, alias="settle")
    """How long a gang may hold a part of its nodes, if a scheduler binds them one by one; left
    out: never."""
    together_s: Seconds = Field(10.0, alias="together")
    """Time within which all ranks of a gang start, and within which all end."""
    clock_skew_s: Seconds = Field(1.0, alias="clock_skew")
    """Largest difference of a node's clock from the controller's."""
    node_loss: NodeLoss | None = None
    """The fate of a gang whose node dies: requeued whole, cancelled whole, or either; left out:
    not promised. The node is switched by `power`."""
    lost_within_s: Seconds = Field(600.0, alias="lost_within")
    """Limit from a node's death until its gang is taken off all nodes, and until a requeued gang
    runs again; longer than the scheduler takes to notice."""

    @model_validator(mode="after")
    def _can_fail(self) -> Self:
        runs = DURATION.text(self.runs_s)
        if self.together_s >= self.runs_s:
            raise ValueError(
                f"together {DURATION.text(self.together_s)} is no less than runs {runs}: ranks "
                "that run one after another would pass; accepted: less"
            )
        if self.clock_skew_s >= self.runs_s:
            raise ValueError(
                f"clock_skew {DURATION.text(self.clock_skew_s)} is no less than runs {runs}: "
                "heartbeats would prove nothing; accepted: less"
            )
        if self.nodes is not None and self.among is not None and self.nodes > len(self.among):
            raise ValueError(
                f"nodes {self.nodes} is more than the {len(self.among)} nodes of among; accepted: "
                "as many, or fewer"
            )
        return self

    def doubts(self, cluster: Inventory) -> Iterator[str]:  # noqa: ARG002
        """One line for each promise under which a fault would not show."""
        runs = DURATION.text(self.runs_s)
        settle = None if self.settle_s is None else DURATION.text(self.settle_s)
        if self.runs_s < _FEWEST_RUN_S:
            yield (
                f"criteria.gang.runs: {runs} is less than {DURATION.text(_FEWEST_RUN_S)}: "
                "a gang may start and end between two polls"
            )
        if self.settle_s is not None and self.settle_s >= self.runs_s:
            yield (
                f"criteria.gang.settle: {settle} is no less than runs, {runs}: "
                "half a gang that never gets the rest passes"
            )
        # Clocks of two nodes may differ by twice as much.
        skew, excused = DURATION.text(self.clock_skew_s), 2 * self.clock_skew_s
        for key in ("runs", "waits"):
            seconds = getattr(self, f"{key}_s")
            if excused >= seconds:
                yield (
                    f"criteria.gang.clock_skew: {skew} either way is no less than {key}, "
                    f"{DURATION.text(seconds)}: ranks that run at the wrong time pass for "
                    "clocks that differ"
                )

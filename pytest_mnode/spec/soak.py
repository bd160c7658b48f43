"""Promises about a cluster under load for hours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from pytest_mnode.spec.fields import Count, Seconds
from pytest_mnode.spec.inventory import Criterion, Inventory

Hours = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SoakCriterion(Criterion):
    """Nodes stay right, connected and as fast under load: a test plan of fixed length."""

    for_s: Seconds = Field(alias="for")
    """How long all nodes are loaded, such as 4 h. A shorter soak is inconclusive."""
    failures_at_most: Count = 0
    """Number of rounds with a failure that is accepted, in each `node_hours`."""
    node_hours: Hours | None = None
    """Hours under load, added up over nodes and runs, that the number is promised for, such as 37.
    Fewer are inconclusive. Left out: those of this soak."""
    slower_at_most_fraction: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.1
    """Part of a rate of a node that may be lost from the first quarter to the last. [choice] GPUs
    lose a few per cent of their clock while they warm up."""

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        if cluster.nodes is None or self.node_hours is None:
            return
        there = cluster.nodes * self.for_s / 3600
        if there < self.node_hours:
            yield (
                f"criteria.soak.node_hours: {self.node_hours:g}, but {cluster.nodes} nodes soak "
                f"for {there:.4g} node-hours: no single run can keep the promise"
            )

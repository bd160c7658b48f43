"""Training over more and more nodes: throughput, efficiency, and where every lost second went.

One world trains the reference job over all numbers of nodes in turn, in the same processes
(`program`, in ranks). What it measured is one value (`timings`), from which efficiency, parts of
the loss, causes and verdict follow by functions from values to values (`efficiency`, `attribution`,
`causes`, `network`, `judge`). The controller opens the world (`job`) and never imports torch.
"""

from __future__ import annotations

from pytest_mnode.criteria.scaling.charts import charts
from pytest_mnode.criteria.scaling.job import JobOnce
from pytest_mnode.criteria.scaling.judge import (
    ScalingResult,
    judge_efficiency,
    judge_parts,
)
from pytest_mnode.criteria.scaling.network import judge_network
from pytest_mnode.criteria.scaling.table import table

__all__ = [
    "JobOnce",
    "ScalingResult",
    "charts",
    "judge_efficiency",
    "judge_network",
    "judge_parts",
    "table",
]

"""Data in ranks: the samples they read, the optimiser's gradients, their random numbers.

`in_ranks` runs in ranks, with the classes of torch or of a test, and gathers their reports.
`readings`, `batches`, `metrics` and `digests` judge these reports, without torch. `seeds` starts
ranks twice and compares their draws. All of these are for users' tests too. `checks` has what the
certificate asks of a cluster: what nodes with other versions, settings, storage or a network that
changes values turn red. The scaling criterion measures how fast data are read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_mnode.checks.data.digests import (
    Digests,
    judge_alike,
    judge_depends,
    judge_distinct,
    judge_files,
    judge_reproduced,
    read_files,
)
from pytest_mnode.checks.data.metrics import judge_count, judge_mean
from pytest_mnode.checks.data.readings import (
    Reading,
    SamplerFacts,
    judge_again,
    judge_orders,
    judge_resumed,
    judge_shards,
    padding_of,
    tail_of,
)
from pytest_mnode.checks.data.seeds import one_seed_of_two_runs, seeds_of_two_runs
from pytest_mnode.checks.judged import At

if TYPE_CHECKING:
    from pytest_mnode.checks.data import checks
    from pytest_mnode.checks.data.batches import judge_batches
    from pytest_mnode.checks.data.in_ranks import (
        Indices,
        Ledger,
        count,
        draw,
        mean,
        mean_over_ranks,
        read,
        read_epochs,
        sharded,
        sum_over_ranks,
    )
    from pytest_mnode.measuring.ranks import gathered

__all__ = [
    "At",
    "Digests",
    "Indices",
    "Ledger",
    "Reading",
    "SamplerFacts",
    "checks",
    "count",
    "draw",
    "gathered",
    "judge_again",
    "judge_alike",
    "judge_batches",
    "judge_count",
    "judge_depends",
    "judge_distinct",
    "judge_files",
    "judge_mean",
    "judge_orders",
    "judge_reproduced",
    "judge_resumed",
    "judge_shards",
    "mean",
    "mean_over_ranks",
    "one_seed_of_two_runs",
    "padding_of",
    "read",
    "read_epochs",
    "read_files",
    "seeds_of_two_runs",
    "sharded",
    "sum_over_ranks",
    "tail_of",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "checks":
        return import_module(f"{__name__}.checks")
    return getattr(import_module(f"{__name__}.in_ranks"), name)

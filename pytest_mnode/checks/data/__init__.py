"""Data in ranks: who reads which samples, what the optimiser sees of them, what is drawn at random.

`reading`, `ledger`, `reducing` and `drawing` find out in ranks what happens, of torch's own classes
as of one's own; `shards`, `orders`, `batches`, `metrics`, `seeds` and `files` judge what all ranks
said, from values to values and without torch. `checks` are the questions of the certificate. How
fast data comes is for `scaling` to say, and whether a path is there for `preflight`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.checks.data.batches import GlobalBatch, judge_batches
    from pytest_mnode.checks.data.drawing import draw
    from pytest_mnode.checks.data.facts import At, Draws, Reading, SamplerFacts
    from pytest_mnode.checks.data.files import judge_files, read_files
    from pytest_mnode.checks.data.ledger import Ledger
    from pytest_mnode.checks.data.metrics import judge_count, judge_mean
    from pytest_mnode.checks.data.orders import judge_again, judge_orders
    from pytest_mnode.checks.data.reading import Indices, read, read_epochs, sharded
    from pytest_mnode.checks.data.reducing import count, mean, mean_over_ranks, sum_over_ranks
    from pytest_mnode.checks.data.runs import seeds_of_two_runs
    from pytest_mnode.checks.data.seeds import judge_depends, judge_distinct, judge_reproduced
    from pytest_mnode.checks.data.shards import judge_resumed, judge_shards, padding_of, tail_of
    from pytest_mnode.measuring.agree import gathered

_HOME = {
    "GlobalBatch": "batches",
    "judge_batches": "batches",
    "draw": "drawing",
    **dict.fromkeys(("At", "Draws", "Reading", "SamplerFacts"), "facts"),
    **dict.fromkeys(("judge_files", "read_files"), "files"),
    "Ledger": "ledger",
    **dict.fromkeys(("judge_count", "judge_mean"), "metrics"),
    **dict.fromkeys(("Indices", "read", "read_epochs", "sharded"), "reading"),
    **dict.fromkeys(("count", "mean", "mean_over_ranks", "sum_over_ranks"), "reducing"),
    "seeds_of_two_runs": "runs",
    **dict.fromkeys(("judge_depends", "judge_distinct", "judge_reproduced"), "seeds"),
    **dict.fromkeys(("judge_again", "judge_orders"), "orders"),
    **dict.fromkeys(("judge_resumed", "judge_shards", "padding_of", "tail_of"), "shards"),
}

__all__ = [
    "At",
    "Draws",
    "GlobalBatch",
    "Indices",
    "Ledger",
    "Reading",
    "SamplerFacts",
    "count",
    "draw",
    "gathered",
    "judge_again",
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
    if name == "gathered":
        return import_module("pytest_mnode.measuring.agree").gathered
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

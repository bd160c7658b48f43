"""Measuring: collectives over sizes, pairs of nodes one at a time, what the links carried.

Runs in ranks, over the default process group, and every function is called by all of them. What is
returned is agreed: the same numbers on every rank, so that all take the same branch. Nothing here
judges; bounds come from the spec and verdicts from `measure`. Importing the package alone does not
import torch, so a test file may in the controller: `from pytest_mnode import bench`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.bench.collectives import ALL_GATHER, ALL_REDUCE, BROADCAST
    from pytest_mnode.bench.fabric import measured_busbw
    from pytest_mnode.bench.mesh import exchange
    from pytest_mnode.bench.sweep import sweep, wrong_values

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "BROADCAST",
    "exchange",
    "measured_busbw",
    "sweep",
    "wrong_values",
]

_MODULES = ("collectives", "sweep", "mesh", "fabric")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if name in vars(found):
                return vars(found)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

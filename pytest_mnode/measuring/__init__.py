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
    from pytest_mnode.measuring.collectives import (
        ALL_GATHER,
        ALL_REDUCE,
        ALL_TO_ALL,
        BROADCAST,
        COLLECTIVES,
        REDUCE_SCATTER,
        SEND_RECV,
    )
    from pytest_mnode.measuring.copies import near_and_far
    from pytest_mnode.measuring.devices import compare_copy, compare_matmul, wrong_products
    from pytest_mnode.measuring.fabric import measured_busbw
    from pytest_mnode.measuring.findings import Findings
    from pytest_mnode.measuring.locate import located
    from pytest_mnode.measuring.mesh import DTYPES, exchange, sums, whose
    from pytest_mnode.measuring.numa import placement
    from pytest_mnode.measuring.sweep import wrong_values
    from pytest_mnode.measuring.transport import prove_transport

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "BROADCAST",
    "COLLECTIVES",
    "DTYPES",
    "REDUCE_SCATTER",
    "SEND_RECV",
    "Findings",
    "compare_copy",
    "compare_matmul",
    "exchange",
    "located",
    "measured_busbw",
    "near_and_far",
    "placement",
    "prove_transport",
    "sums",
    "whose",
    "wrong_products",
    "wrong_values",
]

_MODULES = (
    "collectives",
    "sweep",
    "mesh",
    "fabric",
    "findings",
    "locate",
    "numa",
    "copies",
    "devices",
    "transport",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if name in vars(found):
                return vars(found)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

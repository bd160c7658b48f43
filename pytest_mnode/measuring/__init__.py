"""Measuring: collectives over sizes, pairs of nodes one at a time, devices, copies, byte counters.

The code runs in ranks, over the default process group, and all ranks call every function. Results
are the same on every rank, so that all ranks take the same branch. Nothing here judges: bounds come
from the spec, and judges live in `pytest_mnode.criteria`. Importing the package alone does not
import torch, so that a test file may import it in the controller.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.measuring.at_once import beside, bisection, incast
    from pytest_mnode.measuring.busbw import KnownCulprits, measure_busbw
    from pytest_mnode.measuring.checked_calls import wrong_values
    from pytest_mnode.measuring.collectives import (
        ALL_GATHER,
        ALL_REDUCE,
        ALL_TO_ALL,
        BROADCAST,
        COLLECTIVES,
        REDUCE_SCATTER,
        SEND_RECV,
    )
    from pytest_mnode.measuring.failover import fail_over
    from pytest_mnode.measuring.latency import latencies
    from pytest_mnode.measuring.locating.locate import find_slow_links
    from pytest_mnode.measuring.messages import DTYPES, exchange, sums
    from pytest_mnode.measuring.naming import culprit_of
    from pytest_mnode.measuring.switches import look_at_switches
    from pytest_mnode.measuring.transport import prove_transport

_HOMES = {
    "at_once": ("beside", "bisection", "incast"),
    "busbw": ("KnownCulprits", "measure_busbw"),
    "checked_calls": ("wrong_values",),
    "failover": ("fail_over",),
    "latency": ("latencies",),
    "locating.locate": ("find_slow_links",),
    "messages": ("DTYPES", "exchange", "sums"),
    "naming": ("culprit_of",),
    "switches": ("look_at_switches",),
    "transport": ("prove_transport",),
}
"""Names by module; all others are in `collectives`."""
__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "BROADCAST",
    "COLLECTIVES",
    "DTYPES",
    "REDUCE_SCATTER",
    "SEND_RECV",
    "KnownCulprits",
    "beside",
    "bisection",
    "culprit_of",
    "exchange",
    "fail_over",
    "find_slow_links",
    "incast",
    "latencies",
    "look_at_switches",
    "measure_busbw",
    "prove_transport",
    "sums",
    "wrong_values",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "collectives")
    return getattr(import_module(f"{__name__}.{home}"), name)

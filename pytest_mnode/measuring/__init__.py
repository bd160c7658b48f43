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
    from pytest_mnode.measuring.copies import near_and_far
    from pytest_mnode.measuring.devices import compare_copy, compare_matmul
    from pytest_mnode.measuring.failover import fail_over
    from pytest_mnode.measuring.host_memory import compare_host_memory
    from pytest_mnode.measuring.inside_node import compare_inside_nodes
    from pytest_mnode.measuring.latency import latencies
    from pytest_mnode.measuring.locating.locate import find_slow_links
    from pytest_mnode.measuring.memory_test import check_memory
    from pytest_mnode.measuring.messages import DTYPES, exchange, sums
    from pytest_mnode.measuring.naming import culprit_of
    from pytest_mnode.measuring.numa import placement
    from pytest_mnode.measuring.repeated_products import compare_products
    from pytest_mnode.measuring.results_of_ranks import repeated_steps, wrong_products
    from pytest_mnode.measuring.switches import look_at_switches
    from pytest_mnode.measuring.transport import prove_transport
    from pytest_mnode.measuring.under_load import devices_under_load

_HOMES = {
    "at_once": ("beside", "bisection", "incast"),
    "busbw": ("KnownCulprits", "measure_busbw"),
    "checked_calls": ("wrong_values",),
    "copies": ("near_and_far",),
    "devices": ("compare_copy", "compare_matmul"),
    "failover": ("fail_over",),
    "host_memory": ("compare_host_memory",),
    "inside_node": ("compare_inside_nodes",),
    "latency": ("latencies",),
    "locating.locate": ("find_slow_links",),
    "memory_test": ("check_memory",),
    "messages": ("DTYPES", "exchange", "sums"),
    "naming": ("culprit_of",),
    "numa": ("placement",),
    "repeated_products": ("compare_products",),
    "results_of_ranks": ("repeated_steps", "wrong_products"),
    "switches": ("look_at_switches",),
    "transport": ("prove_transport",),
    "under_load": ("devices_under_load",),
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
    "check_memory",
    "compare_copy",
    "compare_host_memory",
    "compare_inside_nodes",
    "compare_matmul",
    "compare_products",
    "culprit_of",
    "devices_under_load",
    "exchange",
    "fail_over",
    "find_slow_links",
    "incast",
    "latencies",
    "look_at_switches",
    "measure_busbw",
    "near_and_far",
    "placement",
    "prove_transport",
    "repeated_steps",
    "sums",
    "wrong_products",
    "wrong_values",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "collectives")
    return getattr(import_module(f"{__name__}.{home}"), name)

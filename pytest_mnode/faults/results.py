"""Faults of results that one node computes and receives: wrong now and then, without an error.

Ranks that the node starts from then on call `spoiled.py` first. Jobs started by torchrun do not.
"""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.faults.registry import Undo, fault, size, whole
from pytest_mnode.faults.tools import undone_once
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack

SPOILED = Path(__file__).with_name("spoiled.py")
EVERY = 7
LEAST_BYTES = 1 << 10
"""Smallest result that is spoiled: by smaller ones, ranks agree on what to do next."""


@fault(whole("EVERY", "7"), size("SIZE", "1 KiB"))
def stale_results(rack: Rack, node: Node, every: int | None, size_bytes: int | None) -> Undo:
    """One in EVERY of a node's collectives of SIZE or more returns the previous call's result."""
    return _spoiled(rack, node, "stale", every or EVERY, size_bytes or LEAST_BYTES)


@fault(whole("EVERY", "7"))
def wrong_layers(rack: Rack, node: Node, every: int | None) -> Undo:
    """One in EVERY of the linear layers that a node computes has wrong values in its result."""
    return _spoiled(rack, node, "wrong", every or EVERY)


def _spoiled(rack: Rack, node: Node, function: str, *values: int) -> Undo:
    rack.start_ranks(node, first=(str(SPOILED), function, *map(str, values)))
    return undone_once(rack, lambda: rack.start_ranks(node, first=()))

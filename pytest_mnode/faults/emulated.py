"""Faults of what a node emulates: its accelerator and its loader, in the job that is scaled.

Only where the job's computing is emulated; jobs that run already keep the accelerator they have.
"""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.faults.acting import inside, undone_once
from pytest_mnode.faults.registry import Undo, fault, number
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.reference_job.emulated import COMPUTE_FACTOR, INPUT_PAUSE

FACTOR, PAUSE_MS = 1.4, 30.0


@fault(number("FACTOR", "1.4", above=1.0, up_to=100))
def slow_device(rack: Rack, node: Node, factor: float | None) -> Undo:
    """A node's emulated accelerator computes this many times slower."""
    return _left(rack, node, COMPUTE_FACTOR, factor or FACTOR)


@fault(number("MS", "30", up_to=10_000))
def slow_input(rack: Rack, node: Node, pause_ms: float | None) -> Undo:
    """A node reads each sample of its input later."""
    return _left(rack, node, INPUT_PAUSE, (pause_ms or PAUSE_MS) / 1e3)


def _left(rack: Rack, node: Node, path: Path, value: float) -> Undo:
    """A file with a number, for the node's own eyes."""
    inside(rack, node, "write", str(path), data=f"{value!r}\n".encode())
    return undone_once(rack, lambda: _removed(rack, node, path), node)


def _removed(rack: Rack, node: Node, path: Path) -> None:
    inside(rack, node, "remove", str(path))

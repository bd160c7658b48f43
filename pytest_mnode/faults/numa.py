"""Faults of placement: a node binds the ranks that it starts from then on wrongly.

Ranks that run already stay where they are.
"""

from __future__ import annotations

from pytest_mnode.faults.acting import undone_once
from pytest_mnode.faults.registry import Undo, fault
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack


@fault()
def numa_swapped(rack: Rack, node: Node) -> Undo:
    """A node binds its ranks to the CPUs of another socket than their accelerator's."""
    return _misbound(rack, node, "swapped")


@fault()
def numa_unbound(rack: Rack, node: Node) -> Undo:
    """A node does not bind its ranks at all."""
    return _misbound(rack, node, "unbound")


@fault()
def numa_crowded(rack: Rack, node: Node) -> Undo:
    """A node binds all of its ranks to one core, which shows from two ranks a node on."""
    return _misbound(rack, node, "crowded")


def _misbound(rack: Rack, node: Node, how: str) -> Undo:
    rack.misbind(node, how)
    return undone_once(rack, lambda: rack.misbind(node, ""))

"""What can go wrong on the rack, one function each, and injected for real.

A fault is applied while the rack is up, at the switch where that is possible, so that nodes see
only symptoms. `inject(rack, "slow_pair:node1+node3:20")` reads a text as `--mnode-fault` takes it
and returns the undo: a function without arguments that may be called again to no effect, and that
does nothing once the rack is closed. Undo faults of one node in reverse order of injection.
`FAULTS` lists all by name, with their accepted form and defaults. Nothing outlives the rack: what
a fault makes is in the rack's namespaces and dies with them, or is removed by the rack's keeper.
A node that is switched off and booted again is rid of what was done within it, and keeps what was
done to its links.

What faults look like from outside, and who is to blame, is judged elsewhere.
"""

from __future__ import annotations

from pytest_mnode.errors import UsageError
from pytest_mnode.faults import (  # noqa: F401  enter their faults
    clock,
    cpu,
    emulated,
    files,
    limits,
    names,
    network,
    numa,
)
from pytest_mnode.faults.acting import all_undone
from pytest_mnode.faults.registry import FAULTS, Fault, Injection, Undo, listing, parse
from pytest_mnode.launchers.rack import Rack

__all__ = ["FAULTS", "Fault", "Injection", "Undo", "inject", "listing", "parse"]


def inject(rack: Rack, text: str) -> Undo:
    """Make the faults of this text happen ("NAME:NODE[:VALUE][,…]"); returns their undo.

    Raises UsageError for a text that is not accepted, for nodes and links that the rack has not,
    and for what a fault needs and is not here; ClusterError where injecting fails. Nothing is
    left of any then.
    """
    undos: list[Undo] = []
    by_name = {node.name: node for node in rack.nodes}
    injections = parse(text)
    for injection in injections:
        for name in injection.nodes:
            if name not in by_name:
                there = f"{rack.nodes[0].name} to {rack.nodes[-1].name}"
                raise UsageError(f"fault {injection.text!r}: no node {name!r}; accepted: {there}")
    try:
        for injection in injections:
            nodes = [by_name[name] for name in injection.nodes]
            try:
                undos.append(injection.fault.function(rack, *nodes, *injection.values))
            except UsageError as error:
                raise UsageError(f"fault {injection.text!r}: {error}") from None
    except BaseException:
        all_undone(undos)()
        raise
    return all_undone(undos)

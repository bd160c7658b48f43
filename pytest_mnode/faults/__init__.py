"""Faults of the rack, injected for real: one function per fault.

`inject(rack, "slow_pair:node1+node3:20")` takes the text of `--mnode-fault`, applies the fault
while the rack is up, and returns its undo: a function that may be called again without effect, and
that does nothing after the rack was closed. With a `Schedule` at its end, such as "@15min", a fault
comes later. `FAULTS` lists all faults by name.

Where possible faults are applied at the switch, so that nodes see only symptoms. Undo faults of one
node in reverse order of injection. Nothing outlives the rack: what a fault makes is in the rack's
namespaces and ends with them, or the rack's cleanup removes it. A node that is switched off and on
again loses what was done inside it, and keeps what was done to its links.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from pytest_mnode.errors import UsageError
from pytest_mnode.faults import files, network, processes  # noqa: F401  enter their faults
from pytest_mnode.faults.registry import FAULTS, Fault, Injection, Undo, listing, parse
from pytest_mnode.faults.tools import all_undone, nodes_of, scheduled
from pytest_mnode.launchers.rack import Rack

__all__ = ["FAULTS", "Fault", "Injection", "Undo", "inject", "listing", "parse"]


def inject(rack: Rack, text: str) -> Undo:
    """Inject the faults of this text ("NAME:NODE[:VALUE][@AFTER…][,…]"); returns their undo.

    Raises UsageError for a text that is not accepted, for nodes and links that the rack does not
    have, and for a missing program; ClusterError if injecting fails. All are undone then.
    """
    undos: list[Undo] = []
    by_name = {node.name: node for node in rack.nodes}
    injections = parse(text)
    for injection in injections:
        for name in injection.nodes:
            if name not in by_name:
                accepted = nodes_of(rack)
                raise UsageError(
                    f"fault {injection.text!r}: no node {name!r}; accepted: {accepted}"
                )
        if injection.fault.program is not None:
            with _named(injection):
                injection.fault.program.path()
    try:
        for injection in injections:
            nodes = [by_name[name] for name in injection.nodes]
            make = partial(injection.fault.function, rack, *nodes, *injection.values)
            with _named(injection):
                undos.append(scheduled(rack, make, when) if (when := injection.when) else make())
    except BaseException:
        all_undone(undos)()
        raise
    return all_undone(undos)


@contextlib.contextmanager
def _named(injection: Injection) -> Iterator[None]:
    """Have a UsageError name the fault."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"fault {injection.text!r}: {error}") from None

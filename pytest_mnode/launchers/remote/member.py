"""A node of a run, from what it said of itself."""

from __future__ import annotations

from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.remote import looking
from pytest_mnode.launchers.remote.looking import Look
from pytest_mnode.spec import Spec


def member(index: int, address: str, look: Look, spec: Spec) -> Node:
    """It, under the name that it has for itself; address: where others reach it."""
    interface = looking.fabric_interface(look, spec.fabric.kind, spec.fabric.interfaces)
    found = (look.networks or {}).get(interface.partition(",")[0], ()) if interface else ()
    return Node(
        name=look.hostname,
        index=index,
        address=address,
        fabric_address=found[0] if found else None,
        fabric_interface=interface,
    )

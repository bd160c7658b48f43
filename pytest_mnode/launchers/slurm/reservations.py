"""Reservations as Slurm tells of them: `scontrol --oneliner show reservation`."""

from __future__ import annotations

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.hostlist import expand
from pytest_mnode.launchers.slurm.fields import records, text_of


def reserved_nodes(text: str, name: str) -> tuple[str, ...]:
    """Nodes of a reservation that is active, out of the list of those there are.

    Raises ClusterError, one line, where it is not there or not active, or has no nodes.
    """
    found = {record["ReservationName"]: record for record in records(text, "ReservationName")}
    if name not in found:
        there = ", ".join(found) or "none"
        raise ClusterError(f"Slurm has no reservation {name}; there are: {there}")
    state = found[name].get("State", "")
    if state != "ACTIVE":
        raise ClusterError(f"reservation {name} is {state or 'in no state'}: no job starts in it")
    nodes = expand(text_of(found[name].get("Nodes")) or "")
    if not nodes:
        raise ClusterError(f"reservation {name} has no nodes")
    return nodes

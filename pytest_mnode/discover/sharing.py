"""What interfaces share: an address with another node, a wire with one another. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pytest_mnode.discover.facts import Nic, Seen


def shared_addresses(nodes: Iterable[Seen]) -> frozenset[str]:
    """Addresses that more than one node has: those of containers' bridges, or of one machine."""
    counted = Counter(
        address
        for node in nodes
        for address in {
            a for nic in (node.look.nics if node.look else None) or () for a in nic.addresses
        }
    )
    return frozenset(address for address, count in counted.items() if count > 1)


def one_a_wire(links: Sequence[Nic], control: str) -> tuple[list[Nic], list[str]]:
    """Interfaces that share no wire, and of the others on whose wire they are.

    The one that has the address for control stands for its wire, else the one that has the device.
    """
    ranked = sorted(
        links, key=lambda nic: (control not in nic.addresses, nic.name not in nic.wires)
    )
    kept: list[Nic] = []
    doubled = []
    for nic in ranked:
        first = next((one for one in kept if set(one.wires) & set(nic.wires)), None)
        if first is None:
            kept.append(nic)
        else:
            doubled.append(f"{nic.name} is on the wire of {first.name}")
    return [nic for nic in links if nic in kept], doubled

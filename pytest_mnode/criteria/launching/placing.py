"""Where a job is started again, and whether it ran there and its address followed it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_mnode.criteria.launching.starting import Started
    from pytest_mnode.measure import Measure


def elsewhere(nodes: Sequence[str], count: int | None = None) -> tuple[str, ...]:
    """Other nodes than the first ones, as far as there are: the last `count`, the last one first.

    count: None: half of them, of two and more.
    """
    count = count or max(2, len(nodes) // 2)
    return tuple(reversed(nodes[-count:]))


def record_place(
    measure: Measure, now: Started, asked: Sequence[str], addresses: Mapping[str, str]
) -> None:
    """Whether a job ran on the nodes that were asked for, and MASTER_ADDR followed it there.

    asked: in the order of ranks, unless the path has an order of its own. addresses: by which
    others reach them, and all other nodes.
    """
    reports = now.outcome.reports
    ran_on = {report.node for report in reports}
    strange = sorted(ran_on - set(asked))
    missing = [node for node in asked if node not in ran_on]
    measure(
        f"{now.what}: nodes that it ran on as asked",
        max(0, len(asked) - len(missing) - len(strange)) if reports else None,
        equals=len(asked),
        source=f"placed on {', '.join(asked)}",
        culprit=", ".join(strange or missing) or None,
    )
    first = now.submitted.nodes[0] if set(now.submitted.nodes) == set(asked) else asked[0]
    others = other_addresses(first, addresses, now.outcome.hosts)
    right = own_addresses(now, first, addresses) - set(others)
    said = [r.contract.get("MASTER_ADDR", "none") for r in reports]
    wrong = sorted(set(said) - right)
    measure(
        f"{now.what}: ranks whose MASTER_ADDR is the first node's",
        sum(address in right for address in said) if reports else None,
        equals=now.expected.size,
        source=f"{first} is at {addresses[first]}",
        culprit=", ".join(f"MASTER_ADDR={a} ({others.get(a, 'no node')})" for a in wrong) or None,
    )


def own_addresses(now: Started, first: str, addresses: Mapping[str, str]) -> set[str]:
    """What MASTER_ADDR may be: the first node's address, its name, or what is found to be its own.

    A loopback address is every node's, and only right where all are one machine.
    """
    found = {
        address
        for r in now.outcome.reports
        if r.node == first and r.master_is_here and (address := r.contract.get("MASTER_ADDR"))
    }
    own = {addresses[first], first, now.outcome.hosts.get(first, first)}
    return own | {address for address in found if not _is_loopback(address)}


def other_addresses(
    first: str, addresses: Mapping[str, str], hosts: Mapping[str, str]
) -> dict[str, str]:
    """Addresses and names of all other nodes, and whose they are."""
    own = {addresses[first], first, hosts.get(first, first)}
    named = [(name, node) for node in addresses for name in (node, hosts.get(node, node))]
    known = [(address, node) for node, address in addresses.items()]
    return {name: node for name, node in (*known, *named) if name not in own}


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.startswith("localhost.")

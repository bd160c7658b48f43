"""Whether nodes are different machines with different names, and can reach each other. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from pytest_mnode.launchers.remote.node_report import NodeReport


def check_distinct(
    reports: Mapping[str, NodeReport], addresses: Mapping[str, str]
) -> dict[str, str]:
    """Problems between nodes, one line each, by the names that the user or Slurm gave them.

    addresses: by the same names, the address at which other nodes reach each node.
    """
    problems: dict[str, str] = {}
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for given, report in reports.items():
        address = addresses[given]
        if (first := names.setdefault(report.hostname, given)) != given:
            problems[given] = _same_name(first, reports[first], report)
        elif len(reports) > 1 and _is_loopback(address):
            problems[given] = (
                f"its address is {address}, which is every node's own; name it by one at which "
                "the other nodes reach it"
            )
        elif _needs_a_scope(address):
            problems[given] = (
                f"its address is {address}, which is good on one link only, by the name that each "
                "machine has for that link; name it by one at which the other nodes reach it"
            )
        elif (first := taken.setdefault(address, given)) != given:
            problems[given] = (
                f"its address is {address}, and so is {first}'s; ranks need one that is its own, "
                "at which the other nodes reach it"
            )
    return problems


def _same_name(first: str, known: NodeReport, report: NodeReport) -> str:
    """One machine has one boot id; the rack's nodes share one, but differ by name."""
    if None in (known.boot, report.boot):
        return (
            f"it calls itself {report.hostname}, as {first} does: one machine, or two of one name"
        )
    if known.boot == report.boot:
        return f"it is one machine with {first}: {report.hostname}"
    return f"it calls itself {report.hostname}, as {first} does; give them names of their own"


def _needs_a_scope(address: str) -> bool:
    """Link-local IPv4 addresses need no scope."""
    found = _number(address)
    return found is not None and found.version == 6 and found.is_link_local


def _is_loopback(address: str) -> bool:
    found = _number(address)
    if found is None:
        return address == "localhost" or address.startswith("localhost.")
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _number(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None if `address` is a host name."""
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None

"""Whether nodes are different machines with different names, and can reach each other. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from pytest_mnode.launchers.remote.node_report import NodeReport

_LOCALHOST = ("localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")
"""Names of loopback addresses in the hosts files of distributions."""


def check_distinct(
    reports: Mapping[str, NodeReport], addresses: Mapping[str, str]
) -> dict[str, str]:
    """Problems between nodes, one line each, by the names that the user or a scheduler gave them.

    addresses: by the same names, the address at which other nodes reach each node.
    """
    problems: dict[str, str] = {}
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for given, report in reports.items():
        address = addresses[given]
        if (first := names.setdefault(report.hostname, given)) != given:
            problems[given] = _same_name(first, reports[first], report)
        elif len(reports) > 1 and is_loopback(address):
            problems[given] = (
                f"its address {address} is a loopback address; name it by an address at which the "
                "other nodes reach it"
            )
        elif _needs_a_scope(address):
            problems[given] = (
                f"its address {address} is link-local and needs a scope id, which differs between "
                "machines; name it by an address at which the other nodes reach it"
            )
        elif (first := taken.setdefault(address, given)) != given:
            problems[given] = (
                f"its address {address} is also {first}'s; ranks need an address of this node "
                "alone, at which the other nodes reach it"
            )
    return problems


def _same_name(first: str, known: NodeReport, report: NodeReport) -> str:
    """One machine has one boot id; the rack's nodes share one, but differ by name."""
    if None in (known.boot, report.boot):
        return (
            f"its host name {report.hostname} is also {first}'s: the same machine, or a duplicate "
            "name"
        )
    if known.boot == report.boot:
        return f"it is the same machine as {first}: {report.hostname}"
    return f"its host name {report.hostname} is also {first}'s; give each machine a unique name"


def _needs_a_scope(address: str) -> bool:
    found = _number(address)
    return found is not None and found.version == 6 and found.is_link_local


def is_loopback(address: str) -> bool:
    """Whether an address or a name means the machine that uses it."""
    found = _number(address)
    if found is None:
        return address.partition(".")[0] in _LOCALHOST
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _number(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None if `address` is a host name."""
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None

"""TCP connections of this process, and which interface has which address."""

from __future__ import annotations

import ipaddress

import psutil


def established() -> tuple[tuple[tuple[str, int], tuple[str, int]], ...] | None:
    """((address, port), (peer's address, its port)) of each connection; None: cannot be read.

    Those of all threads of this process. IPv4 addresses in IPv6 sockets are given as IPv4.
    """
    try:
        found = psutil.Process().net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    return tuple(
        ((plain(c.laddr.ip), c.laddr.port), (plain(c.raddr.ip), c.raddr.port))
        for c in found
        if c.status == psutil.CONN_ESTABLISHED and c.laddr and c.raddr
    )


def interface_addresses() -> dict[str, str]:
    """IP address to the interface that has it, in this network namespace."""
    return {
        plain(address.address): name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family.name in ("AF_INET", "AF_INET6")
    }


def plain(address: str) -> str:
    """An address in the one form that all are compared in; without the zone of fe80::1%eth0."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)

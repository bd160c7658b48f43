"""Numeric addresses: the address at which nodes reach this machine, and their socket formats."""

from __future__ import annotations

import socket

from pytest_mnode.errors import ClusterError


def towards(address: str) -> str:
    """This machine's source address for packets to `address`; no packet is sent.

    Raises ClusterError if there is no route to `address`.
    """
    try:
        [(family, _, _, _, where), *_] = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError as error:
        raise ClusterError(f"no route from this machine to {address}: {error.strerror}") from None


def family_of(address: str) -> socket.AddressFamily:
    """Socket family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET

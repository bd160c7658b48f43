"""Numeric addresses: this machine's own as nodes are to reach it, and how sockets take them."""

from __future__ import annotations

import socket

from pytest_mnode.errors import ClusterError


def towards(address: str) -> str:
    """The address of this machine that packets to `address` leave from; nothing is sent.

    Raises ClusterError where there is no way there.
    """
    try:
        [(family, _, _, _, where), *_] = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError as error:
        raise ClusterError(f"no way from this machine to {address}: {error.strerror}") from None


def family_of(address: str) -> socket.AddressFamily:
    """Of the socket that a numeric address needs."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def endpoint(address: str, port: int | str) -> str:
    """As zmq takes it."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"

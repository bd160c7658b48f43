"""Kernel tables of this network namespace, read by netlink.

pyroute2 would do this too, but takes longer to import than a survey of a whole node takes.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

_NLM_F_DUMP, _NLM_F_REQUEST = 0x300, 0x001
_ERROR, _DONE = 2, 3
_ENDS = (_ERROR, _DONE)
_NOTHING = (_DONE, b"")
_HEADER = struct.Struct("=IHHII")
_STATUS = struct.Struct("=i")
_ATTRIBUTE = struct.Struct("=HH")
_LIMIT_S = 1.0


def dumped(request: int, body: bytes) -> Iterator[bytes]:
    """Packets of the kernel's answer to a request for a whole table.

    Raises OSError if the kernel does not answer, or refuses.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(_LIMIT_S)
        flags = _NLM_F_REQUEST | _NLM_F_DUMP
        netlink.sendall(_HEADER.pack(_HEADER.size + len(body), request, flags, 1, 0) + body)
        kind = 0
        while kind not in _ENDS:
            data = netlink.recv(1 << 17)
            kind, last = (messages(data) or [_NOTHING])[-1]
            # Both an error and the end of a table begin with a status, which is negative or 0.
            status = -_STATUS.unpack_from(last)[0] if kind in _ENDS and len(last) >= 4 else 0
            if status > 0:
                raise OSError(status, os.strerror(status), "netlink")
            yield data


def answered(request: int, body: bytes) -> list[tuple[int, bytes]]:
    """Messages of the kernel's answer to a request for one entry. Raises OSError, as `dumped`."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(_LIMIT_S)
        header = _HEADER.pack(_HEADER.size + len(body), request, _NLM_F_REQUEST, 1, 0)
        netlink.sendall(header + body)
        found = messages(netlink.recv(1 << 17))
    for kind, last in found:
        if kind == _ERROR and len(last) >= 4:
            status = -_STATUS.unpack_from(last)[0]
            raise OSError(status, os.strerror(status), "netlink")
    return found


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute of a request, padded to four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def messages(data: bytes) -> list[tuple[int, bytes]]:
    """Type and body of each message in a packet; one of `_ENDS` is the last of an answer."""
    found: list[tuple[int, bytes]] = []
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return [*found, _NOTHING]
        found.append((kind, data[_HEADER.size : length]))
        if kind in _ENDS:
            break
        data = data[(length + 3) & ~3 :]
    return found


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute."""
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]

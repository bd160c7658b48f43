"""Kernel tables of this network namespace, read by netlink.

pyroute2 would do this too, but takes longer to import than a survey of a whole node takes.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

_NLM_F_DUMP, _NLM_F_REQUEST = 0x300, 0x001
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
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
        done = False
        while not done:
            data = netlink.recv(1 << 17)
            if status := _status(data):
                raise OSError(status, os.strerror(status), "netlink")
            yield data
            done = messages(data)[1]


def messages(data: bytes) -> tuple[list[tuple[int, bytes]], bool]:
    """Type and body of each message in a packet, and whether it is the last of the answer."""
    found: list[tuple[int, bytes]] = []
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < _HEADER.size:
            return found, True
        found.append((kind, data[_HEADER.size : length]))
        data = data[(length + 3) & ~3 :]
    return found, False


def _status(data: bytes) -> int:
    """Errno with which the kernel ended the table; 0 if it is complete or more packets follow.

    Both an error and the end of a table begin with a status, which is negative or 0.
    """
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR) and len(data) >= _HEADER.size + _STATUS.size:
            return max(0, -int(_STATUS.unpack_from(data, _HEADER.size)[0]))
        if length < _HEADER.size:
            return 0
        data = data[(length + 3) & ~3 :]
    return 0


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute."""
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]

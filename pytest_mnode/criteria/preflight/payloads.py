"""Payloads of a known pattern over TCP, which reveal changed bytes that checksums miss."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from pytest_mnode.criteria.preflight.answers import Received, Sent
from pytest_mnode.criteria.preflight.tcp import RailPair, error_text
from pytest_mnode.protocol.address import family_of

PATTERN_BYTES = 1 << 20
"""The pattern repeats after this many bytes."""
_READ_BYTES = 1 << 18
_ALL_PAIRS_UP_TO = 5
_SO_MAX_PACING_RATE = 47
_NO_PACE = 0xFFFFFFFF


def targets(index: int, indices: Sequence[int]) -> tuple[int, ...]:
    """Nodes that node `index` sends payloads to: all others of up to 5 nodes, three of more.

    The three are at ring distances 1, 2 and half the ring, so that each node receives from three.
    """
    count, position = len(indices), indices.index(index)
    distances = range(1, count) if count <= _ALL_PAIRS_UP_TO else (1, 2, count // 2)
    return tuple(indices[(position + distance) % count] for distance in distances)


async def send(pair: RailPair, size_bytes: int, limit_s: float, rate_bytes_s: float) -> Sent:
    """Send a payload, at most at `rate_bytes_s`, and wait until the receiver has read it all."""
    loop = asyncio.get_running_loop()
    source = problem = ""
    view = memoryview(_pattern())
    try:
        with socket.socket(family_of(pair.theirs.address)) as sock:
            sock.setblocking(False)
            sock.bind((pair.mine.address, 0))
            pace = min(int(rate_bytes_s), _NO_PACE - 1)
            sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("I", pace))
            source = _name(sock.getsockname())
            async with asyncio.timeout(limit_s):
                await loop.sock_connect(sock, (pair.theirs.address, pair.theirs.tcp_port))
                for start in range(0, size_bytes, PATTERN_BYTES):
                    await loop.sock_sendall(sock, view[: size_bytes - start])
                sock.shutdown(socket.SHUT_WR)
                await loop.sock_recv(sock, 1)
    except TimeoutError:
        problem = f"not done within {limit_s:g} s"
    except OSError as error:
        problem = error_text(error)
    return Sent(pair.peer.index, pair.network, source, problem)


class Receiver:
    """Reads payloads and counts the bytes that differ from the pattern, by source."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, sock: socket.socket) -> None:
        """Read a connection until its sender closes."""
        task = asyncio.ensure_future(self._read(sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        buffer, pattern = memoryview(bytearray(_READ_BYTES)), memoryview(_pattern())
        total = wrong = 0
        with sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            source = _name(sock.getpeername())
            while True:
                start = total % PATTERN_BYTES
                count = await loop.sock_recv_into(sock, buffer[: PATTERN_BYTES - start])
                if not count:
                    return
                total += count
                wrong += differing(buffer[:count], pattern[start : start + count])
                self._counts[source] = total, wrong

    @property
    def received(self) -> tuple[Received, ...]:
        """Payloads received so far."""
        return tuple(Received(source, *counts) for source, counts in self._counts.items())


def differing(one: memoryview, other: memoryview) -> int:
    """Number of bytes that differ between two views of the same length."""
    if one == other:
        return 0
    difference = int.from_bytes(one) ^ int.from_bytes(other)
    return len(one) - difference.to_bytes(len(one)).count(0)


@cache
def _pattern() -> bytes:
    return hashlib.shake_128(b"pytest-mnode").digest(PATTERN_BYTES)


def _name(address: Any) -> str:
    return f"{address[0]} {address[1]}"

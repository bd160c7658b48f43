"""TCP connections between nodes, and name look-ups: concurrent, each with a time limit; and
payloads of a known pattern, which reveal changed bytes that checksums miss."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pytest_mnode.criteria.preflight.answers import (
    Connection,
    LookUp,
    Peer,
    ProbeOrder,
    Rail,
    Received,
    Sent,
)
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.netlink import neighbour_mac, route
from pytest_mnode.protocol.address import family_of

REFUSED = "refused: nothing listens there, or a firewall rejects it"
LOCALHOST = "localhost"
"""What programs of a node call it among themselves, whatever its host name."""
NO_ANSWER = "no answer"
_MAX_CONNECTING = 256
"""Connections tried at the same time, because a process may be limited to 1024 open files."""
CONNECTIONS = 3
"""A rank opens one to every peer. A rate limit or a full table lets the first ones pass."""
_RESOLVE_LIMIT_S = 2.0
_LOOPBACK_LIMIT_S = 2.0
_NOWHERE = Connection(0, "", "", None, "")
MAPPED = "::ffff:"
_INFO = struct.Struct("=5xB10xI40xI164xI")
"""Positions of tcpi_options, tcpi_snd_mss, tcpi_pmtu and, since Linux 5.4, tcpi_snd_wnd in Linux's
struct tcp_info."""
_TIMESTAMPS, _TIMESTAMPS_BYTES = 1, 12
_PROBING = Path("/proc/sys/net/ipv4/tcp_mtu_probing")
T = TypeVar("T")


async def in_thread(function: Callable[[], T], limit_s: float) -> T:
    """Result of `function`; after `limit_s`, raises TimeoutError and leaves its thread running."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = function(), None
        except Exception as caught:
            result, error = None, caught
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wait_for(future, limit_s)


async def or_none(function: Callable[[], T], limit_s: float) -> T | None:
    """Result of `function`; None if it raises OSError or exceeds `limit_s`."""
    try:
        return await in_thread(function, limit_s)
    except (OSError, TimeoutError):
        return None


class Listener:
    """A listening socket; connections go to `take`, or are closed if `take` is None."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.take: Callable[[socket.socket], None] | None = None
        self.port: int = sock.getsockname()[1]

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            (self.take or socket.socket.close)(self._socket.accept()[0])


@dataclass(frozen=True, slots=True)
class RailPair:
    """One of our addresses and one of another node's, on the same network."""

    peer: Peer
    network: str
    mine: Rail
    theirs: Rail


def paired(mine: Sequence[Rail], theirs: Sequence[Rail]) -> tuple[tuple[Rail, Rail], ...]:
    """Pairs of our rails and theirs with the same interface name.

    If no name is on both nodes, rails are paired in their order.
    """
    by_name = {rail.interface: rail for rail in theirs}
    if any(rail.interface in by_name for rail in mine):
        return tuple((r, by_name[r.interface]) for r in mine if r.interface in by_name)
    return tuple(zip(mine, theirs, strict=False))


async def connect_all(
    order: ProbeOrder, pairs: Sequence[RailPair]
) -> tuple[tuple[Connection, ...], Connection | None]:
    """Connections of each pair of rails, and to the master; None if the order has no master.

    Each is opened `CONNECTIONS` times, one after another: the first that fails is the answer.
    """
    limit_s = order.connect_limit_s
    slots = asyncio.Semaphore(_MAX_CONNECTING)

    async def one(pair: RailPair) -> Connection:
        attempt = Connection(pair.peer.index, pair.network, pair.mine.interface, None, "")
        address, port = pair.theirs.address, pair.theirs.tcp_port
        async with slots:
            return await _connect_often(attempt, address, port, pair.mine.address, limit_s)

    tried = [one(pair) for pair in pairs]
    if order.master is None:
        return tuple(await asyncio.gather(*tried)), None
    first = _connect_often(Connection(0, "control", "", None, ""), *order.master, "", limit_s)
    met, *rest = await asyncio.gather(first, *tried)
    return tuple(rest), met


async def _connect_often(
    attempt: Connection, address: str, port: int, source: str, limit_s: float
) -> Connection:
    first = await _connect(attempt, address, port, source, limit_s)
    made = first
    for number in range(2, CONNECTIONS + 1):
        if made.took_s is None:
            break
        made = await _connect(attempt, address, port, source, limit_s)
        if made.took_s is None:
            return replace(made, problem=f"{made.problem} (connection {number} of {CONNECTIONS})")
    return first


async def _connect(
    attempt: Connection, address: str, port: int, source: str, limit_s: float
) -> Connection:
    started = time.monotonic()
    took_s: float | None = None
    problem = ""
    if not is_address(name := address):
        try:
            address = await in_thread(lambda: address_of(name), limit_s)
        except TimeoutError:
            why = f"look-up of {name} did not end within {limit_s:g} s"
            return replace(attempt, problem=why)
        except OSError as error:
            return replace(attempt, problem=f"its name {name} is not found: {error}")
    with socket.socket(family_of(address)) as sock:
        try:
            sock.setblocking(False)
            if source:
                sock.bind((source, 0))
            loop = asyncio.get_running_loop()
            left_s = max(0.0, started + limit_s - time.monotonic())  # after a look-up
            await asyncio.wait_for(loop.sock_connect(sock, (address, port)), left_s)
            took_s = time.monotonic() - started
        except TimeoutError:
            took_s = limit_s if _is_connected(sock) else None
            problem = "" if took_s else f"{NO_ANSWER} within {limit_s:g} s"
        except OSError as error:
            problem = error_text(error)
        largest_bytes = None if took_s is None else _largest_packet(sock)
    leaves_by, gateway = route(address, source) if source else (None, None)
    mac, mac_is_pinned = neighbour_mac(address) if took_s is None else (None, False)
    return replace(
        attempt,
        took_s=took_s,
        problem=problem,
        largest_bytes=largest_bytes,
        leaves_by=leaves_by,
        gateway=gateway,
        mac=mac,
        mac_is_pinned=mac_is_pinned,
    )


async def loopback_problem(port: int) -> str:
    """Why no connection opens to our own port on loopback; "" if one does."""
    return (await _connect(_NOWHERE, "127.0.0.1", port, "", _LOOPBACK_LIMIT_S)).problem


def _largest_packet(sock: socket.socket) -> int | None:
    """The kernel's MTU of the path, B, from interface, route or ICMP message, or less if the other
    end asked for smaller segments; None if unknown.

    Linux also shortens segments to half of the other end's window, and with tcp_mtu_probing 2 to
    tcp_base_mss at first: these are no sizes of packets.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        options, segment, mtu, window = _INFO.unpack(info.ljust(_INFO.size, b"\0"))
    except (OSError, AttributeError, struct.error):
        return None
    if segment >= window // 2 or sysfs.text(_PROBING) == "2":
        return int(mtu)
    headers = 60 if sock.family == socket.AF_INET6 else 40
    headers += _TIMESTAMPS_BYTES if options & _TIMESTAMPS else 0
    return int(min(mtu, segment + headers))


def _is_connected(sock: socket.socket) -> bool:
    """Whether the kernel has connected; on a busy machine asyncio may notice that late."""
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def error_text(error: OSError) -> str:
    """Why a connection fails, in words; a rejected one differs from one without an answer."""
    if error.errno == errno.ECONNREFUSED:
        return REFUSED
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"{os.strerror(error.errno).lower()}: no route, or nobody has that address"
    if error.errno == errno.ETIMEDOUT:
        return NO_ANSWER
    return (error.strerror or str(error)).lower()


async def look_up_all(order: ProbeOrder, me: int | None = None) -> tuple[LookUp, ...]:
    """Look-ups of each node's host name, and of its control address, plain and IPv4-mapped; and on
    node `me` of LOCALHOST, and of its addresses on all networks."""
    within_s = order.look_up_within_s
    if within_s is None:
        return ()
    wanted = [
        (peer, what)
        for peer in order.peers
        for what in (
            *(peer.hostname, *_numeric_forms(peer.address)),
            *((LOCALHOST, *_addresses_on_networks(peer)) if peer.index == me else ()),
        )
        if what
    ]

    async def one(peer: Peer, what: str) -> LookUp:
        first = await once(peer, what, look_up_limit_s(within_s))
        if first.took_s is not None and first.took_s <= within_s:
            return first
        # A slow name server is slow again; on a busy machine any look-up may be late once.
        again = await once(peer, what, within_s)
        return first if again.took_s is None else again

    async def once(peer: Peer, what: str, limit_s: float) -> LookUp:
        started = time.monotonic()
        found: tuple[str, ...] = ()
        problem = ""
        try:
            found, took_s = await in_thread(lambda: _look_up(what), limit_s)
        except TimeoutError:
            took_s, problem = None, f"no answer within {limit_s:g} s"
        except OSError as error:
            took_s, problem = time.monotonic() - started, (error.strerror or str(error)).lower()
        return LookUp(peer.index, what, found, took_s, problem)

    return tuple(await asyncio.gather(*(one(peer, what) for peer, what in wanted)))


def _addresses_on_networks(peer: Peer) -> tuple[str, ...]:
    on_networks = (rail.address for rails in peer.rails.values() for rail in rails)
    return tuple(one for one in on_networks if one != peer.address and ":" not in one)


def look_up_limit_s(within_s: float) -> float:
    """A little longer than promised, to distinguish "too slow" from "never"."""
    return min(2 * within_s, within_s + 2.0)


def _numeric_forms(address: str) -> tuple[str, ...]:
    """A numeric address, and for IPv4 its form in a dual-stack socket; () for a name."""
    if is_address(address):
        return (address,) if ":" in address else (address, MAPPED + address)
    return ()


def is_address(text: str) -> bool:
    """Whether this is an IP address and not a name."""
    try:
        socket.inet_pton(family_of(text), text)
    except OSError:
        return False
    return True


def address_of(name: str) -> str:
    """The first address of a name, IPv4 or IPv6. Raises OSError if it has none."""
    return addresses_of(name)[0]


def addresses_of(name: str) -> tuple[str, ...]:
    """All addresses of a name, each once. Raises OSError if it has none."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # an empty label, or one that is too long
        raise OSError(f"not a host name: {error}") from None
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


async def resolved(address: str, port: int) -> tuple[str, int]:
    """Address and port; `address` may be a name. Raises OSError or TimeoutError."""
    if is_address(address):
        return address, port
    return await in_thread(lambda: address_of(address), _RESOLVE_LIMIT_S), port


def _look_up(what: str) -> tuple[tuple[str, ...], float]:
    """Addresses of a name, or the name of an address; and the seconds it took."""
    started = time.monotonic()
    if not is_address(what):
        found = (address.removeprefix(MAPPED) for address in addresses_of(what))
        names = tuple(dict.fromkeys(found))
    else:
        address = (what, 0, 0, 0) if ":" in what else (what, 0)
        name = socket.getnameinfo(address, 0)[0]
        # getnameinfo returns the address itself if it has no name.
        names = () if name.removeprefix(MAPPED) == what.removeprefix(MAPPED) else (name,)
    return names, time.monotonic() - started


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

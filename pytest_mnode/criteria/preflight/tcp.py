"""TCP connections between nodes, and look-ups of names: all at once, each with a limit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pytest_mnode.criteria.preflight.answers import Connection, LookUp, Rail
from pytest_mnode.criteria.preflight.orders import Peer, ProbeOrder
from pytest_mnode.protocol.address import family_of

REFUSED = "refused: nothing listens there, or a firewall rejects it"
NO_ANSWER = "no answer"
_AT_ONCE = 256
"""Connections that are tried at the same time: a process may have no more than 1024 files open."""
_RESOLVE_LIMIT_S = 2.0
_MAPPED = "::ffff:"
_PMTU = struct.Struct("=60xI")
"""Where Linux's struct tcp_info has it."""
T = TypeVar("T")


async def in_thread(function: Callable[[], T], limit_s: float) -> T:
    """What `function` returns; raises TimeoutError after `limit_s`, and leaves it behind then."""
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
    """What `function` returns; None where it fails, or not in time."""
    try:
        return await in_thread(function, limit_s)
    except (OSError, TimeoutError):
        return None


class Listener:
    """A listening socket; connections go to `take`, or are closed where that is None."""

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
    """Which of our addresses goes with which of theirs: of the same interface name.

    Nodes that share no name at all are paired in their order.
    """
    by_name = {rail.interface: rail for rail in theirs}
    if any(rail.interface in by_name for rail in mine):
        return tuple((r, by_name[r.interface]) for r in mine if r.interface in by_name)
    return tuple(zip(mine, theirs, strict=False))


async def connect_all(
    order: ProbeOrder, pairs: Sequence[RailPair]
) -> tuple[tuple[Connection, ...], Connection | None]:
    """A connection for each pair of rails, and one to the master."""
    limit_s = order.connect_limit_s
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(pair: RailPair) -> Connection:
        attempt = Connection(pair.peer.index, pair.network, pair.mine.interface, None, "")
        address, port = pair.theirs.address, pair.theirs.tcp_port
        async with slots:
            return await _connect(attempt, address, port, pair.mine.address, limit_s)

    tried = [one(pair) for pair in pairs]
    if order.master is None:
        return tuple(await asyncio.gather(*tried)), None
    first = _connect(Connection(0, "control", "", None, ""), *order.master, "", limit_s)
    met, *rest = await asyncio.gather(first, *tried)
    return tuple(rest), met


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
            problem = in_words(error)
        largest_bytes = None if took_s is None else _largest_packet(sock)
    return replace(attempt, took_s=took_s, problem=problem, largest_bytes=largest_bytes)


def _largest_packet(sock: socket.socket) -> int | None:
    """The MTU of the path as the kernel knows it, by interface, route or ICMP message."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _PMTU.size)
        return int(_PMTU.unpack(info)[0])
    except (OSError, AttributeError, struct.error):
        return None


def _is_connected(sock: socket.socket) -> bool:
    """What the kernel says: on a busy machine this process may hear of it late."""
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def in_words(error: OSError) -> str:
    """Why a connection fails; what rejects it has other words than what swallows it."""
    if error.errno == errno.ECONNREFUSED:
        return REFUSED
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"{os.strerror(error.errno).lower()}: no route, or nobody has that address"
    if error.errno == errno.ETIMEDOUT:
        return NO_ANSWER
    return (error.strerror or str(error)).lower()


async def look_up_all(order: ProbeOrder) -> tuple[LookUp, ...]:
    """Every node's host name, and its control address as such and as dual-stack sockets ask."""
    within_s = order.look_up_within_s
    if within_s is None:
        return ()
    wanted = [
        (peer, what)
        for peer in order.peers
        for what in (peer.hostname, *_askable(peer.address))
        if what
    ]

    async def one(peer: Peer, what: str) -> LookUp:
        first = await once(peer, what, look_up_limit_s(within_s))
        if first.took_s is not None and first.took_s <= within_s:
            return first
        # What is slow is slow again; on a busy machine anything may be late once.
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


def look_up_limit_s(within_s: float) -> float:
    """A little longer than promised, to distinguish "too slow" from "never"."""
    return min(2 * within_s, within_s + 2.0)


def _askable(address: str) -> tuple[str, ...]:
    """A numeric address, and its form in a dual-stack socket; nothing for a name."""
    if is_address(address):
        return (address,) if ":" in address else (address, _MAPPED + address)
    return ()


def is_address(text: str) -> bool:
    """Whether this is an IP address and not a name."""
    try:
        socket.inet_pton(family_of(text), text)
    except OSError:
        return False
    return True


def address_of(name: str) -> str:
    """The first address of a name, IPv4 or IPv6. Raises OSError where it has none."""
    return addresses_of(name)[0]


def addresses_of(name: str) -> tuple[str, ...]:
    """All addresses of a name, each once. Raises OSError where it has none."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # an empty label, or one that is too long
        raise OSError(f"no name of a host: {error}") from None
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


async def resolved(address: str, port: int) -> tuple[str, int]:
    """Address and port, where the address may be a name. Raises OSError or TimeoutError."""
    if is_address(address):
        return address, port
    return await in_thread(lambda: address_of(address), _RESOLVE_LIMIT_S), port


def _look_up(what: str) -> tuple[tuple[str, ...], float]:
    """Addresses of a name, or the name of an address; and the seconds it took."""
    started = time.monotonic()
    if not is_address(what):
        found = (address.removeprefix(_MAPPED) for address in addresses_of(what))
        names = tuple(dict.fromkeys(found))
    else:
        address = (what, 0, 0, 0) if ":" in what else (what, 0)
        name = socket.getnameinfo(address, 0)[0]
        # The address itself comes back where there is no name for it.
        names = () if name.removeprefix(_MAPPED) == what.removeprefix(_MAPPED) else (name,)
    return names, time.monotonic() - started

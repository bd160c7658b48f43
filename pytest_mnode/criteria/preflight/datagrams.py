"""Datagrams between nodes: which nodes hear each other, which sizes arrive, clock offsets.

A ping carries its sender and is answered by a small packet with the times of arrival and departure.
Pings have don't-fragment set and ignore the path MTU that the kernel has cached, so that a path
that drops large packets is detected.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_mnode.protocol.address import family_of

_HEADER = struct.Struct("!8sBHIHdd")  # run, kind, sender, number, size, arrived, answered
_PING, _ANSWER = 1, 2
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3
_SO_BINDTODEVICE = 25
_BUFFER_BYTES = 4 << 20
LEAST_PACKET_BYTES = 128
"""Size of an IP packet that every path must carry and that holds our header."""

_ROUNDS = 3
"""Times that a full-size packet is lost, while small ones pass, until smaller sizes are tried."""
_LAST_LIMIT_S, _OVERTAKEN_S = 0.6, 0.05
_GOOD_ERROR_S = 0.002
_COUNTED_SIZES = (LEAST_PACKET_BYTES, 1280) * 10
"""The larger one is the least MTU of IPv6."""

KNOWN_SIZES = (576, 1280, 1400, 1420, 1450, 1480, 1492, 1500, 2044, 4092, 4096, 8900, 9000)
"""Largest packets of usual links and tunnels, B; tried first if a full-size packet is lost."""


def open_socket(
    kind: socket.SocketKind, address: str, device: str | None, port: int = 0
) -> socket.socket:
    """Socket bound to `address` ("": all of IPv4 and IPv6), and to `device` if permitted."""
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else family_of(address)
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        if both:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if device:
            with contextlib.suppress(OSError):  # kernels before 5.7 require privileges for it
                sock.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, device.encode() + b"\0")
        if kind is socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        if kind is socket.SOCK_STREAM:
            sock.listen(1024)
    except BaseException:
        sock.close()
        raise
    return sock


def header_bytes(address: str) -> int:
    """Bytes of the IP and UDP headers of a datagram to this address."""
    return 48 if ":" in address else 28


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to a ping. offset_s: the peer's clock minus ours. error_s: its largest error."""

    size_bytes: int
    offset_s: float
    error_s: float


class UdpProbe:
    """UDP socket that sends pings, answers pings of other nodes, and records their senders."""

    def __init__(self, address: str, device: str | None, run: bytes, index: int) -> None:
        self._run, self._index = run, index
        self.address = address
        self._socket = open_socket(socket.SOCK_DGRAM, address, device)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        if self._socket.family == socket.AF_INET6:
            self._socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            self._socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        self.port: int = self._socket.getsockname()[1]
        self.heard: Counter[int] = Counter()
        self.sent: Counter[tuple[str, int]] = Counter()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[float, float, asyncio.Future[Pong]]] = {}

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to receive and answer."""
        loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        for _ in range(64):
            try:
                data, source = self._socket.recvfrom(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error for an earlier packet
            self._take(data, source)

    def _take(self, data: bytes, source: tuple[str, int]) -> None:
        arrived, ticks = time.time(), time.monotonic()
        if len(data) < _HEADER.size:
            return
        run, kind, sender, number, size, there, left = _HEADER.unpack_from(data)
        if run != self._run:
            return
        if kind == _PING:
            self.heard[sender] += 1
            whole = len(data) + header_bytes(source[0])
            fields = (self._run, _ANSWER, self._index, number, whole, arrived, time.time())
            with contextlib.suppress(OSError):
                self._socket.sendto(_HEADER.pack(*fields), source)
        elif kind == _ANSWER and number in self._waiting:
            sent, sent_ticks, future = self._waiting.pop(number)
            round_trip_s = max(0.0, ticks - sent_ticks - max(0.0, left - there))
            offset_s = ((there - sent) + (left - arrived)) / 2
            if not future.done():
                future.set_result(Pong(size, offset_s, round_trip_s / 2))

    def ping(self, target: tuple[str, int], packet_bytes: int) -> tuple[int, asyncio.Future[Pong]]:
        """Send one packet of this size, IP header included; number and future of its answer.

        Raises OSError with EMSGSIZE if our own interface rejects the size.
        """
        self.sent[target] += 1
        if self._socket.family == socket.AF_INET6 and ":" not in target[0]:
            target = f"::ffff:{target[0]}", target[1]
        number = next(self._numbers) & 0xFFFFFFFF
        padding = packet_bytes - header_bytes(target[0]) - _HEADER.size
        future: asyncio.Future[Pong] = asyncio.get_running_loop().create_future()
        sent, ticks = time.time(), time.monotonic()
        data = _HEADER.pack(self._run, _PING, self._index, number, 0, sent, 0.0)
        self._waiting[number] = (sent, ticks, future)
        try:
            self._socket.sendto(data + bytes(max(0, padding)), target)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                del self._waiting[number]
                raise
            # Full buffers, no route, an earlier packet's ICMP error: this packet counts as lost.
        return number, future

    @contextlib.contextmanager
    def pings(
        self, target: tuple[str, int], sizes: Sequence[int]
    ) -> Iterator[list[asyncio.Future[Pong]]]:
        """Futures of one ping per size, without the sizes that our own interface rejects."""
        sent: list[tuple[int, asyncio.Future[Pong]]] = []
        try:
            for size in sizes:
                try:
                    sent.append(self.ping(target, size))
                except OSError:
                    continue
            yield [future for _, future in sent]
        finally:
            for number, future in sent:
                self._waiting.pop(number, None)
                future.cancel()


@dataclass(slots=True)
class PathProber:
    """Prober of the path from one socket to one address of another node."""

    socket: UdpProbe
    target: tuple[str, int]

    async def reaches(self, waits_s: Sequence[float] = (0.1, 0.2, 0.4, 0.7, 0.8)) -> bool:
        """Whether a small packet, or one of its repetitions, is answered."""
        with contextlib.ExitStack() as stack:
            futures: list[asyncio.Future[Pong]] = []
            for wait_s in waits_s:
                futures += stack.enter_context(self.socket.pings(self.target, [LEAST_PACKET_BYTES]))
                await asyncio.wait(futures, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if any(future.done() for future in futures):
                    return True
        return False

    async def clock(self, exchanges: int = 8, limit_s: float = 0.3) -> Pong | None:
        """Answer with the shortest round trip, and so the smallest error; None without an answer.

        Makes up to three times as many exchanges if all are slow, as on a busy machine.
        """
        best: Pong | None = None
        for number in range(3 * exchanges):
            if number >= exchanges and best is not None and best.error_s < _GOOD_ERROR_S:
                break
            with self.socket.pings(self.target, [LEAST_PACKET_BYTES]) as futures:
                done, _ = await asyncio.wait(futures, timeout=limit_s)
                for future in done:
                    pong = future.result()
                    if best is None or pong.error_s < best.error_s:
                        best = pong
            await asyncio.sleep(0.005)
        return best

    async def count(self, packets: int) -> None:
        """Send so many packets, small and large ones, for their losses to be counted.

        A receiver that is busy would lose what its socket cannot hold: few are on their way at a
        time, and none follow before one of them is answered.
        """
        for _ in range(0, packets, len(_COUNTED_SIZES)):
            with self.socket.pings(self.target, _COUNTED_SIZES) as futures:
                done, late = await asyncio.wait(futures, timeout=_OVERTAKEN_S)
                if late and not done:
                    await asyncio.wait(
                        late, timeout=_LAST_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
                    )

    async def largest(self, full_bytes: int) -> tuple[int | None, int | None]:
        """Largest packet up to `full_bytes` that arrives, and smallest that our interface rejects.

        The first is None if small packets are lost as well; the second is None if none is rejected.
        """
        for _ in range(_ROUNDS):
            passed, heard = await self._passed([full_bytes])
            if passed:
                return full_bytes, None
            if not heard:
                return None, None
        refused = self._smallest_refused(full_bytes)
        top = full_bytes if refused is None else refused
        low, sizes = LEAST_PACKET_BYTES, [s for s in KNOWN_SIZES if s < top]
        while True:
            tried = [s for s in sizes if low < s < top]
            arrived = [await self._passed(tried), await self._passed(tried)] if tried else []
            low = max([low, *(size for sizes_, _ in arrived for size in sizes_)])
            top = min([top, *(s for s in tried if s > low)])
            if top - low <= 1:
                return low, refused
            step = max(1, (top - low) // 17)
            sizes = list(range(low + step, top, step))

    async def _passed(self, sizes: Sequence[int]) -> tuple[list[int], bool]:
        """Sizes that arrive, and whether a small packet sent after them is answered.

        Once the small packet is answered, the packets before it have been answered or are lost. A
        fixed wait would prove nothing on a busy machine.
        """
        with (
            self.socket.pings(self.target, sizes) as futures,
            self.socket.pings(self.target, [LEAST_PACKET_BYTES]) as last,
        ):
            heard, _ = await asyncio.wait(last, timeout=_LAST_LIMIT_S)
            if futures:
                await asyncio.wait(futures, timeout=_OVERTAKEN_S)
            return [f.result().size_bytes for f in futures if f.done()], bool(heard)

    def _smallest_refused(self, full_bytes: int) -> int | None:
        """Bisects: our own interface accepts or rejects a size at once, without any answer."""
        low, high = LEAST_PACKET_BYTES, full_bytes
        if self._takes(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._takes(middle) else (low, middle)
        return high

    def _takes(self, size: int) -> bool:
        with self.socket.pings(self.target, [size]) as futures:
            return bool(futures)

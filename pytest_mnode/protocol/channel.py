"""The control channel: no data from a process that does not hold the run's secret is unpickled.

Processes of this kernel use a Unix socket in a private directory, and show its token, which is made
per run and passed by standard input or through a fork, never in an argument list. Another machine
has one connection for all its processes: the standard input and output of its agent, which the run
itself has started.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import pickle
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from pytest_mnode.protocol.socket_path import reachable

_HEADER_BYTES = 4
_NAME_BYTES = 2
_SPACE = " "
"""Between destinations, none of which has one."""
_MARK = b"\0mnode-agent\0"
"""Precedes the first frame of an agent's output: what its Python prints before is no frame."""
_CHUNK_BYTES = 1 << 16
_MOST_FDS = 16


class Frames:
    """Takes the bytes of a stream, in pieces of any size, and gives the messages in them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that these bytes complete."""
        self._data += data
        found: list[bytes] = []
        while True:
            end = _HEADER_BYTES + int.from_bytes(self._data[:_HEADER_BYTES], "big")
            if len(self._data) < end:
                return found
            found.append(bytes(self._data[_HEADER_BYTES:end]))
            del self._data[:end]


def _framed(payload: bytes) -> bytes:
    """The bytes of a message in a stream."""
    return len(payload).to_bytes(_HEADER_BYTES, "big") + payload


class Pipe:
    """One end of a socket pair. A writer that stops in mid-message never blocks the reader."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._frames = Frames()
        self.fds: deque[int] = deque()
        """Received descriptors that were not taken yet, in order of arrival."""

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        one, other = socket.socketpair()
        return cls(one), cls(other)

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message; blocks while the socket buffer is full."""
        self.send_bytes(pickle.dumps(message), fds)

    def send_bytes(self, payload: bytes, fds: Sequence[int] = ()) -> None:
        data = _framed(payload)
        if fds:
            data = data[socket.send_fds(self._end, [data], fds) :]
        self._end.sendall(data)

    def has_room(self) -> bool:
        """Whether a short message can be sent at once."""
        return bool(select.select([], [self._end], [], 0)[1])

    def receive(self) -> list[bytes]:
        """Wait for bytes and return the messages that they complete, if any.

        Raises EOFError at the end of the stream.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self._end, _CHUNK_BYTES, _MOST_FDS)
        except ConnectionError:
            data, fds = b"", []
        if not data:
            raise EOFError
        for fd in fds:
            os.set_inheritable(fd, False)
            self.fds.append(fd)
        return self._frames.feed(data)

    def close(self) -> None:
        self._end.close()
        while self.fds:
            os.close(self.fds.popleft())


def new_token() -> str:
    return secrets.token_hex(32)


class Switchboard:
    """Routes messages between peers by name: the hub's end of the channel, and on another machine
    the agent's end of its ranks' connections.

    Processes of this kernel come to a Unix socket, which costs one system call a message. It may be
    used by several threads; who iterates over `arrived` holds `lock`, so that no thread overtakes
    another with the messages that it got.
    """

    def __init__(self, path: str, token: str) -> None:
        """path: of the socket. token: what each peer shows first."""
        self.path, self.token = path, token
        self.lock = threading.RLock()
        self._listener = socket.socket(socket.AF_UNIX)
        with reachable(path) as short:
            self._listener.bind(short)
        self._listener.listen(socket.SOMAXCONN)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self.descriptor = self._epoll.fileno()
        """Readable when a message may have arrived since the last `arrived`."""
        self._connections: dict[int, _Connection] = {}
        """By their descriptors."""
        self._peers: dict[str, _Connection] = {}
        self._arrived: deque[tuple[str, str, bytes]] = deque()

    def take_machine(
        self, name: str, reads: int, writes: int, printed: Callable[[bytes], object]
    ) -> None:
        """Also serve another machine by two pipes, the output and the input of its agent `name`;
        the descriptors are closed with the connection.

        printed: takes what its Python prints before the agent speaks.
        """
        with self.lock:
            made = _Connection(reads, writes, self._epoll, name, printed)
            self._connections[reads] = self._connections[writes] = self._peers[name] = made

    def drop(self, name: str) -> None:
        """End the connection of a peer, if it has one."""
        with self.lock:
            if (connection := self._peers.get(name)) is not None:
                self._drop(connection)

    def received(self, name: str) -> int:
        """How many bytes have come over the connection of a peer; 0 if it has none."""
        with self.lock:
            return connection.received if (connection := self._peers.get(name)) else 0

    def arrived(self) -> Iterator[tuple[str, str, bytes]]:
        """(source, destination, payload) of every message that has arrived.

        The destination is "" if the source has left.
        """
        self._read()
        while self._arrived:
            yield self._arrived.popleft()

    def send(self, destinations: Iterable[str], source: str, payload: bytes) -> None:
        """Send to these peers, once to each machine; without effect for one that is not connected,
        or no longer."""
        frame, machines = b"", dict[_Connection, list[str]]()
        with self.lock:
            for destination in destinations:
                peer = self._peers.get(destination)
                if peer is None:
                    continue
                if peer.is_machine:
                    machines.setdefault(peer, []).append(destination)
                else:
                    frame = frame or _framed(_frame(source, payload))
                    peer.send(frame)
            for machine, names in machines.items():
                machine.send(_carried(source, _SPACE.join(names), payload))

    def close(self) -> None:
        with self.lock:
            for connection in {*self._connections.values()}:
                self._drop(connection)
            self._epoll.close()
            self._listener.close()

    def _read(self) -> None:
        for number, events in self._epoll.poll(0):
            if number == self._listener.fileno():
                self._accept()
            elif (connection := self._connections.get(number)) is not None:
                if events & select.EPOLLOUT or number != connection.reads:
                    connection.send(b"")
                if events & ~select.EPOLLOUT and number == connection.reads:
                    self._take(connection)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                end, _ = self._listener.accept()
                fd = end.detach()
                self._connections[fd] = _Connection(fd, fd, self._epoll)

    def _take(self, connection: _Connection) -> None:
        try:
            frames = connection.receive()
        except EOFError:
            self._drop(connection)
            return
        for frame in frames:
            name, payload = _parts(frame)
            if connection.is_machine:
                self._take_carried(connection, name, *_parts(payload))
            elif connection.name:
                if name:  # otherwise the message is malformed
                    self._arrived.append((connection.name, name, payload))
            elif name and hmac.compare_digest(payload, self.token.encode()):
                connection.name = name
                self._peers[name] = connection
            else:
                self._drop(connection)
                return

    def _take_carried(
        self, machine: _Connection, source: str, destination: str, payload: bytes
    ) -> None:
        if destination:
            self._peers[source] = machine
        else:
            self._peers.pop(source, None)
        self._arrived.append((source, destination, payload))

    def _drop(self, connection: _Connection) -> None:
        names = [connection.name]
        if connection.is_machine:
            names = [name for name, peer in self._peers.items() if peer is connection]
        for name in names:
            if self._peers.get(name) is connection:
                del self._peers[name]
                self._arrived.append((name, "", b""))
        for fd in {connection.reads, connection.writes}:
            del self._connections[fd]
        connection.close()


class _Connection:
    """A connection that never blocks its user: a socket, or two pipes of a machine.

    name: of the peer; "" until its first frame has shown the token.
    """

    def __init__(
        self,
        reads: int,
        writes: int,
        epoll: select.epoll,
        name: str = "",
        printed: Callable[[bytes], object] | None = None,
    ) -> None:
        """printed: takes what comes before _MARK, if that precedes the first frame."""
        self.reads, self.writes = reads, writes
        self.name = name
        self.is_machine = reads != writes
        self.received = 0
        self._epoll = epoll
        self._printed, self._before = printed, b""
        self._frames = Frames()
        self._unsent = bytearray()
        for fd in (reads, writes):
            os.set_blocking(fd, False)
        epoll.register(reads, select.EPOLLIN)

    def receive(self) -> list[bytes]:
        """The messages that have arrived. Raises EOFError at the end of the stream."""
        try:
            data = os.read(self.reads, _CHUNK_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            if self._printed is not None:
                self._printed(self._before)
            raise EOFError
        self.received += len(data)
        if self._printed is not None:
            printed, mark, data = (self._before + data).partition(_MARK)
            if not mark:  # its beginning may be there
                self._printed(printed[: -len(_MARK)])
                self._before = printed[-len(_MARK) :]
                return []
            self._printed(printed)
            self._printed = None
        return self._frames.feed(data)

    def send(self, data: bytes) -> None:
        """Send bytes as far as there is room; the rest as soon as there is."""
        waited = bool(self._unsent)
        self._unsent += data
        try:
            sent = os.write(self.writes, self._unsent) if self._unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:  # it ended, which `receive` shows
            sent = len(self._unsent)
        del self._unsent[:sent]
        waits = bool(self._unsent)
        if waited == waits:
            return
        if not self.is_machine:
            self._epoll.modify(self.reads, select.EPOLLIN | (select.EPOLLOUT if waits else 0))
        elif waits:
            self._epoll.register(self.writes, select.EPOLLOUT)
        else:
            self._epoll.unregister(self.writes)

    def close(self) -> None:
        for fd in {self.reads, self.writes}:
            if fd == self.reads or self._unsent:
                self._epoll.unregister(fd)
            os.close(fd)


def _frame(name: str, payload: bytes) -> bytes:
    """A message with the name of its destination, or of its source."""
    text = name.encode()
    return len(text).to_bytes(_NAME_BYTES, "big") + text + payload


def _parts(frame: bytes) -> tuple[str, bytes]:
    """The inverse of `_frame`; no name if the frame is malformed."""
    end = _NAME_BYTES + int.from_bytes(frame[:_NAME_BYTES], "big")
    return frame[_NAME_BYTES:end].decode(errors="replace"), frame[end:]


def _carried(source: str, destinations: str, payload: bytes) -> bytes:
    """A message in the stream of a machine."""
    return _framed(_frame(source, _frame(destinations, payload)))


def waking_pair() -> tuple[socket.socket, socket.socket]:
    """Two sockets: the first becomes readable when `wake` is called with the second."""
    pair = socket.socketpair()
    for one in pair:
        one.setblocking(False)
    return pair


def wake(waker: socket.socket) -> None:
    with contextlib.suppress(OSError):  # full, so a wake is pending anyway; or closed
        waker.send(b"x")


def forget_wakes(woken: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        woken.recv(4096)


def _ms(seconds: float | None) -> int | None:
    """The limit of a poll, no shorter than this time; None: no limit."""
    return None if seconds is None else math.ceil(seconds * 1000)


class Line:
    """A peer's connection to the hub."""

    descriptor: int
    """Readable when a message may have arrived since `receive` returned None."""
    received = 0
    """Bytes that have come from the hub on another machine, which show that it is there."""
    sender = ""
    """The peer that sent the last message received through a socket."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[str, bytes]] = deque()
        """Senders and messages."""

    def send(self, destination: str, message: Any) -> None:
        self.send_bytes(destination, pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, destination: str, payload: bytes) -> None:
        raise NotImplementedError

    def receive(self, timeout_s: float | None) -> Any | None:
        """The next message, or None after `timeout_s` (None: wait for ever)."""
        payload = self.receive_bytes(timeout_s)
        return None if payload is None else pickle.loads(payload)

    def receive_bytes(self, timeout_s: float | None) -> bytes | None:
        """As `receive`. Raises EOFError if the hub has ended, unless it is in this process."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        left_s = timeout_s
        while not self._arrived:
            self._await(left_s)
            if end is not None and (left_s := max(0.0, end - time.monotonic())) == 0:
                break
        if not self._arrived:
            return None
        self.sender, payload = self._arrived.popleft()
        return payload

    def _await(self, wait_s: float | None) -> None:
        """Wait until a message may have arrived, and take it, or until `wait_s` has passed."""
        raise NotImplementedError

    def close(self) -> None:
        """Send the messages still queued, then close; without effect in a forked child."""
        raise NotImplementedError


class LocalLine(Line):
    """The connection of a peer in the hub's own process: queues, without a socket.

    Messages are still pickled, so that no object is shared by accident.
    """

    def __init__(
        self,
        to_hub: Callable[[str, bytes], None],
        carry: Callable[[LocalLine, float | None], None] | None = None,
    ) -> None:
        """carry: called instead of `wait`, with the same arguments."""
        super().__init__()
        self._to_hub = to_hub
        self._carry = carry or LocalLine.wait
        self._woken, self._waker = waking_pair()
        self.descriptor = self._woken.fileno()

    def put(self, payload: bytes, *, wakes: bool = True) -> None:
        """Queue a message for this peer. wakes: the caller is not the receiving thread."""
        self._arrived.append(("", payload))
        if wakes:
            wake(self._waker)

    def wait(self, wait_s: float | None, descriptor: int | None = None) -> None:
        """Wait until a message was put, `descriptor` is readable, or `wait_s` seconds passed."""
        sources = select.poll()
        sources.register(self.descriptor, select.POLLIN)
        if descriptor is not None:
            sources.register(descriptor, select.POLLIN)
        if any(source == self.descriptor for source, _ in sources.poll(_ms(wait_s))):
            forget_wakes(self._woken)

    def send_bytes(self, destination: str, payload: bytes) -> None:
        self._to_hub(destination, payload)

    def _await(self, wait_s: float | None) -> None:
        self._carry(self, wait_s)

    def close(self) -> None:
        self._woken.close()
        self._waker.close()


class UnixLine(Line):
    """The connection of a peer of this kernel."""

    def __init__(self, name: str, path: str, token: str) -> None:
        """Raises OSError."""
        super().__init__()
        self._pid = os.getpid()
        end = socket.socket(socket.AF_UNIX)
        with reachable(path) as short:
            end.connect(short)
        self._end = end
        self._unsent: tuple[bytes, list[int]] = b"", []
        """Bytes of frames, and how many of them were sent, by each call."""
        self._lock = threading.RLock()  # a signal's handler may send, too
        self._pipe = Pipe(end)
        self.descriptor = self._pipe.fileno()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self.send_bytes(name, token.encode())

    def send_bytes(self, destination: str, payload: bytes) -> None:
        """If a signal's handler raises here, the rest of the message precedes the next one."""
        with self._lock:
            data, sent = self._unsent
            self._unsent = data[sum(sent) :] + _framed(_frame(destination, payload)), []
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the hub has ended
                while left := self._left():
                    # One call of C, so that no handler raises before the number is kept.
                    self._unsent[1].extend(map(self._end.send, (left,)))
            self._unsent = b"", []

    def _left(self) -> memoryview:
        data, sent = self._unsent
        return memoryview(data)[sum(sent) :]

    def _await(self, wait_s: float | None) -> None:
        if self._poll.poll(_ms(wait_s)):
            self._arrived += map(_parts, self._pipe.receive())

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._pipe.close()


class Uplink(Line):
    """A machine's connection to the hub, for its agent and all of its ranks."""

    def __init__(self, name: str, reads: int, writes: int, ranks: Switchboard) -> None:
        """name: of the agent. reads, writes: its own standard input and output."""
        super().__init__()
        self._name, self._ranks = name, ranks
        self._epoll = select.epoll()
        self._hub = _Connection(reads, writes, self._epoll)
        self._hub.send(_MARK)
        self._epoll.register(ranks.descriptor, select.EPOLLIN)
        self.descriptor = self._epoll.fileno()

    def send_bytes(self, destination: str, payload: bytes) -> None:
        self._carry_up()  # what a rank has sent before it ended precedes the news of its end
        self._hub.send(_carried(self._name, destination, payload))

    def _await(self, wait_s: float | None) -> None:
        """Also carries the messages of the ranks, both ways."""
        if self._epoll.poll(wait_s):
            self._carry_up()
            self._carry_down()

    def _carry_up(self) -> None:
        self._hub.send(b"".join(_carried(*message) for message in self._ranks.arrived()))

    def _carry_down(self) -> None:
        frames = self._hub.receive()
        self.received = self._hub.received
        for frame in frames:
            source, rest = _parts(frame)
            names, payload = _parts(rest)
            destinations = names.split(_SPACE)
            if self._name in destinations:
                self._arrived.append((source, payload))
            else:
                self._ranks.send(destinations, source, payload)

    def close(self) -> None:
        self._hub.close()
        self._epoll.close()

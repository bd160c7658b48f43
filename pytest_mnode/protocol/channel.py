"""The control channel: no data from a process that does not hold the run's key is unpickled.

Processes of this kernel use a Unix socket in the run's own directory. Other machines use zmq with
CURVE, whose only server is the hub; it accepts exactly one client key. The keys are made per run
and passed by standard input or through a fork, never in an argument list.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import zmq
from zmq.auth.thread import ThreadAuthenticator

from pytest_mnode.errors import ClusterError
from pytest_mnode.protocol import address as addresses_of

_HEADER_BYTES = 4
_CHUNK_BYTES = 1 << 16
_MOST_FDS = 16


class Pipe:
    """One end of a socket pair. A writer that stops in mid-message never blocks the reader."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._data = bytearray()
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
        data = self.framed(payload)
        if fds:
            data = data[socket.send_fds(self._end, [data], fds) :]
        self._end.sendall(data)

    @staticmethod
    def framed(payload: bytes) -> bytes:
        """The bytes of a message in the stream."""
        return len(payload).to_bytes(_HEADER_BYTES, "big") + payload

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
        self._data += data
        found = []
        while (whole := self._whole()) is not None:
            found.append(whole)
        return found

    def _whole(self) -> bytes | None:
        end = _HEADER_BYTES + int.from_bytes(self._data[:_HEADER_BYTES], "big")
        if len(self._data) < max(end, _HEADER_BYTES):
            return None
        whole = bytes(self._data[_HEADER_BYTES:end])
        del self._data[:end]
        return whole

    def close(self) -> None:
        self._end.close()
        while self.fds:
            os.close(self.fds.popleft())


IPC = "ipc://"
_NAME_BYTES = 2
_PORT_TRIES = 10


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that a peer of the hub needs, as Z85 text, without the hub's own secret key."""

    server_public: str
    client_public: str
    client_secret: str


def new_keys() -> tuple[bytes, Keys]:
    """The hub's secret key and the keys of its peers, new for every run."""
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    keys = Keys(server_public.decode(), client_public.decode(), client_secret.decode())
    return server_secret, keys


class Switchboard:
    """The hub's end of the channel: routes messages between peers by name.

    Processes of this kernel come to a Unix socket, which costs one system call a message; those of
    other machines to zmq, where there are any (`listen`).
    """

    def __init__(self, endpoint: str, server_secret: bytes, keys: Keys) -> None:
        """endpoint: ipc://PATH."""
        self.endpoint = endpoint
        self._server_secret, self._keys = server_secret, keys
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(endpoint.removeprefix(IPC))
        self._listener.listen(socket.SOMAXCONN)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self.descriptor = self._epoll.fileno()
        """Readable when a message may have arrived since the last `arrived`."""
        self._connections: dict[int, _Connection] = {}
        self._peers: dict[str, _Connection] = {}
        self._arrived: deque[tuple[str, str, bytes]] = deque()
        self._router: _Router | None = None

    def listen(self, addresses: Sequence[str]) -> int:
        """Also listen at these addresses of this machine; returns the one port used for all.

        The system chooses the port. Raises ClusterError if no common port can be bound.
        """
        if self._router is None:
            self._router = _Router(self._server_secret, self._keys)
            self._epoll.register(self._router.descriptor, select.EPOLLIN)
        return self._router.listen(addresses)

    def arrived(self) -> Iterator[tuple[str, str, bytes]]:
        """(source, destination, payload) of every message that has arrived."""
        self._read()
        while self._arrived:
            yield self._arrived.popleft()
        if self._router is not None:
            yield from self._router.arrived()

    def send(self, destination: str, source: str, payload: bytes) -> None:
        """Send to a peer; without effect if it is not connected, or no longer."""
        if (peer := self._peers.get(destination)) is not None:
            peer.send(_frame(source, payload))
        elif self._router is not None:
            self._router.send(destination, source, payload)

    def close(self) -> None:
        for connection in [*self._connections.values()]:
            self._drop(connection)
        self._epoll.close()
        self._listener.close()
        if self._router is not None:
            self._router.close()

    def _read(self) -> None:
        for number, events in self._epoll.poll(0):
            if number == self._listener.fileno():
                self._accept()
            elif (connection := self._connections.get(number)) is not None:
                if events & select.EPOLLOUT:
                    connection.send(b"")
                if events & ~select.EPOLLOUT:
                    self._take(connection)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                end, _ = self._listener.accept()
                end.setblocking(False)
                self._connections[end.fileno()] = _Connection(end, self._epoll)

    def _take(self, connection: _Connection) -> None:
        try:
            frames = connection.pipe.receive()
        except EOFError:
            self._drop(connection)
            return
        for frame in frames:
            name, payload = _parts(frame)
            if connection.name:
                if name:  # otherwise the message is malformed
                    self._arrived.append((connection.name, name, payload))
            elif name and hmac.compare_digest(payload, self._keys.client_secret.encode()):
                connection.name = name
                self._peers[name] = connection
            else:
                self._drop(connection)
                return

    def _drop(self, connection: _Connection) -> None:
        if self._peers.get(connection.name) is connection:
            del self._peers[connection.name]
        del self._connections[connection.pipe.fileno()]
        self._epoll.unregister(connection.pipe.fileno())
        connection.pipe.close()


class _Connection:
    """The hub's end of a connection from a process of this kernel, which never blocks the hub.

    name: of the peer; "" until its first frame has shown that it holds the key.
    """

    def __init__(self, end: socket.socket, epoll: select.epoll) -> None:
        self.pipe = Pipe(end)
        self.name = ""
        self._end, self._epoll = end, epoll
        self._unsent = bytearray()
        epoll.register(end, select.EPOLLIN)

    def send(self, frame: bytes) -> None:
        """Send the frame, if any, as far as there is room; the rest as soon as there is."""
        waited = bool(self._unsent)
        self._unsent += Pipe.framed(frame) if frame else b""
        try:
            sent = self._end.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:  # it ended, which `receive` shows
            sent = len(self._unsent)
        del self._unsent[:sent]
        if waited != bool(self._unsent):
            out = select.EPOLLOUT if self._unsent else 0
            self._epoll.modify(self._end, select.EPOLLIN | out)


def _frame(name: str, payload: bytes) -> bytes:
    """A message with the name of its destination, or of its source."""
    text = name.encode()
    return len(text).to_bytes(_NAME_BYTES, "big") + text + payload


def _parts(frame: bytes) -> tuple[str, bytes]:
    """The inverse of `_frame`; no name if the frame is malformed."""
    end = _NAME_BYTES + int.from_bytes(frame[:_NAME_BYTES], "big")
    return frame[_NAME_BYTES:end].decode(errors="replace"), frame[end:]


class _Router:
    """The hub's end of the connections of other machines."""

    def __init__(self, server_secret: bytes, keys: Keys) -> None:
        self.context = zmq.Context(io_threads=1)
        self._authenticator = ThreadAuthenticator(self.context)
        self._authenticator.start()
        only = keys.client_public.encode()
        provider = SimpleNamespace(callback=lambda domain, key: key == only)  # noqa: ARG005
        self._authenticator.configure_curve_callback("*", credentials_provider=provider)
        self.socket: zmq.Socket[bytes] = self.context.socket(zmq.ROUTER)
        self.socket.curve_server = True
        self.socket.curve_secretkey = server_secret
        self.socket.curve_publickey = keys.server_public.encode()
        self.socket.linger = 0
        # No limit: reports may be large and many, and a dropped one would look like a hung rank.
        self.socket.sndhwm = 0
        self.socket.rcvhwm = 0
        self.descriptor = int(self.socket.getsockopt(zmq.FD))
        """Readable when a message may have arrived since the socket was last used."""

    def listen(self, addresses: Sequence[str]) -> int:
        """See Switchboard."""
        self.socket.ipv6 = True
        problem = ""
        for _ in range(_PORT_TRIES):
            bound: list[str] = []
            port: int | str = "*"
            try:
                for address in addresses:
                    self.socket.bind(addresses_of.endpoint(address, port))
                    bound.append(self.socket.getsockopt_string(zmq.LAST_ENDPOINT))
                    port = int(bound[-1].rpartition(":")[2])
                return int(port)
            except zmq.ZMQError as error:  # the port is in use at another of the addresses
                problem = str(error)
                for one in bound:
                    self.socket.unbind(one)
        raise ClusterError(f"cannot listen at {', '.join(addresses)}: {problem}")

    def arrived(self) -> Iterator[tuple[str, str, bytes]]:
        """See Switchboard."""
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) == 3:  # otherwise the message is malformed
                source, destination = (name.decode(errors="replace") for name in frames[:2])
                yield source, destination, frames[2]

    def send(self, destination: str, source: str, payload: bytes) -> None:
        self.socket.send_multipart([destination.encode(), source.encode(), payload])

    def close(self) -> None:
        self.socket.close(linger=200)
        self._authenticator.stop()
        self.context.term()


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


class Line:
    """A peer's connection to the hub, made only after a fork: zmq contexts survive none."""

    source: Any
    """What a zmq.Poller watches: readable when a message may have arrived."""
    sender = ""
    """The peer that sent the last message received through a socket."""

    def send(self, destination: str, message: Any) -> None:
        self.send_bytes(destination, pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, destination: str, payload: bytes) -> None:
        raise NotImplementedError

    def receive(self, timeout_s: float | None) -> Any | None:
        """The next message, or None after `timeout_s` (None: wait for ever)."""
        payload = self.receive_bytes(timeout_s)
        return None if payload is None else pickle.loads(payload)

    def receive_bytes(self, timeout_s: float | None) -> bytes | None:
        raise NotImplementedError

    def close(self) -> None:
        """Send the messages still queued, then close; without effect in a forked child."""
        raise NotImplementedError


class LocalLine(Line):
    """The connection of a peer in the hub's own process: queues, without a socket or encryption.

    Messages are still pickled, so that no object is shared by accident.
    """

    def __init__(
        self,
        to_hub: Callable[[str, bytes], None],
        carry: Callable[[LocalLine, float | None], None] | None = None,
    ) -> None:
        """carry: called instead of `wait`, with the same arguments."""
        self._to_hub = to_hub
        self._carry = carry or LocalLine.wait
        self._inbox: deque[bytes] = deque()
        self._woken, self._waker = waking_pair()
        self._sources: dict[int | None, select.poll] = {}

    @property
    def is_empty(self) -> bool:
        return not self._inbox

    def put(self, payload: bytes, *, wakes: bool = True) -> None:
        """Queue a message for this peer. wakes: the caller is not the receiving thread."""
        self._inbox.append(payload)
        if wakes:
            wake(self._waker)

    def wait(self, wait_s: float | None, descriptor: int | None = None) -> None:
        """Wait until a message was put, `descriptor` is readable, or `wait_s` seconds passed."""
        wait_ms = None if wait_s is None else int(wait_s * 1000 + 0.999)
        sources, woken = self._sources.get(descriptor), self._woken.fileno()
        if sources is None:
            sources = self._sources[descriptor] = select.poll()
            for source in (woken, descriptor):
                if source is not None:
                    sources.register(source, select.POLLIN)
        if any(source == woken for source, _ in sources.poll(wait_ms)):
            forget_wakes(self._woken)

    def send_bytes(self, destination: str, payload: bytes) -> None:
        self._to_hub(destination, payload)

    def receive_bytes(self, timeout_s: float | None) -> bytes | None:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        left_s = timeout_s
        while not self._inbox:
            self._carry(self, left_s)
            if end is not None and (left_s := max(0.0, end - time.monotonic())) == 0:
                break
        return self._inbox.popleft() if self._inbox else None

    def close(self) -> None:
        self._woken.close()
        self._waker.close()


def connect(
    name: str,
    endpoint: str,
    keys: Keys,
    context: zmq.Context[Any] | None = None,
    *,
    reconnects: bool = True,
) -> Line:
    """A connection to the hub at ipc://PATH on this machine, else by zmq. Raises OSError.

    context: one that is shared with other peers of this process; None: a context of its own.
    reconnects: whether zmq connects again by itself, which loses messages without a word.
    """
    if endpoint.startswith(IPC):
        return _UnixLine(name, endpoint, keys)
    return _ZmqLine(name, endpoint, keys, context, reconnects=reconnects)


class _UnixLine(Line):
    def __init__(self, name: str, endpoint: str, keys: Keys) -> None:
        self._pid = os.getpid()
        end = socket.socket(socket.AF_UNIX)
        end.connect(endpoint.removeprefix(IPC))
        self._end = end
        self._unsent: tuple[bytes, list[int]] = b"", []
        """Bytes of frames, and how many of them were sent, by each call."""
        self._lock = threading.RLock()  # a signal's handler may send, too
        self._pipe = Pipe(end)
        self.source = self._pipe.fileno()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._arrived: deque[tuple[str, bytes]] = deque()
        self.send_bytes(name, keys.client_secret.encode())

    def send_bytes(self, destination: str, payload: bytes) -> None:
        """If a signal's handler raises here, the rest of the message precedes the next one."""
        with self._lock:
            data, sent = self._unsent
            self._unsent = data[sum(sent) :] + Pipe.framed(_frame(destination, payload)), []
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the hub has ended
                while left := self._left():
                    # One call of C, so that no handler raises before the number is kept.
                    self._unsent[1].extend(map(self._end.send, (left,)))
            self._unsent = b"", []

    def _left(self) -> memoryview:
        data, sent = self._unsent
        return memoryview(data)[sum(sent) :]

    def receive_bytes(self, timeout_s: float | None) -> bytes | None:
        """Raises EOFError if the hub has ended."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._arrived:
            left_s = None if end is None else max(0.0, end - time.monotonic())
            if not self._poll.poll(None if left_s is None else int(left_s * 1000 + 0.999)):
                return None
            self._arrived += map(_parts, self._pipe.receive())
        self.sender, payload = self._arrived.popleft()
        return payload

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._pipe.close()


class _ZmqLine(Line):
    def __init__(
        self,
        name: str,
        endpoint: str,
        keys: Keys,
        context: zmq.Context[Any] | None,
        *,
        reconnects: bool,
    ) -> None:
        self._pid = os.getpid()
        self._own_context = context is None
        self._context = zmq.Context(io_threads=1) if context is None else context
        self.source: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self.source.identity = name.encode()
        self.source.curve_serverkey = keys.server_public.encode()
        self.source.curve_publickey = keys.client_public.encode()
        self.source.curve_secretkey = keys.client_secret.encode()
        self.source.linger = 0
        self.source.sndhwm = 0
        self.source.rcvhwm = 0
        self.source.ipv6 = True
        if not reconnects:
            self.source.reconnect_ivl = -1
        self.source.connect(endpoint)

    def send_bytes(self, destination: str, payload: bytes) -> None:
        self.source.send_multipart([destination.encode(), payload])

    def receive_bytes(self, timeout_s: float | None) -> bytes | None:
        wait_ms = None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999))
        if not self.source.poll(wait_ms):
            return None
        sender, payload = self.source.recv_multipart()
        self.sender = sender.decode()
        return payload

    def close(self) -> None:
        if os.getpid() == self._pid:
            self.source.close(linger=500)
            if self._own_context:
                self._context.term()

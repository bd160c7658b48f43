"""The control channel: zmq with CURVE, keys made per run, no unauthenticated data unpickled.

The hub is the only CURVE server. It accepts exactly one client key, which is passed by standard
input or through a fork, never in an argument list. zmq delivers a message only after its sender
proved that it holds that key, so `Line.receive` unpickles only data from processes of this run.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator

from pytest_mnode.errors import ClusterError
from pytest_mnode.protocol import address as addresses_of

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


class _OneKey:
    """Credentials provider that accepts a single client key (Z85 text)."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:  # noqa: ARG002  zmq's signature
        return key == self._public


class Switchboard:
    """The hub's end of the channel: routes messages between peers by name."""

    def __init__(self, endpoint: str, server_secret: bytes, keys: Keys) -> None:
        self.context = zmq.Context(io_threads=1)
        self._authenticator = ThreadAuthenticator(self.context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            "*", credentials_provider=_OneKey(keys.client_public.encode())
        )
        self.socket: zmq.Socket[bytes] = self.context.socket(zmq.ROUTER)
        self.socket.curve_server = True
        self.socket.curve_secretkey = server_secret
        self.socket.curve_publickey = keys.server_public.encode()
        self.socket.linger = 0
        # No limit: reports may be large and many, and a dropped one would look like a hung rank.
        self.socket.sndhwm = 0
        self.socket.rcvhwm = 0
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.descriptor = int(self.socket.getsockopt(zmq.FD))
        """Readable when a message may have arrived since the socket was last used."""

    def listen(self, addresses: Sequence[str]) -> int:
        """Also listen at these addresses of this machine; returns the one port used for all.

        The system chooses the port. Raises ClusterError if no common port can be bound.
        """
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

    def receive(self) -> tuple[str, str, bytes] | None:
        """(source, destination, payload) of the next message; None if there is none."""
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) == 3:  # otherwise the message is malformed
                source, destination, payload = frames
                return (
                    source.decode(errors="replace"),
                    destination.decode(errors="replace"),
                    payload,
                )
        return None

    def send(self, destination: str, source: str, payload: bytes) -> None:
        self.socket.send_multipart([destination.encode(), source.encode(), payload])

    def close(self) -> None:
        self.socket.close(linger=200)
        self._authenticator.stop()
        self.context.term()


class PeerLine(Protocol):
    """A peer's connection to the hub."""

    def send(self, destination: str, message: Any) -> None:
        """Pickle `message` and send it to `destination`."""

    def receive(self, timeout_s: float | None) -> Any | None:
        """The next message, or None after `timeout_s` (None: wait for ever)."""

    def close(self) -> None:
        """Send the messages still queued, then close."""


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


class LocalLine:
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
        sources = select.poll()
        for source in (self._woken.fileno(), descriptor):
            if source is not None:
                sources.register(source, select.POLLIN)
        sources.poll(wait_ms)
        forget_wakes(self._woken)

    def send(self, destination: str, message: Any) -> None:
        self._to_hub(destination, pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def receive(self, timeout_s: float | None) -> Any | None:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        left_s = timeout_s
        while not self._inbox:
            self._carry(self, left_s)
            if end is not None and (left_s := max(0.0, end - time.monotonic())) == 0:
                break
        return pickle.loads(self._inbox.popleft()) if self._inbox else None

    def close(self) -> None:
        self._woken.close()
        self._waker.close()


class Line:
    """A peer's connection. Created only after a fork, because zmq contexts do not survive one.

    context: one that is shared with other peers of this process; None: a context of its own.
    """

    def __init__(
        self, name: str, endpoint: str, keys: Keys, context: zmq.Context[Any] | None = None
    ) -> None:
        self.name = name
        self._pid = os.getpid()
        self._own_context = context is None
        self._context = zmq.Context(io_threads=1) if context is None else context
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self.socket.identity = name.encode()
        self.socket.curve_serverkey = keys.server_public.encode()
        self.socket.curve_publickey = keys.client_public.encode()
        self.socket.curve_secretkey = keys.client_secret.encode()
        self.socket.linger = 0
        self.socket.sndhwm = 0
        self.socket.rcvhwm = 0
        self.socket.ipv6 = True
        self.socket.connect(endpoint)

    def send(self, destination: str, message: Any) -> None:
        self.send_bytes(destination, pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, destination: str, payload: bytes) -> None:
        self.socket.send_multipart([destination.encode(), payload])

    def receive(self, timeout_s: float | None) -> Any | None:
        """The next message, or None after `timeout_s` (None: wait for ever)."""
        payload = self.receive_bytes(timeout_s)
        return None if payload is None else pickle.loads(payload)

    def receive_bytes(self, timeout_s: float | None) -> bytes | None:
        wait_ms = None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999))
        if not self.socket.poll(wait_ms):
            return None
        return self.socket.recv_multipart()[-1]

    def close(self) -> None:
        if os.getpid() == self._pid:
            self.socket.close(linger=500)
            if self._own_context:
                self._context.term()

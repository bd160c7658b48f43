"""The control channel: zmq with CURVE, keys made per run, nothing unpickled unauthenticated.

The hub is the one CURVE server. It accepts exactly one client key, which travels by standard input
or through a fork, never in an argument list. zmq hands over a message only after its sender proved
to hold that key, so what `Line.receive` unpickles was written by a process of this run.
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
    """What a peer of the hub needs, Z85 text. The hub's own secret is not among it."""

    server_public: str
    client_public: str
    client_secret: str


def new_keys() -> tuple[bytes, Keys]:
    """The hub's secret key, and what its peers get. Made anew for every run."""
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    keys = Keys(server_public.decode(), client_public.decode(), client_secret.decode())
    return server_secret, keys


class _OneKey:
    """Credentials provider that knows a single client key, as Z85 text."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:  # noqa: ARG002  zmq's signature
        return key == self._public


class Switchboard:
    """The hub's end: routes messages between peers by their names."""

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
        # Reports may be large and many; dropping one would look like a hang of the rank.
        self.socket.sndhwm = 0
        self.socket.rcvhwm = 0
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.descriptor = int(self.socket.getsockopt(zmq.FD))
        """Readable when something may have come since the socket was last used."""

    def listen(self, addresses: Sequence[str]) -> int:
        """Also listen at addresses of this machine, at one port that the system chooses; it.

        Raises ClusterError where that is not possible.
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
            except zmq.ZMQError as error:  # taken at another of the addresses
                problem = str(error)
                for one in bound:
                    self.socket.unbind(one)
        raise ClusterError(f"cannot listen at {', '.join(addresses)}: {problem}")

    def receive(self) -> tuple[str, str, bytes] | None:
        """(source, destination, payload) of the next message; None where there is none."""
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            if len(frames) == 3:  # else it is malformed
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
    """What a client needs of its way to the hub."""

    def send(self, destination: str, message: Any) -> None:
        """Pickle and send."""

    def receive(self, timeout_s: float | None) -> Any | None:
        """The next message, or None after `timeout_s` (None: wait for ever)."""

    def close(self) -> None:
        """Send what is still to be sent, and end."""


def waking_pair() -> tuple[socket.socket, socket.socket]:
    """The first is readable when `wake` was called with the second."""
    pair = socket.socketpair()
    for one in pair:
        one.setblocking(False)
    return pair


def wake(waker: socket.socket) -> None:
    with contextlib.suppress(OSError):  # full, so that it wakes anyway; or closed
        waker.send(b"x")


def forget_wakes(woken: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        woken.recv(4096)


class LocalLine:
    """A peer's end in the hub's own process: a queue each way, no socket and no encryption.

    Messages are pickled all the same, so that nothing is shared by accident.
    """

    def __init__(
        self,
        to_hub: Callable[[str, bytes], None],
        carry: Callable[[LocalLine, float | None], None] | None = None,
    ) -> None:
        """carry: called in place of `wait`, with its arguments."""
        self._to_hub = to_hub
        self._carry = carry or LocalLine.wait
        self._inbox: deque[bytes] = deque()
        self._woken, self._waker = waking_pair()

    @property
    def is_empty(self) -> bool:
        return not self._inbox

    def put(self, payload: bytes, *, wakes: bool = True) -> None:
        """A message for this peer. wakes: from another thread than the one that receives."""
        self._inbox.append(payload)
        if wakes:
            wake(self._waker)

    def wait(self, wait_s: float | None, descriptor: int | None = None) -> None:
        """Until something was put, or the descriptor is readable, or the time is over."""
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
    """A peer's end. Made after a fork, never before: zmq contexts do not survive one.

    context: shared with other peers in this process; None for a context of its own.
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

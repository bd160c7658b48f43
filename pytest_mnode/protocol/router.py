"""The hub's end of the connections of other machines: zmq with CURVE, one for each machine.

A message consists of three frames: source, destinations and payload; messages that go together are
sent together. The hub has the only server key, and accepts exactly one client key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from pytest_mnode.errors import ClusterError
from pytest_mnode.protocol import address as addresses_of

_PORT_TRIES = 10
SPACE = " "
"""Between destinations, none of which has one."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that a machine needs, as Z85 text, without the hub's own secret key."""

    server_public: str
    client_public: str
    client_secret: str


class Router:
    """The hub's end of the connections of other machines."""

    def __init__(self) -> None:
        server_public, server_secret = zmq.curve_keypair()
        only, client_secret = zmq.curve_keypair()
        self.keys = Keys(server_public.decode(), only.decode(), client_secret.decode())
        self._context = zmq.Context(io_threads=1)
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        provider = SimpleNamespace(callback=lambda domain, key: key == only)  # noqa: ARG005
        self._authenticator.configure_curve_callback("*", credentials_provider=provider)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_secretkey = server_secret
        self._socket.curve_publickey = server_public
        self._socket.ipv6 = True
        without_limit(self._socket)
        self._machines: dict[str, bytes] = {}
        """The machine of each peer that has sent a message and has not left."""
        self._arrived: deque[tuple[str, str, bytes]] = deque()
        self.descriptor = int(self._socket.getsockopt(zmq.FD))
        """Readable when a message may have arrived since the socket was last used."""

    def listen(self, addresses: Sequence[str]) -> int:
        """See Switchboard."""
        problem = ""
        for _ in range(_PORT_TRIES):
            bound: list[str] = []
            port: int | str = "*"
            try:
                for address in addresses:
                    self._socket.bind(addresses_of.endpoint(address, port))
                    bound.append(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))
                    port = int(bound[-1].rpartition(":")[2])
                return int(port)
            except zmq.ZMQError as error:  # the port is in use at another of the addresses
                problem = str(error)
                for one in bound:
                    self._socket.unbind(one)
        raise ClusterError(f"cannot listen at {', '.join(addresses)}: {problem}")

    def arrived(self) -> Iterator[tuple[str, str, bytes]]:
        """See Switchboard."""
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            if not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                return
            machine, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            for source, destination, payload in messages(frames):
                if destination:
                    self._machines[source] = machine
                else:
                    self._machines.pop(source, None)
                self._arrived.append((source, destination, payload))

    def send(self, destinations: Iterable[str], source: str, payload: bytes) -> None:
        """See Switchboard; one message for each machine."""
        found: dict[bytes, list[str]] = {}
        for destination in destinations:
            if (machine := self._machines.get(destination)) is not None:
                found.setdefault(machine, []).append(destination)
        for machine, names in found.items():
            self._socket.send_multipart(
                [machine, source.encode(), SPACE.join(names).encode(), payload]
            )

    def close(self) -> None:
        self._socket.close(linger=200)
        self._authenticator.stop()
        self._context.term()


def messages(frames: Sequence[bytes]) -> Iterator[tuple[str, str, bytes]]:
    """(source, destinations, payload) of each message; what is malformed is left out."""
    for source, destinations, payload in zip(*(frames[n::3] for n in range(3)), strict=False):
        yield source.decode(errors="replace"), destinations.decode(errors="replace"), payload


def without_limit(socket: zmq.Socket[Any]) -> None:
    """Reports may be large and many, and a dropped one would look like a hung rank."""
    socket.linger = socket.sndhwm = socket.rcvhwm = 0

"""Connections of nodes that dial in: zmq with CURVE.

The bridge's end has the only server key, and accepts exactly one client key. The keys are made per
run and passed by standard input or a file that is emptied, never in an argument list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import zmq

from pytest_mnode.errors import ClusterError

_PORT_TRIES = 10


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that a node needs, as Z85 text, without the bridge's own secret key."""

    server_public: str
    client_public: str
    client_secret: str


class Router:
    """The bridge's end."""

    def __init__(self) -> None:
        from zmq.auth.thread import ThreadAuthenticator  # asyncio, which no node needs

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
        _without_limit(self._socket)
        self.descriptor = int(self._socket.getsockopt(zmq.FD))
        """Readable when a message may have arrived since the socket was last used."""

    def listen(self, addresses: Sequence[str]) -> int:
        """Listen at these addresses of this machine; the port, one for all, which the system
        chooses. Raises ClusterError if no common port can be bound."""
        problem = ""
        for _ in range(_PORT_TRIES):
            bound: list[str] = []
            port: int | str = "*"
            try:
                for address in addresses:
                    self._socket.bind(endpoint_of(address, port))
                    bound.append(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))
                    port = int(bound[-1].rpartition(":")[2])
                return int(port)
            except zmq.ZMQError as error:  # the port is in use at another of the addresses
                problem = str(error)
                for one in bound:
                    self._socket.unbind(one)
        raise ClusterError(f"cannot listen at {', '.join(addresses)}: {problem}")

    def arrived(self) -> Iterator[tuple[str, bytes]]:
        """(node, data) of every message that has arrived."""
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            node, *data = self._socket.recv_multipart(zmq.NOBLOCK)
            yield node.decode(errors="replace"), b"".join(data)

    def send(self, node: str, data: bytes) -> None:
        """Send to a node; without effect if it is not connected, or no longer."""
        self._socket.send_multipart([node.encode(), data])

    def close(self) -> None:
        self._socket.close(linger=200)
        self._authenticator.stop()
        self._context.term()


class Dealer:
    """A node's end. zmq does not connect again by itself, which would lose messages without a word:
    with a gap in its frames the stream is lost, and silence then ends both sides."""

    def __init__(self, node: str, endpoint: str, keys: Keys) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.identity = node.encode()
        self._socket.curve_serverkey = keys.server_public.encode()
        self._socket.curve_publickey = keys.client_public.encode()
        self._socket.curve_secretkey = keys.client_secret.encode()
        self._socket.ipv6 = True
        self._socket.reconnect_ivl = -1
        _without_limit(self._socket)
        self._socket.connect(endpoint)
        self.descriptor = int(self._socket.getsockopt(zmq.FD))
        """Readable when something has changed since the socket was last used."""

    @property
    def pending(self) -> bool:
        """Whether a message is there."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self) -> bytes | None:
        """The next message; None if there is none."""
        return self._socket.recv() if self.pending else None

    def send(self, data: bytes) -> None:
        self._socket.send(data)

    def close(self) -> None:
        self._socket.close(linger=500)
        self._context.term()


def endpoint_of(address: str, port: int | str) -> str:
    """zmq's name of a numeric address and a port."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _without_limit(socket: zmq.Socket[bytes]) -> None:
    """Output may be large, and a dropped message would be a gap in it."""
    socket.linger = socket.sndhwm = socket.rcvhwm = 0

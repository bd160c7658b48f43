"""Connections of nodes that dial in: peers without the key get nothing and do no harm."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from socket import create_server

import pytest
import zmq

from pytest_mnode.launchers.dial_in.connections import Dealer, Keys, Router

LONG_S = 20.0


@pytest.fixture
def router() -> Iterator[Router]:
    made = Router()
    yield made
    made.close()


@pytest.fixture
def endpoint(router: Router) -> str:
    return f"tcp://127.0.0.1:{router.listen(['127.0.0.1'])}"


def receive(end: Router | Dealer, limit_s: float = LONG_S) -> tuple[str, bytes] | bytes | None:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        found = next(end.arrived(), None) if isinstance(end, Router) else end.receive()
        if found is not None:
            return found
        select.select([end.descriptor], [], [], 0.05)
    return None


def test_a_node_with_the_key_is_answered_with_messages_of_any_size(
    router: Router, endpoint: str
) -> None:
    node, large = Dealer("node/1", endpoint, router.keys), b"x" * 3_000_000
    for data in (b"first", large):
        node.send(data)
        assert receive(router) == ("node/1", data)
        router.send("node/1", data)
        assert receive(node) == data
    router.send("node/2", b"not there")
    node.close()


def strangers(endpoint: str, keys: Keys, other: Keys) -> list[zmq.Socket[bytes]]:
    """Peers without a key, with another client's key, or with a wrong key of the server."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    sockets = []
    for server, public, secret in (
        (None, "", ""),
        (keys.server_public, other.client_public, other.client_secret),
        (other.server_public, keys.client_public, keys.client_secret),
    ):
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.identity = b"node/1"
        if server is not None:
            socket.curve_serverkey = server.encode()
            socket.curve_publickey = public.encode()
            socket.curve_secretkey = secret.encode()
        socket.connect(endpoint)
        sockets.append(socket)
    return sockets


def test_a_peer_without_the_key_is_ignored_and_gets_nothing(router: Router, endpoint: str) -> None:
    another = Router()
    assert another.keys.client_secret != router.keys.client_secret
    sockets = strangers(endpoint, router.keys, another.keys)
    for socket in sockets:
        socket.send(b"a greeting")
    assert receive(router, 0.5) is None
    router.send("node/1", b"secret")
    assert not any(socket.poll(200) for socket in sockets)
    node = Dealer("node/1", endpoint, router.keys)  # a node with the key is still served
    node.send(b"here")
    assert receive(router) == ("node/1", b"here")
    node.close()
    another.close()
    for socket in sockets:
        socket.close()


def test_a_connection_is_not_made_again_by_itself(router: Router) -> None:
    with create_server(("127.0.0.1", 0)) as server:
        node = Dealer("node/1", f"tcp://127.0.0.1:{server.getsockname()[1]}", router.keys)
        server.settimeout(30.0)
        server.accept()[0].close()
        server.settimeout(0.5)  # zmq's own interval is 0.1 s
        with pytest.raises(TimeoutError):
            server.accept()
        node.close()

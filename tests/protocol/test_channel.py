"""The control channel: peers without the key get nothing and do no harm."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pytest_mnode.protocol.channel import Keys, Line, LocalLine, Switchboard, new_keys

LONG_S = 20.0


class Bomb:
    """Unpickling this object is noticed."""

    exploded = False

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return explode, ()


def explode() -> None:
    Bomb.exploded = True


@pytest.fixture
def keys() -> tuple[bytes, Keys]:
    return new_keys()


@pytest.fixture
def switchboard(tmp_path: Path, keys: tuple[bytes, Keys]) -> Iterator[Switchboard]:
    board = Switchboard(f"ipc://{tmp_path}/hub", *keys)
    yield board
    board.close()


def receive(board: Switchboard, timeout_s: float) -> tuple[str, str, bytes] | None:
    return board.receive() if board.socket.poll(int(timeout_s * 1000)) else None


def test_a_peer_with_the_key_is_answered(
    switchboard: Switchboard, keys: tuple[bytes, Keys]
) -> None:
    line = Line("rank/1", switchboard.endpoint, keys[1])
    line.send("hub", {"value": 1})
    heard = receive(switchboard, 5)
    assert heard is not None
    assert heard[:2] == ("rank/1", "hub")
    assert pickle.loads(heard[2]) == {"value": 1}
    switchboard.send("rank/1", "hub", pickle.dumps("answer"))
    assert line.receive(5) == "answer"
    line.close()


def strangers(endpoint: str, keys: Keys) -> list[zmq.Socket[bytes]]:
    """Peers without a key, with another client's key, or with a wrong key of the server."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    _, other = new_keys()
    sockets = []
    for server, public, secret in (
        (None, "", ""),
        (keys.server_public, other.client_public, other.client_secret),
        (other.server_public, keys.client_public, keys.client_secret),
    ):
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.identity = b"client/1"
        if server is not None:
            socket.curve_serverkey = server.encode()
            socket.curve_publickey = public.encode()
            socket.curve_secretkey = secret.encode()
        socket.connect(endpoint)
        sockets.append(socket)
    return sockets


def test_a_peer_without_the_key_is_ignored_and_gets_nothing(
    switchboard: Switchboard, keys: tuple[bytes, Keys]
) -> None:
    sockets = strangers(switchboard.endpoint, keys[1])
    for socket in sockets:
        socket.send_multipart([b"hub", pickle.dumps(Bomb())])
    assert receive(switchboard, 0.5) is None
    switchboard.send("client/1", "hub", b"secret")
    assert not any(socket.poll(200) for socket in sockets)
    assert not Bomb.exploded
    # The switchboard still serves peers with the key.
    line = Line("rank/2", switchboard.endpoint, keys[1])
    line.send("hub", "here")
    heard = receive(switchboard, 5)
    assert heard is not None
    assert heard[0] == "rank/2"
    line.close()
    for socket in sockets:
        socket.close()


def test_a_malformed_message_is_skipped(switchboard: Switchboard, keys: tuple[bytes, Keys]) -> None:
    line = Line("rank/3", switchboard.endpoint, keys[1])
    line.socket.send_multipart([b"alone"])
    assert switchboard.socket.poll(5000)
    assert switchboard.receive() is None
    line.close()


def test_keys_are_new_in_each_run(keys: tuple[bytes, Keys]) -> None:
    secret, other = new_keys()
    assert secret != keys[0]
    assert other.client_secret != keys[1].client_secret


def test_a_message_to_a_line_of_this_process_ends_its_wait() -> None:
    line = LocalLine(lambda _, __: None)
    began = time.monotonic()
    later = threading.Timer(0.1, line.put, [pickle.dumps("late")])
    later.start()
    assert line.receive(LONG_S) == "late"
    line.put(pickle.dumps("at once"))
    assert line.receive(LONG_S) == "at once"
    assert time.monotonic() - began < LONG_S / 2
    later.join()
    line.close()


def test_a_line_of_this_process_waits_no_longer_than_it_may() -> None:
    line = LocalLine(lambda _, __: None)
    began = time.monotonic()
    assert line.receive(0.1) is None
    assert 0.1 <= time.monotonic() - began < LONG_S / 2
    line.close()

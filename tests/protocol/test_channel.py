"""The control channel: peers without the key get nothing and do no harm."""

from __future__ import annotations

import pickle
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from socket import create_server
from typing import Any

import pytest
import zmq

from pytest_mnode.protocol.channel import Keys, LocalLine, Switchboard, connect, new_keys

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


@pytest.fixture(params=["of this kernel", "of another machine"])
def endpoint(request: pytest.FixtureRequest, switchboard: Switchboard) -> str:
    if request.param == "of this kernel":
        return switchboard.endpoint
    return f"tcp://127.0.0.1:{switchboard.listen(['127.0.0.1'])}"


def receive(board: Switchboard, timeout_s: float) -> tuple[str, str, bytes] | None:
    end = time.monotonic() + timeout_s
    while (message := next(board.arrived(), None)) is None and time.monotonic() < end:
        select.select([board.descriptor], [], [], 0.05)
    return message


def test_a_peer_with_the_key_is_answered(
    switchboard: Switchboard, endpoint: str, keys: tuple[bytes, Keys]
) -> None:
    line = connect("rank/1", endpoint, keys[1])
    line.send("hub", {"value": 1})
    heard = receive(switchboard, LONG_S)
    assert heard is not None
    assert heard[:2] == ("rank/1", "hub")
    assert pickle.loads(heard[2]) == {"value": 1}
    switchboard.send("rank/1", "hub", pickle.dumps("answer"))
    assert line.receive(LONG_S) == "answer"
    assert line.receive(0.05) is None
    line.close()


def test_messages_larger_than_any_buffer_arrive_whole_and_in_order(
    switchboard: Switchboard, endpoint: str, keys: tuple[bytes, Keys]
) -> None:
    line = connect("rank/1", endpoint, keys[1])
    large, messages = b"x" * 3_000_000, 4

    def speak() -> None:
        for number in range(messages):
            line.send("hub", (number, large))

    speaking = threading.Thread(target=speak)
    speaking.start()
    for number in range(messages):
        heard = receive(switchboard, LONG_S)
        assert heard is not None
        assert pickle.loads(heard[2]) == (number, large)
    speaking.join()
    for number in range(messages):  # the peer reads none of them yet, and this does not wait
        switchboard.send("rank/1", "hub", pickle.dumps((number, large)))
    answers: list[Any] = []
    reading = threading.Thread(
        target=lambda: answers.extend(line.receive(LONG_S) for _ in range(messages))
    )
    reading.start()
    while reading.is_alive():
        assert receive(switchboard, 0.02) is None
    assert answers == [(number, large) for number in range(messages)]
    line.close()


def test_a_signal_that_raises_in_a_send_cuts_no_message(
    switchboard: Switchboard, keys: tuple[bytes, Keys]
) -> None:
    line = connect("rank/1", switchboard.endpoint, keys[1])
    large = b"x" * 3_000_000

    def expire(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeoutError):  # nobody reads, so it waits for room
            line.send("hub", large)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    speaking = threading.Thread(target=line.send, args=("hub", "next"))
    speaking.start()
    for message in (large, "next"):
        heard = receive(switchboard, LONG_S)
        assert heard is not None
        assert pickle.loads(heard[2]) == message
    speaking.join()
    line.close()


def test_a_peer_that_left_gets_nothing_and_does_no_harm(
    switchboard: Switchboard, keys: tuple[bytes, Keys]
) -> None:
    switchboard.send("rank/1", "hub", b"not there yet")
    line = connect("rank/1", switchboard.endpoint, keys[1])
    line.send("hub", "last words")
    line.close()
    heard = receive(switchboard, LONG_S)
    assert heard is not None
    for _ in range(3):
        switchboard.send("rank/1", "hub", b"x")
        assert receive(switchboard, 0.02) is None


def test_a_peer_whose_hub_has_ended_is_told_so(tmp_path: Path, keys: tuple[bytes, Keys]) -> None:
    board = Switchboard(f"ipc://{tmp_path}/other", *keys)
    line = connect("rank/1", board.endpoint, keys[1])
    board.close()
    line.send("hub", "nobody hears this")
    with pytest.raises(EOFError):
        line.receive(LONG_S)
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
    endpoint = f"tcp://127.0.0.1:{switchboard.listen(['127.0.0.1'])}"
    sockets = strangers(endpoint, keys[1])
    for socket in sockets:
        socket.send_multipart([b"hub", pickle.dumps(Bomb())])
    local = connect("client/1", switchboard.endpoint, new_keys()[1])
    local.send("hub", Bomb())
    assert receive(switchboard, 0.5) is None
    switchboard.send("client/1", "hub", b"secret")
    assert not any(socket.poll(200) for socket in sockets)
    with pytest.raises(EOFError):
        local.receive(LONG_S)
    assert not Bomb.exploded
    # The switchboard still serves peers with the key.
    for number, served in enumerate((endpoint, switchboard.endpoint)):
        line = connect(f"rank/{number}", served, keys[1])
        line.send("hub", "here")
        heard = receive(switchboard, LONG_S)
        assert heard is not None
        assert heard[0] == f"rank/{number}"
        line.close()
    for socket in sockets:
        socket.close()


def test_a_malformed_message_is_skipped(
    switchboard: Switchboard, endpoint: str, keys: tuple[bytes, Keys]
) -> None:
    line = connect("rank/3", endpoint, keys[1])
    line.send_bytes("", b"to nobody")
    line.send_bytes("hub", b"the next")
    heard = receive(switchboard, LONG_S)
    while heard is not None and not heard[1]:  # zmq delivers what has three parts
        heard = receive(switchboard, LONG_S)
    assert heard == ("rank/3", "hub", b"the next")
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


@pytest.mark.parametrize("reconnects", [True, False])
def test_whether_a_connection_is_made_again_by_itself(reconnects: bool) -> None:
    _, keys = new_keys()
    with create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = connect("n1", f"tcp://127.0.0.1:{port}", keys, reconnects=reconnects)
        server.settimeout(30.0)
        server.accept()[0].close()
        server.settimeout(30.0 if reconnects else 0.5)  # zmq's own interval is 0.1 s
        with nullcontext() if reconnects else pytest.raises(TimeoutError):
            server.accept()[0].close()
        line.close()

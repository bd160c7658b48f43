"""Delivery of messages: by a waiting client in the hub's process, otherwise by the hub's thread."""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.controller import hub as exchange
from pytest_mnode.controller.hub import Exchange
from pytest_mnode.protocol.channel import Line, LocalLine, Switchboard, UnixLine
from pytest_mnode.protocol.messages import HUB

LIMIT_S = 30.0
CLIENT, RANK = "client/1", "rank/w1/0"


class Held(Exchange):
    """A hub whose thread waits for `go` in every message to it."""

    def __init__(self, switchboard: Switchboard) -> None:
        super().__init__(switchboard)
        self.began, self.go = threading.Event(), threading.Event()
        self.handled: list[tuple[str, Any]] = []

    def handle(self, source: str, payload: bytes) -> None:
        self.began.set()
        self.go.wait(LIMIT_S)
        self.handled.append((threading.current_thread().name, pickle.loads(payload)))
        self.send(CLIENT, f"answer to {source}")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Held]:
    made = Held(Switchboard(f"{tmp_path}/hub", "token"))
    made.thread.start()
    yield made
    made.go.set()
    made.soon(lambda: setattr(made, "running", False))
    made.thread.join(LIMIT_S)
    assert not made.thread.is_alive()


@pytest.fixture
def client(hub: Held) -> Iterator[LocalLine]:
    line = hub.local_line(CLIENT)
    yield line
    line.close()


@pytest.fixture
def rank(hub: Held) -> Iterator[Line]:
    line = UnixLine(RANK, hub.switchboard.path, "token")
    yield line
    line.close()


def test_a_client_reaches_its_ranks_while_the_hub_is_blocked(
    hub: Held, client: LocalLine, rank: Line
) -> None:
    client.send(HUB, "a slow request")
    assert hub.began.wait(LIMIT_S)
    rank.send(CLIENT, "hello")
    assert client.receive(LIMIT_S) == "hello"
    client.send("world/w1/1", "run")
    assert rank.receive(LIMIT_S) == "run"
    hub.go.set()
    assert client.receive(LIMIT_S) == f"answer to {CLIENT}"


def test_messages_to_the_hub_are_handled_in_its_thread(
    hub: Held, client: LocalLine, rank: Line
) -> None:
    hub.go.set()
    for number in range(50):
        rank.send(HUB, number)
        assert client.receive(LIMIT_S) == f"answer to {RANK}"
    assert hub.handled == [("mnode-hub", number) for number in range(50)]


def test_messages_keep_their_order_when_two_threads_read_them(
    client: LocalLine, rank: Line
) -> None:
    """The hub's thread reads messages while the client does something else."""
    for number in range(300):
        rank.send(CLIENT, number)
    assert [client.receive(LIMIT_S) for _ in range(300)] == list(range(300))
    assert client.receive(0.0) is None


class _LateAppends(deque[Any]):
    """Calls of a hub, of which the client's come after the hub has slept again."""

    def append(self, call: Any) -> None:
        if threading.current_thread().name != "mnode-hub":
            time.sleep(0.1)
        super().append(call)


def test_a_call_that_comes_as_the_hub_falls_asleep_wakes_it(
    hub: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub takes an earlier call between the client's look at the queue and its own call."""
    monkeypatch.setattr(exchange, "CHECK_S", 60.0)
    hub.soon(lambda: time.sleep(0.05))
    hub._calls = _LateAppends(hub._calls)
    hub._calls.appendleft(lambda: None)  # the client sees a call that waits
    done = threading.Event()
    hub.soon(done.set)
    assert done.wait(30.0), "it waits for the hub's next look"

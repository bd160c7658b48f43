"""The relay of a gate, between a hub and a forge that the test speaks for."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from typing import Any

import pytest
import zmq

from pytest_mnode.agent import process
from pytest_mnode.agent import supervisor as gate
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.messages import BEAT, GateAlive, GateFailed, GateOrder

FORGE_PID = 7
LIMIT_MS = 20_000


class Relay:
    """A relay in a thread; `hub` is the other end of its line, `forge` that of its pipe."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.context = zmq.Context()
        self.hub, self.socket = (self.context.socket(zmq.PAIR) for _ in range(2))
        self.hub.bind("inproc://hub")
        self.socket.connect("inproc://hub")
        self.ours, self.forge = Pipe()
        self.stall_s = 0.0
        self.stalled = threading.Event()
        monkeypatch.setattr(gate, "Line", lambda *_: self)
        monkeypatch.setattr(process, "reap", self.reap)
        monkeypatch.setattr(gate, "ListeningClock", lambda: ListeningClock(0.1))
        monkeypatch.setattr(gate, "_SILENCE_S", 0.5)
        monkeypatch.setattr(gate, "_BEAT_S", 0.02)

    def start(self, remote: bool) -> None:
        order = GateOrder(gate=0, endpoint="", keys=KEYS, run_dir="", log_dir="", remote=remote)
        self.thread = threading.Thread(target=gate._relay, args=(order, self.ours, FORGE_PID))
        self.thread.start()

    def send(self, _: str, message: Any) -> None:
        self.send_bytes(_, pickle.dumps(message))

    def send_bytes(self, _: str, payload: bytes) -> None:
        self.socket.send(payload)

    def reap(self) -> dict[int, int]:
        stall_s, self.stall_s = self.stall_s, 0.0
        if stall_s:
            time.sleep(stall_s)
            self.stalled.set()
        return {FORGE_PID: signal.SIGKILL}

    def told(self) -> Any:
        """The next message to the hub that is no sign of life."""
        while self.hub.poll(LIMIT_MS):
            if not isinstance(message := pickle.loads(self.hub.recv()), GateAlive):
                return message
        return None


KEYS = {"server_public": "", "client_public": "", "client_secret": ""}


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    reads, writes = os.pipe()
    before = os.dup(0)
    os.dup2(reads, 0)
    made = Relay(monkeypatch)
    yield made
    os.close(writes)  # the end of its standard input ends a gate
    made.thread.join(LIMIT_MS / 1000)
    os.dup2(before, 0)
    for fd in (reads, before):
        os.close(fd)
    made.context.destroy(linger=0)


def test_a_forge_that_ended_before_an_order_came(relay: Relay) -> None:
    relay.forge.close()
    relay.hub.send_multipart([b"hub", b"an order"])
    relay.start(remote=False)
    failed = relay.told()
    assert isinstance(failed, GateFailed)
    assert failed.text == "the process that imports torch and the tests was killed by SIGKILL"


def test_a_stop_of_the_gate_is_no_silence_of_the_hub(
    relay: Relay, capfd: pytest.CaptureFixture[str]
) -> None:
    relay.stall_s = 1.0
    relay.hub.send_multipart([b"hub", BEAT])
    relay.start(remote=True)
    assert relay.stalled.wait(LIMIT_MS / 1000)
    time.sleep(0.1)
    assert relay.thread.is_alive()
    relay.thread.join(LIMIT_MS / 1000)
    assert not relay.thread.is_alive()
    assert "nothing heard of the controller for 0.5 s" in capfd.readouterr().err

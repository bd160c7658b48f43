"""The thread that carries messages between clients, agents and ranks by their names."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from pytest_mnode.protocol.channel import LocalLine, Switchboard
from pytest_mnode.protocol.world import HUB

CHECK_S = 0.25


class Exchange(threading.Thread):
    """Routes what is for others, and hands what is for the hub to its subclass."""

    def __init__(self, switchboard: Switchboard) -> None:
        super().__init__(name="mnode-hub", daemon=True)
        self.switchboard = switchboard
        self.running = True
        self._calls: deque[Callable[[], None]] = deque()
        self._local: dict[str, LocalLine] = {}
        self._woken, self._waker = socket.socketpair()

    def handle(self, source: str, payload: bytes) -> None:
        """A message for the hub."""
        raise NotImplementedError

    def world_size(self, world: str) -> int:
        """Number of ranks of a world; 0 where there is no such world."""
        raise NotImplementedError

    def check_limits(self) -> None:
        """Called several times a second, after everything that has come was read."""

    def failed(self, error: Exception) -> None:
        """Something in the hub's thread raised; the thread goes on."""

    def close(self) -> None:
        """Called once, at the end of the thread."""

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.switchboard.socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        while self.running:
            ready = dict(poller.poll(int(CHECK_S * 1000)))
            try:
                if self._woken.fileno() in ready:
                    self._woken.recv(4096)
                self.turn()
            except Exception as error:
                traceback.print_exc()
                self.failed(error)
        with contextlib.suppress(Exception):
            self.close()
        self.switchboard.close()
        self._woken.close()
        self._waker.close()

    def turn(self) -> None:
        """Do what is to be done now; limits last, after everything that has come was read."""
        while self._calls:
            self._calls.popleft()()
        while self.running and (received := self.switchboard.receive()) is not None:
            self._route(*received)
        self.check_limits()

    def soon(self, call: Callable[[], None]) -> None:
        """Have the hub's thread call this; from any thread."""
        self._calls.append(call)
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def local_line(self, name: str) -> LocalLine:
        """A line for a client in this process."""

        def to_hub(destination: str, payload: bytes) -> None:
            self.soon(lambda: self._route(name, destination, payload))

        line = self._local[name] = LocalLine(to_hub)
        return line

    def send(self, destination: str, message: Any) -> None:
        """A message of the hub."""
        self.deliver(destination, HUB, pickle.dumps(message))

    def deliver(self, destination: str, source: str, payload: bytes) -> None:
        local = self._local.get(destination)
        if local is not None:
            local.inbox.put(payload)
        else:
            self.switchboard.send(destination, source, payload)

    def _route(self, source: str, destination: str, payload: bytes) -> None:
        if destination == HUB:
            self.handle(source, payload)
        elif destination.startswith("world/"):
            name = destination.removeprefix("world/")
            for rank in range(self.world_size(name)):
                self.switchboard.send(f"rank/{name}/{rank}", source, payload)
        else:
            self.deliver(destination, source, payload)

"""Carries messages between clients, agents and ranks by their names.

The exchange's own thread does so, or a client of this process while it waits for a message: during
a test the client waits for its ranks nearly all the time, and a hop through another thread would
cost more than the message. Messages for the hub are handled only by the hub's thread.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import threading
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from pytest_mnode.protocol.channel import LocalLine, Switchboard, forget_wakes, wake, waking_pair
from pytest_mnode.protocol.world import HUB

CHECK_S = 0.25


class Exchange:
    """Routes messages for others, and passes messages for the hub to its subclass.

    Has a thread rather than being one: threads have private attributes, more with each Python, and
    a subclass with an attribute of the same name breaks them or itself.
    """

    def __init__(self, switchboard: Switchboard) -> None:
        self._thread = threading.Thread(target=self._run, name="mnode-hub", daemon=True)
        self.switchboard = switchboard
        self.running = True
        self._calls: deque[Callable[[], None]] = deque()
        self._local: dict[str, LocalLine] = {}
        self._lock = threading.RLock()
        """Guards the switchboard. A user of it must also read what has arrived, because its
        descriptor does not signal again what had arrived at its last use."""
        self._woken, self._waker = waking_pair()
        self._client_carries = False
        self._sleeps = False

    def handle(self, source: str, payload: bytes) -> None:
        """Handle a message for the hub."""
        raise NotImplementedError

    def world_size(self, world: str) -> int:
        """Number of ranks of a world; 0 if there is no such world."""
        raise NotImplementedError

    def check_limits(self) -> None:
        """Called several times a second, after all arrived messages were read."""

    def failed(self, error: Exception) -> None:
        """Called with an error that was raised in the hub's thread; the thread continues."""

    def close(self) -> None:
        """Called once, at the end of the thread."""

    def start(self) -> None:
        self._thread.start()

    def join(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        own, all_sources = select.poll(), select.poll()
        own.register(self._woken, select.POLLIN)
        all_sources.register(self._woken, select.POLLIN)
        all_sources.register(self.switchboard.descriptor, select.POLLIN)
        while self.running:
            try:
                self._read()
                self._sleeps = True  # set before the check: a call that the check misses wakes it
                if not self._calls:
                    (own if self._client_carries else all_sources).poll(CHECK_S * 1000)
                self._sleeps = False
                forget_wakes(self._woken)
                self.turn()
            except Exception as error:
                traceback.print_exc()
                self.failed(error)
        with contextlib.suppress(Exception):
            self.close()
        with self._lock:
            self.switchboard.close()
        self._woken.close()
        self._waker.close()

    def turn(self) -> None:
        """Handle all messages and calls; check limits last, after all messages were read."""
        self._read()
        while self._calls:
            while self._calls:
                self._calls.popleft()()
            self._read()
        self.check_limits()

    def _read(self) -> None:
        """Route the messages that have arrived; those for the hub are handled by `soon`."""
        with self._lock:
            while self.running and (received := self.switchboard.receive()) is not None:
                source, destination, payload = received
                if destination == HUB:
                    self.soon(partial(self.handle, source, payload))
                else:
                    self._route(source, destination, payload)

    def soon(self, call: Callable[[], None]) -> None:
        """Have the hub's thread call `call`; may be used from any thread."""
        self._calls.append(call)
        if self._sleeps:
            wake(self._waker)

    def local_line(self, name: str) -> LocalLine:
        """A line for a client in this process; only one thread may use it."""

        def to_hub(destination: str, payload: bytes) -> None:
            if destination == HUB:
                self.soon(partial(self.handle, name, payload))
                return
            with self._lock:
                self._route(name, destination, payload)
                self._read()

        line = self._local[name] = LocalLine(to_hub, self._carry)
        return line

    def _carry(self, line: LocalLine, wait_s: float | None) -> None:
        """Route messages in a client's thread until one may have arrived for the client."""
        if not self.is_alive():
            line.wait(wait_s)
            return
        self._client_carries = True
        try:
            self._read()
            if line.is_empty:
                line.wait(wait_s, self.switchboard.descriptor)
                self._read()
        finally:
            self._client_carries = False

    def send(self, destination: str, message: Any) -> None:
        """Send a message from the hub."""
        self.deliver(destination, HUB, pickle.dumps(message))

    def deliver(self, destination: str, source: str, payload: bytes) -> None:
        local = self._local.get(destination)
        if local is not None:
            local.put(payload, wakes=threading.current_thread() is self._thread)
            return
        with self._lock:
            self.switchboard.send(destination, source, payload)

    def _route(self, source: str, destination: str, payload: bytes) -> None:
        """Route a message that is not for the hub; the lock must be held."""
        if destination.startswith("world/"):
            name = destination.removeprefix("world/")
            for rank in range(self.world_size(name)):
                self.switchboard.send(f"rank/{name}/{rank}", source, payload)
        else:
            self.deliver(destination, source, payload)

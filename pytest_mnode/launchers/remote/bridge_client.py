"""The launcher's side of a run's bridge."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.cleanup.client import ENDED, CleanupDaemon
from pytest_mnode.launchers.remote.wire import BEAT_S, CHUNK_BYTES, SILENCE_S
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.socket_path import reachable

_SLACK_S = 5.0
_PEER = (socket.SOL_SOCKET, socket.SO_PEERCRED)


class BridgeClient:
    """A bridge, which its cleanup daemon holds. Thread-safe.

    on_event(event) is called from a thread of this object with what the bridge reports of itself,
    see remote.bridge; with {"ended": why} once the bridge has ended without being closed.
    """

    def __init__(self, path: str, on_event: Callable[[Mapping[str, Any]], None]) -> None:
        """path: of its socket."""
        self._path, self._on_event = path, on_event
        self._news = threading.Condition()
        self._up: str | None = None
        """Why the bridge did not start; "" if it did, None while that is not known."""
        self._opened: dict[str, str] = {}
        """Why a host's stream could not be opened, or "", by host."""
        self._why = ""
        self._closing = False
        self._events = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._daemon = CleanupDaemon(self._heard_daemon)
        self.start_daemon = self._daemon.start

    def start(
        self, argv: Sequence[str], limit_s: float, end_s: float, silence_s: float = SILENCE_S
    ) -> None:
        """Start the bridge, and wait until its socket is there. Raises ClusterError.

        silence_s: how long it may report nothing, not even a beat, before it is killed.
        """
        self._daemon.order(
            bridge="bridge", argv=list(argv), socket=self._path, within_s=limit_s, end_s=end_s
        )
        with self._news:
            self._news.wait_for(lambda: self._up is not None, limit_s + _SLACK_S)
            if why := "not up in time" if self._up is None else self._up:
                raise ClusterError(why)
        try:
            with reachable(self._path) as short:
                self._events.connect(short)
        except OSError as error:
            raise ClusterError(f"the bridge has ended: {self._why or error.strerror}") from None
        self.ask(events=True)
        listening = threading.Thread(
            target=self._listen, args=(silence_s,), name="mnode-bridge", daemon=True
        )
        listening.start()

    def ask(self, **order: object) -> None:
        """Send an order. Raises ClusterError if the bridge has ended."""
        try:
            self._events.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise ClusterError(f"the bridge has ended: {self._why or error.strerror}") from None

    def open(
        self, argvs: Mapping[str, Sequence[str]], within_s: float, limit_s: float
    ) -> dict[str, str]:
        """Open the streams to hosts by these commands, and wait; reasons of those that failed.

        within_s: limit of each from its own start. limit_s: of all.
        """
        with self._news:
            for host in argvs:
                self._opened.pop(host, None)
        for host, argv in argvs.items():
            self.ask(open=host, argv=list(argv), within_s=within_s)
        end = time.monotonic() + limit_s
        with self._news:
            while self._missing(argvs) and not self._why and time.monotonic() < end:
                self._news.wait(end - time.monotonic())
            late = self._why or "no connection in time"
            found = {host: self._opened.get(host, late) for host in argvs}
        return {host: why for host, why in found.items() if why}

    def _missing(self, hosts: Iterable[str]) -> bool:
        return any(host not in self._opened for host in hosts)

    def end(self, host: str, why: str) -> None:
        """Close a host's stream. why: what its commands are told."""
        with contextlib.suppress(ClusterError):  # all streams have ended
            self.ask(close=host, why=why)

    def close(self, remove: Sequence[str] = ()) -> None:
        """End the bridge, and remove these directories, but not those given to the daemon."""
        self._closing = True
        self._daemon.close(remove)
        self._events.close()

    def _listen(self, silence_s: float) -> None:
        """Until the end of the stream, of which the daemon tells the reason, or silence."""
        clock, poll, data = ListeningClock(), select.poll(), b""
        heard = clock.now()
        with contextlib.suppress(OSError, ValueError):
            poll.register(self._events, select.POLLIN)
            pid, _, _ = struct.unpack("3i", self._events.getsockopt(*_PEER, struct.calcsize("3i")))
            while clock.now() <= heard + silence_s:
                if not poll.poll(1000 * BEAT_S):
                    continue
                more = self._events.recv(CHUNK_BYTES)
                if not more:
                    return
                *lines, data = (data + more).split(b"\n")
                for line in lines:
                    self._heard(json.loads(line))
                heard = clock.now()
            self._ended(f"no sign of life for {silence_s:g} s")
            os.kill(pid, signal.SIGKILL)

    def _heard(self, event: Mapping[str, Any]) -> None:
        match event:
            case {"beat": _}:
                pass
            case {"left": text}:
                sys.stderr.write(f"mnode: {text}\n")
            case {"up": host}:
                self._note(host, "")
            case {"failed": host, "why": why}:
                self._note(host, why)
            case _:
                self._on_event(event)

    def _note(self, host: str, why: str) -> None:
        with self._news:
            self._opened[host] = why
            self._news.notify_all()

    def _heard_daemon(self, event: Mapping[str, Any] | None) -> None:
        match event:
            case {"ended": why}:
                self._ended(why)
            case None:
                self._started(ENDED)
                self._ended(ENDED)
            case {"up": _}:
                self._started("")
            case {"failed": why}:
                self._started(why)

    def _started(self, why: str) -> None:
        with self._news:
            self._up = self._up or why
            self._news.notify_all()

    def _ended(self, why: str) -> None:
        """Record the first reason, and report it once."""
        with self._news:
            known, self._why = self._why, self._why or why
            self._news.notify_all()
        if not known and not self._closing:
            self._on_event({"ended": why})

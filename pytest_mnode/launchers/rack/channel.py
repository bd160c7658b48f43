"""The controller's channel to a rack's first process, which the cleanup daemon starts."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import queue
import socket
import sys
import threading
from collections.abc import Callable

from pytest_mnode import processes
from pytest_mnode.errors import ClusterError, TimeLimitError
from pytest_mnode.launchers.cleanup.client import CleanupDaemon, packets
from pytest_mnode.launchers.rack.protocol import PACKET_BYTES, Booted, Lost, Reply, Request, Setup
from pytest_mnode.protocol.launcher_requests import LauncherRequest

REQUEST_LIMIT_S = 25.0
CLOSE_LIMIT_S = 5.0
_FIRST = "the rack's first process"


class RackChannel:
    """A channel to a rack that is starting or up. All methods may be called from any thread.

    on_event is called with every Booted and Lost from a thread of the channel, in order, and before
    the Reply that follows it is returned; with None once the rack has ended without `close`.
    cleanup_dirs: see Rack.
    """

    def __init__(
        self,
        setup: Setup,
        cleanup_dirs: tuple[str, ...],
        on_event: Callable[[Booted | Lost | None], None],
    ) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._ids = itertools.count(1)
        self._closing = False
        self._daemon = CleanupDaemon(lambda _: None)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.daemon_pid = self._daemon.start(cleanup_dirs, [theirs.fileno()])
            with contextlib.suppress(
                ClusterError, OSError
            ):  # dead already: `await_up` raises the reason
                self._channel.send(pickle.dumps(setup))
                self._daemon.order(rack=theirs.fileno(), path=sys.path)
        self._thread = threading.Thread(target=self._listen, name="rack-channel", daemon=True)
        self._thread.start()

    def await_up(self) -> int:
        """Pid of the rack's first process, once all nodes are up; raises ClusterError if not."""
        reply = self._await_reply(0, "rack: start")
        if reply.rack_pid is None:
            raise ClusterError(f"rack: cannot start: {reply.error or 'no reason given'}")
        return reply.rack_pid

    def ask(self, request: LauncherRequest, node: str) -> None:
        """Carry out a request on a node. Raises ClusterError with the reason, or TimeLimitError."""
        what = f"rack: cannot {request.does}"
        with self._lock:
            number = next(self._ids)
            try:
                self._channel.send(pickle.dumps(Request(number, request)))
            except OSError:
                why = f"{node}: the rack is down{self._daemon.last_words()}"
                raise ClusterError(f"{what}: {why}") from None
            reply = self._await_reply(number, f"{what}: {node}")
        if reply.error is not None:
            raise ClusterError(f"{what}: {reply.error}")

    def _await_reply(self, request_id: int, what: str) -> Reply:
        while True:
            try:
                reply = self._replies.get(timeout=REQUEST_LIMIT_S)
            except queue.Empty:
                raise TimeLimitError(
                    f"{what}: no answer in {REQUEST_LIMIT_S:g} s from {self._silent()}"
                    f"{self._daemon.last_words()}"
                ) from None
            if reply.id == request_id:
                return reply
            if reply.id < 0:
                self._replies.put(reply)  # for the next request
                raise ClusterError(f"{what}: the rack has ended{self._daemon.last_words()}")

    def last_words(self) -> str:
        """See CleanupDaemon."""
        return self._daemon.last_words()

    def _silent(self) -> str:
        """Who does not answer: the rack's first process, or the one that starts and watches it."""
        first = processes.children(self.daemon_pid)
        for name, pids in ("the cleanup process", [self.daemon_pid]), (_FIRST, first):
            if why := "".join(map(processes.why_silent, pids)):
                return f"{name}: {why}"
        return _FIRST

    def _listen(self) -> None:
        for data in packets(self._channel, PACKET_BYTES):
            packet = pickle.loads(data)
            if isinstance(packet, Reply):
                self._replies.put(packet)
            elif isinstance(packet, (Booted, Lost)):
                self._on_event(packet)
        if not self._closing:
            self._on_event(None)
        self._replies.put(Reply(-1))

    def close(self) -> None:
        """End the rack and wait until nothing of it is left; must be called once."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._daemon.close()
        finally:
            self._thread.join(CLOSE_LIMIT_S)
            self._channel.close()

"""The controller's end of the line to the keeper: starts it, asks it, hears of losses, ends it."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from pytest_mnode.errors import ClusterError, TimeLimitError
from pytest_mnode.launchers.rack.protocol import (
    PACKET_BYTES,
    Booted,
    Lost,
    Reply,
    Request,
    Setup,
)
from pytest_mnode.protocol.launcher_requests import LauncherRequest

REQUEST_LIMIT_S = 25.0
CLOSE_LIMIT_S = 5.0


class Line:
    """A running keeper. All methods may be called from any thread.

    on_event is called with every Booted and Lost from the line's own thread, in order and before
    the Reply that belongs to it is handed out; with None once the keeper is gone unasked.
    """

    def __init__(self, setup: Setup, on_event: Callable[[Booted | Lost | None], None]) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._ids = itertools.count(1)
        self._closing = False
        # An unread pipe could block the keeper, an inherited stream would outlast us.
        self._complaints = os.memfd_create("rack-keeper")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "pytest_mnode.launchers.rack.keeper",
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                pass_fds=[theirs.fileno()],
                # A Ctrl-C in the terminal is for the controller to act on.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        with contextlib.suppress(OSError):  # dead already: `await_up` tells its last words
            self._channel.send(pickle.dumps(setup))
        self._thread = threading.Thread(target=self._listen, name="rack-line", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The keeper's."""
        return self._process.pid

    def await_up(self) -> int:
        """Pid of the rack's first process, once all nodes are up; raises ClusterError if not."""
        reply = self._await_reply(0, "rack: start")
        if reply.rack_pid is None:
            raise ClusterError(f"rack: cannot start: {reply.error or 'no reason given'}")
        return reply.rack_pid

    def ask(self, request: LauncherRequest, node: str) -> None:
        """Have it done on this node. Raises ClusterError that says why not, or TimeLimitError."""
        what = f"rack: cannot {request.does}"
        with self._lock:
            number = next(self._ids)
            try:
                self._channel.send(pickle.dumps(Request(number, request)))
            except OSError:
                why = f"{node}: the rack is down{self._last_words()}"
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
                    f"{what}: no answer in {REQUEST_LIMIT_S:g} s from the keeper"
                    f" (pid {self._process.pid}){self._last_words()}"
                ) from None
            if reply.id == request_id:
                return reply
            if reply.id < 0:
                self._replies.put(reply)  # for whoever asks next
                raise ClusterError(f"{what}: the keeper is gone{self._last_words()}")

    def _listen(self) -> None:
        while True:
            try:
                data = self._channel.recv(PACKET_BYTES)
            except OSError:
                data = b""
            if not data:
                break
            packet = pickle.loads(data)
            if isinstance(packet, Reply):
                self._replies.put(packet)
            elif isinstance(packet, (Booted, Lost)):
                self._on_event(packet)
        if not self._closing:
            self._on_event(None)
        self._replies.put(Reply(-1))

    def _last_words(self) -> str:
        text = os.pread(self._complaints, 1 << 16, 0).decode(errors="replace").strip()
        return f": {text.splitlines()[-1]}" if text else ""

    def close(self) -> None:
        """End the rack and wait until nothing of it is left; must be called once."""
        self._closing = True
        self._process.terminate()
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            try:
                self._process.wait(CLOSE_LIMIT_S)
            except subprocess.TimeoutExpired:
                raise TimeLimitError(
                    f"rack: keeper (pid {self._process.pid}) still there"
                    f" {CLOSE_LIMIT_S:g} s after SIGKILL"
                ) from None
        finally:
            self._thread.join(CLOSE_LIMIT_S)
            self._channel.close()
            os.close(self._complaints)

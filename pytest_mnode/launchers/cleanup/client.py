"""The controller's side of the cleanup daemon."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_mnode.errors import ClusterError, TimeLimitError
from pytest_mnode.launchers.cleanup import daemon
from pytest_mnode.launchers.cleanup.daemon import PACKET_BYTES

ENDED = "the cleanup process of the run has ended"
_SEND_S = 10
"""Longest wait of an order for a daemon that reads none, such as one that was stopped; in whole
seconds."""
_CLOSE_S = 12.0
_KILL_S = 5.0
_ENDS_S = 0.5
"""Time from the end of its channel, or of what it started, to its own."""


class CleanupDaemon:
    """The daemon of one launcher; thread-safe.

    on_event(event) is called from a thread of this object with each event, and with None once the
    daemon has ended without being closed.
    """

    def __init__(self, on_event: Callable[[Mapping[str, Any] | None], None]) -> None:
        self._on_event = on_event
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = False

    def start(self, remove: Sequence[str], pass_fds: Sequence[int] = ()) -> int:
        """Start it; its pid. remove: directories to remove if this process ends without `close`."""
        # A pipe that nobody reads could block it; an inherited stream would outlast this process.
        self._errors = os.memfd_create("mnode-cleanup")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Not `settimeout`, which would hold for the listener's reading too.
        limit = struct.pack("@ll", _SEND_S, 0)
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        with theirs:
            python = [sys.executable, "-S", "-E", "-s", str(Path(daemon.__file__))]
            self._process = subprocess.Popen(
                [*python, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno(), *pass_fds],
                start_new_session=True,  # Ctrl-C in the terminal is for the controller alone
            )
        with contextlib.suppress(ClusterError):  # if it has ended already, the next order raises
            self.order(remove=list(remove))
        self._listener = threading.Thread(target=self._listen, name="mnode-cleanup", daemon=True)
        self._listener.start()
        return self._process.pid

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def order(self, **order: object) -> None:
        """Send an order; see Daemon.obey. Raises ClusterError if the daemon has ended, or hangs."""
        try:
            self._channel.send(json.dumps(order).encode())
        except BlockingIOError:
            why = f"has read no order for {_SEND_S} s; was it stopped?"
            raise ClusterError(f"the cleanup process of the run (pid {self.pid}) {why}") from None
        except OSError:
            raise ClusterError(f"{ENDED}{self.last_words()}") from None

    def last_words(self) -> str:
        """The last line of its errors, or the signal that ended it, after a colon; else ""."""
        text = os.pread(self._errors, 1 << 16, 0).decode(errors="replace").strip()
        if text:
            return f": {text.splitlines()[-1]}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process is not None and (code := self._process.wait(_ENDS_S)) < 0:
                return f": cleanup process killed by {signal.Signals(-code).name}"
        return ""

    def close(self, remove: Sequence[str] = ()) -> None:
        """End all tasks and remove these directories, but not those given to `start`."""
        process = self._process
        if process is None or self._closing:
            return
        self._closing = True
        with contextlib.suppress(ClusterError, OSError):
            self.order(close=list(remove))
            self._channel.shutdown(socket.SHUT_WR)
        try:
            _wait(process)
        finally:
            self._listener.join(_KILL_S)
            self._channel.close()
            os.close(self._errors)

    def _listen(self) -> None:
        for data in packets(self._channel, PACKET_BYTES):
            self._on_event(json.loads(data))
        if not self._closing:
            self._on_event(None)


def packets(channel: socket.socket, most_bytes: int) -> Iterator[bytes]:
    """Packets that a packet socket receives, until either end closes it."""
    with contextlib.suppress(OSError):
        while data := channel.recv(most_bytes):
            yield data


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            raise TimeLimitError(
                f"cleanup process (pid {process.pid}) still runs {_KILL_S:g} s after SIGKILL"
            ) from None

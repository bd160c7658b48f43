"""A command that the bridge runs. The bridge is the run's only program with access to its nodes.

The bridge gets the command and three pipes over its socket, as ssh passes its standard streams to
the master of a connection. Only the standard library: remote_proxy runs without site-packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Sequence

_LOST = 255


class Bridged:
    """The part of subprocess.Popen that remote_proxy uses. The command ends with its connection,
    and so with this process."""

    def __init__(self, path: str, host: str, argv: Sequence[str]) -> None:
        (stdin, to_it), (from_it, stdout), (errors, stderr) = (os.pipe() for _ in range(3))
        self.stdin, self.stdout = os.fdopen(to_it, "wb", 0), os.fdopen(from_it, "rb", 0)
        self.stderr = os.fdopen(errors, "rb", 0)
        self._answer = b""
        self._bridge = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bridge.connect(path)
            order = json.dumps({"exec": host, "argv": argv}).encode() + b"\n"
            socket.send_fds(self._bridge, [order], [stdin, stdout, stderr])
        except OSError as error:
            os.write(
                stderr, f"the run's connection to its nodes has ended: {error.strerror}".encode()
            )
        for fd in (stdin, stdout, stderr):
            os.close(fd)

    def wait(self, timeout: float) -> int:
        """The command's exit status; 255 if it was not run, or if the connection was lost."""
        self._bridge.settimeout(timeout)
        try:
            while data := self._bridge.recv(4096):
                self._answer += data
        except TimeoutError:
            raise subprocess.TimeoutExpired("a bridge's command", timeout) from None
        except OSError:  # the bridge has ended
            pass
        return int(self._answer or _LOST)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._bridge.close()

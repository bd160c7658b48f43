"""Power switch for nodes of a rack, used by a controller that itself runs on a node of the rack.

A spec's `power` commands run this file: `switch.py SOCKET off|on NODE`. It imports nothing of the
package, so that it starts within milliseconds.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

_LIMIT_S = 30.0


class Switch:
    """Listens on a socket in `directory`; runs `act("off" or "on", node name)` in its thread."""

    def __init__(self, directory: Path, act: Callable[[str, str], None]) -> None:
        self.path = directory / "power"
        self._act = act
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self._socket.listen()
        threading.Thread(target=self._serve, name="power", daemon=True).start()

    def command(self, what: str) -> str:
        """The spec's command line, with a placeholder for the node's name."""
        return f"{sys.executable} -S -E -s {Path(__file__)} {self.path} {what} {{node}}"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                what, _, node = connection.recv(1024).decode().partition(" ")
                try:
                    self._act(what, node)
                except Exception as error:
                    connection.sendall(f"{type(error).__name__}: {error}".encode())
                else:
                    connection.sendall(b"done")

    def close(self) -> None:
        # Closing a socket does not wake a thread that waits for it in accept().
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.path.unlink(missing_ok=True)


def main() -> None:
    path, what, node = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(_LIMIT_S)
        line.connect(path)
        line.sendall(f"{what} {node}".encode())
        answer = line.recv(4096).decode()
    if answer != "done":
        sys.exit(answer or "no answer")


if __name__ == "__main__":
    main()

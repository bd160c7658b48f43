"""Messages between the processes of a node, over a socket pair, with descriptors if needed."""

from __future__ import annotations

import os
import pickle
import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

_HEADER_BYTES = 4
_CHUNK_BYTES = 1 << 16
_MOST_FDS = 16


class Pipe:
    """One end of a socket pair. A writer that stops in mid-message never blocks the reader."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._data = bytearray()
        self.fds: deque[int] = deque()
        """Received descriptors that were not taken yet, in order of arrival."""

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        one, other = socket.socketpair()
        return cls(one), cls(other)

    @classmethod
    def from_fd(cls, fd: int) -> Self:
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message; blocks while the socket buffer is full."""
        self.send_bytes(pickle.dumps(message), fds)

    def send_bytes(self, payload: bytes, fds: Sequence[int] = ()) -> None:
        data = self.framed(payload)
        if fds:
            data = data[socket.send_fds(self._end, [data], fds) :]
        self._end.sendall(data)

    @staticmethod
    def framed(payload: bytes) -> bytes:
        """The bytes of a message in the stream."""
        return len(payload).to_bytes(_HEADER_BYTES, "big") + payload

    def has_room(self) -> bool:
        """Whether a short message can be sent at once."""
        return bool(select.select([], [self._end], [], 0)[1])

    def receive(self) -> list[bytes]:
        """Wait for bytes and return the messages that they complete, if any.

        Raises EOFError at the end of the stream.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self._end, _CHUNK_BYTES, _MOST_FDS)
        except ConnectionError:
            data, fds = b"", []
        if not data:
            raise EOFError
        for fd in fds:
            os.set_inheritable(fd, False)
            self.fds.append(fd)
        self._data += data
        found = []
        while (whole := self._whole()) is not None:
            found.append(whole)
        return found

    def _whole(self) -> bytes | None:
        end = _HEADER_BYTES + int.from_bytes(self._data[:_HEADER_BYTES], "big")
        if len(self._data) < max(end, _HEADER_BYTES):
            return None
        whole = bytes(self._data[_HEADER_BYTES:end])
        del self._data[:end]
        return whole

    def close(self) -> None:
        self._end.close()
        while self.fds:
            os.close(self.fds.popleft())

"""Frames between remote_proxy and remote_exec, and the heartbeats that show a lost connection.

Only the standard library: the text of this file is sent to nodes with remote_exec's.
"""

from __future__ import annotations

HELLO = b"\0mnode remote exec 1\n"
"""Precedes all frames, and follows any output of a login shell."""
ORDER, DATA, END, SIGNAL, BEAT, OUT, ERR, TAKEN, EXIT = (bytes([c]) for c in b"ODESBoetX")
"""Kinds of frames; capitals except EXIT go to the node, BEAT goes both ways. TAKEN reports how many
bytes of its input the command has read, so that the proxy sends at most ROOM_BYTES ahead."""
BEAT_S = 1.0
SILENCE_S = 6.0
"""Unless --mnode-silence-limit says otherwise; longer than a busy machine delays a process."""
ROOM_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """A frame's bytes: one letter, the payload's length in four bytes, the payload."""
    return kind + len(payload).to_bytes(4, "big") + payload


class Frames:
    """Parser that finds whole frames in a stream of bytes."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The frames that these bytes complete, as (kind, payload)."""
        self._data += data
        found = []
        while len(self._data) >= 5:
            end = 5 + int.from_bytes(self._data[1:5], "big")
            if len(self._data) < end:
                break
            found.append((bytes(self._data[:1]), bytes(self._data[5:end])))
            del self._data[:end]
        return found

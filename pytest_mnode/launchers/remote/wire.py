"""Frames between remote_proxy and remote_exec, and how they notice that the other is gone.

Only the standard library: the text of this file is sent to nodes with remote_exec's.
"""

from __future__ import annotations

HELLO = b"\0mnode remote exec 1\n"
"""Comes before all frames, after whatever a login shell prints."""
ORDER, DATA, END, SIGNAL, BEAT, OUT, ERR, TAKEN, EXIT = (bytes([c]) for c in b"ODESBoetX")
"""Kinds of frames; capitals but EXIT go to the node. TAKEN says how many bytes of its input the
command has taken, so that the proxy sends no more than ROOM_BYTES ahead."""
BEAT_S = 1.0
SILENCE_S = 6.0
"""Longer than a process waits for its turn on a busy machine."""
ROOM_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One letter, the length in four bytes, the payload."""
    return kind + len(payload).to_bytes(4, "big") + payload


class Frames:
    """Whole frames, out of bytes as they come."""

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

"""Frames between a node's program (remote_exec) and the other end of its stream.

Only the standard library: the text of this file is sent to nodes with remote_exec's.
"""

from __future__ import annotations

HELLO = b"\0mnode remote exec 2\n"
"""Precedes all frames, and follows any output of a login shell."""
ORDER, DATA, END, SIGNAL, HANG_UP = (bytes([c]) for c in b"ODESH")
"""Kinds of frames to a node. END: of a command's input. HANG_UP: nobody waits for the command any
more, so it ends; with number 0, so do all, and the node's program."""
OUT, ERR, EXIT, NAMES = (bytes([c]) for c in b"oeXn")
"""Kinds of frames from a node. NAMES: of the node, as JSON, where it dials in."""
BEAT, TAKEN = (bytes([c]) for c in b"Bt")
"""Kinds of frames both ways. TAKEN: how many bytes of a command's input or output have been read;
no end sends more than ROOM_BYTES ahead of it."""
BEAT_S = 1.0
SILENCE_S = 6.0
"""Unless --mnode-silence-limit says otherwise; longer than a busy machine delays a process."""
ALIVE = ""
"""Path on the node of a file that is touched while bytes arrive; "" for none."""
UNUSABLE = 73
"""Exit status of a node's program that cannot serve; the last line that it prints says why."""
ROOM_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
_HEAD_BYTES = 9


def frame(kind: bytes, number: int = 0, payload: bytes = b"") -> bytes:
    """A frame's bytes: one letter, the command's number and the payload's length in four bytes
    each, and the payload."""
    return kind + number.to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload


def taken(number: int, count: int) -> bytes:
    """The frame TAKEN of a command for `count` bytes."""
    return frame(TAKEN, number, count.to_bytes(4, "big"))


class Frames:
    """Parser that finds whole frames in a stream of bytes."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, int, bytes]]:
        """The frames that these bytes complete, as (kind, number, payload)."""
        self._data += data
        found = []
        while len(self._data) >= _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(self._data[5:_HEAD_BYTES], "big")
            if len(self._data) < end:
                break
            number = int.from_bytes(self._data[1:5], "big")
            found.append((bytes(self._data[:1]), number, bytes(self._data[_HEAD_BYTES:end])))
            del self._data[:end]
        return found

"""Where a rank is, in a file mapped into memory: what it wrote last survives however it ends."""

from __future__ import annotations

import mmap
from pathlib import Path

from pytest_mnode.protocol.messages import Progress

_PLACE_BYTES = 64
_SIZE_BYTES = 4096


class Mark:
    """The writing end, shared by a rank and the children it forks.

    Mapped, and not a descriptor: a test may close all there are.
    """

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_SIZE_BYTES)
            self._map = mmap.mmap(file.fileno(), _SIZE_BYTES)

    def place(self, ordinal: int, phase: str) -> None:
        self._map[:_PLACE_BYTES] = f"{ordinal} {phase}".encode().ljust(_PLACE_BYTES, b"\0")

    def stray(self, text: str) -> None:
        """Kept for the rank itself: what a child that it forked did in its name."""
        room = _SIZE_BYTES - _PLACE_BYTES
        data = text.encode(errors="replace")[:room]
        self._map[_PLACE_BYTES:] = data.ljust(room, b"\0")

    def take_stray(self) -> str:
        """What a forked child left here, "" for nothing; cleared."""
        text = _text(self._map[_PLACE_BYTES:])
        if text:
            self.stray("")
        return text


def read_progress(path: Path) -> Progress:
    """What a rank wrote last; nothing known where there is no such file or it is not ours."""
    try:
        words = _text(path.read_bytes()[:_PLACE_BYTES]).split()
        return Progress(int(words[0]), words[1]) if words else Progress()
    except (OSError, ValueError, IndexError):
        return Progress()


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")

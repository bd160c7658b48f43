"""Forwards the output of a node's ranks, line by line, while they run."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pytest_mnode.protocol.messages import LiveOutput, WorldInfo
from pytest_mnode.protocol.rank_files import RankFiles

_CHUNK_BYTES = 1 << 16
TURN_S = 0.1
"""Interval between reads of the files; a pipe would make ranks wait for a slow reader."""


@dataclass(slots=True)
class _Followed:
    fd: int
    offset: int = 0
    rest: bytes = b""
    """The beginning of a line that is not complete yet."""

    def lines(self, last: bool) -> list[str]:
        data = self.rest
        while chunk := os.pread(self.fd, _CHUNK_BYTES, self.offset):
            self.offset += len(chunk)
            data += chunk
        whole, newline, rest = data.rpartition(b"\n")
        if last or len(rest) > _CHUNK_BYTES:
            whole, newline, rest = data, b"\n" if data else b"", b""
        self.rest = rest
        return [_as_shown(line) for line in whole.split(b"\n")] if newline else []


def _as_shown(line: bytes) -> str:
    """The final text of a line that a progress bar may have overwritten with carriage returns."""
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]


class LiveFiles:
    """The output files of the ranks of a node's part of a world, if output is shown live."""

    def __init__(self, world: WorldInfo) -> None:
        self._world = world
        self._files: dict[int, _Followed] = {}

    def __bool__(self) -> bool:
        return bool(self._files)

    def follow(self, rank: int) -> None:
        """Read this rank's file from now on, if it exists."""
        path = RankFiles(self._world, rank).live
        if path.exists():
            self._files[rank] = _Followed(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def news(self, dead: int | None = None) -> LiveOutput | None:
        """Lines printed since the last call; of rank `dead` also its incomplete last line."""
        found = {rank: of.lines(rank == dead) for rank, of in self._files.items()}
        lines = {rank: its_lines for rank, its_lines in found.items() if its_lines}
        return LiveOutput(self._world.id, lines) if lines else None

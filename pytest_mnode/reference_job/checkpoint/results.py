"""What `Store` says of the checkpoints that it saved, loaded and refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN = "own_by_rank"
"""The key of a saved state under which each rank keeps its private part."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that was not used, and why, in one line.

    usable: it is whole, and may be used by a job of its world size, or once all ranks see it.
    """

    step: int
    path: Path
    reason: str
    usable: bool = False

    def __str__(self) -> str:
        return f"{self.path.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete checkpoint, the same on all ranks.

    bytes: of all files of all ranks. seconds: of the slowest rank. notes: what failed afterwards
    and does not matter to this checkpoint, such as the removal of an old one.
    """

    step: int
    path: Path
    bytes: int
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The checkpoint that all ranks loaded.

    saved_at: seconds since the epoch. world_size: of the ranks that saved it. refused: newer ones.
    own: what this rank gave as its own when it was saved; None where it gave nothing, or the world
    has another size now.
    """

    step: int
    path: Path
    saved_at: float
    world_size: int
    refused: tuple[Refused, ...]
    own: Any = None

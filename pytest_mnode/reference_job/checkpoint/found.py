"""What is said of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_mnode.reference_job.checkpoint.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint, or what is left of one, as one process sees it.

    reason: why it may not be used, in one line; None where it is complete. fingerprint: SHA-256
    of its manifest, equal for equal checkpoints.
    """

    path: Path
    step: int
    reason: str | None
    manifest: Manifest | None = field(default=None, repr=False)
    fingerprint: str | None = field(default=None, repr=False)

    @property
    def complete(self) -> bool:
        return self.reason is None


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
    """A checkpoint that is complete, the same on all ranks.

    bytes: of all files of all ranks. seconds: of the rank that it took longest. notes: what went
    wrong afterwards and does not matter to it, such as an old one that cannot be removed.
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
    bytes: int
    seconds: float
    own: Any = None

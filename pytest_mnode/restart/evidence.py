"""What was done to a run and what was seen of it, as the judge is told. Values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Shelf:
    """What was in the store after the kill and before anything was loaded, newest first.

    complete: steps of the checkpoints that are complete. unfinished: steps of those that are not,
    with the reason.
    """

    complete: tuple[int, ...]
    unfinished: tuple[tuple[int, str], ...] = ()

    @property
    def newest(self) -> int:
        """The newest complete one; 0 where there is none: then to begin anew loses nothing."""
        return max(self.complete, default=0)


@dataclass(frozen=True, slots=True)
class Struck:
    """One kill, and what came of it.

    what: in words, such as "SIGKILL of rank 1 on node1". at: wall clock, s; clock: whose.
    culprit: what a reader should look at where the job does not come back.
    shelf: None where the store could not be read then. alive: "pid on node" of processes of the
    killed life that ran after it was to be gone; None where that could not be found out.
    came_back: whether the job ended well. refused_exit: how it ended otherwise.
    gently: it was told to end, and may lose nothing. in_writing: it was to be struck in the middle
    of writing the checkpoint of this step.
    late: nodes on which it had to be killed when the time to save was over.
    """

    what: str
    at: float
    clock: str
    shelf: Shelf | None
    alive: Sequence[str] | None
    came_back: bool
    ended_how: str = ""
    gently: bool = False
    in_writing: int | None = None
    late: Sequence[str] = ()
    notes: Sequence[str] = field(default_factory=tuple)

"""What was done to a run and what was seen of it, as the judge is told. Values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    killed: which life it ended, from 0. lives: how many there were when the next kill struck;
    None: it was the last kill of the run.
    shelf: None where the store could not be seen between the kill and the next life.
    alive: "pid on node" of processes of the killed life that ran when the next one trained; None
    where that could not be found out.
    came_back: whether it trained again, and after the last kill to its end; None where that could
    not be seen; ended_how: else, or why.
    gently: it was told to end, and may lose nothing; late: nodes on which it had to be killed when
    the time to save was over. in_writing: it was struck while the checkpoint of this step was
    written, or meant to be.
    missed: why there was no kill; then nothing else counts.
    between_s: how long after the kill, at the least and at the most, all ranks had done a step
    again, by the controller's monotonic clock; None where it did not see that.
    """

    what: str
    at: float
    clock: str
    killed: int = 0
    lives: int | None = None
    shelf: Shelf | None = None
    alive: Sequence[str] | None = None
    came_back: bool | None = False
    ended_how: str = ""
    gently: bool = False
    late: Sequence[str] = ()
    in_writing: int | None = None
    notes: Sequence[str] = ()
    missed: str = ""
    between_s: tuple[float, float] | None = None

"""What an engine is: five functions by which one scheduler is asked, and the values they speak in.

Everything else of the experiment is the same for all schedulers. A gang of one is a plain job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pytest_mnode.errors import ClusterError


class Refused(ClusterError):
    """The scheduler does not take a job; the text is what it said."""


class Phase(StrEnum):
    """What a job does with nodes, whatever its scheduler calls it."""

    WAITING = "waiting"
    """It has none."""
    HOLDING = "holding"
    """They are its own."""
    ENDING = "ending"
    """It is being taken down, and may have some still."""
    OVER = "over"
    """It has none and will have none."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A gang to be submitted: ranks on `nodes` nodes, one a node, that send heartbeats.

    name: for people, such as "A". runs_s: how long each rank runs, then it ends by itself.
    limit_s: the time limit told to the scheduler. among: the only nodes it may get; (): any.
    requeue: whether it starts again when it lost a node.
    """

    name: str
    nodes: int
    runs_s: float
    limit_s: float
    among: tuple[str, ...] = ()
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A job as its scheduler shows it at one moment.

    nodes: those it holds, one entry for each place that it has there; of one that waits none.
    said: the scheduler's own words for its state and the reason. life: how often it was restarted.
    failed: it is over, and by these words that is a failure; not where somebody ended it.
    barred: it waits, and not for nodes: a limit of its user keeps it, or a date, or a licence.
    """

    job: str
    phase: Phase
    nodes: tuple[str, ...] = ()
    said: str = ""
    life: int = 0
    failed: bool = False
    barred: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """A rank was running: it says so itself.

    life: which start of its job it belongs to, from 0. at_s: by the clock of its node, seconds
    since 1970. what: "beat"; "end", its time is over; "told", it was told to end.
    """

    job: str
    life: int
    rank: int
    node: str
    at_s: float
    what: str = "beat"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the scheduler and at the heartbeats.

    asked_s, answered_s: what is shown was so at some moment in between, by the controller's clock.
    records: all jobs of this run that it knows, by id; None where it did not answer.
    beats: those that came since the look before. unreadable: lines that were no heartbeat.
    why: it did not answer.
    """

    asked_s: float
    answered_s: float
    records: Mapping[str, Record] | None
    beats: tuple[Beat, ...] = ()
    unreadable: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Nodes that jobs of this run can get, by name. free: those on which nobody has anything."""

    nodes: tuple[str, ...]
    free: tuple[str, ...]


class Engine(Protocol):
    """A scheduler. Every function has a limit of time, and raises ClusterError at it."""

    name: str
    """For messages: "slurm"."""

    def capacity(self) -> Capacity:
        """The nodes there are now. Raises ClusterError."""

    def others(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Of these nodes those that somebody else uses, or has taken out of use, or that do not
        answer, and who or why, in the scheduler's words. Raises ClusterError."""

    def submit(self, ask: Ask) -> tuple[str, ...]:
        """Submit a gang; ids of the jobs it is made of, one where the scheduler knows gangs.

        Each rank gets a node to itself. Raises Refused, ClusterError.
        """

    def observe(self) -> Look:
        """Look at all jobs of this run, also at those that nobody was told the id of. Never
        raises: a scheduler that does not answer is a look that says why."""

    def cancel(self, jobs: Sequence[str]) -> None:
        """Have these end, whether they run or wait; what is over already is no error."""

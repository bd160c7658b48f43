"""The protocol of an engine, which stands for one scheduler, and the values it takes and returns.

The rest of the experiment is the same for all schedulers. A gang of one node is a plain job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pytest_mnode.errors import ClusterError


class Refused(ClusterError):
    """The scheduler rejected a job; the text is its message."""


class Phase(StrEnum):
    """What a job does with nodes, in every scheduler."""

    WAITING = "waiting"
    """It has no node."""
    HOLDING = "holding"
    """It has its nodes."""
    ENDING = "ending"
    """It is being taken down, and may still have some."""
    OVER = "over"
    """It has no node and will get none."""


@dataclass(frozen=True, slots=True)
class GangRequest:
    """A gang to submit: one rank on each of `nodes` nodes; ranks write heartbeats.

    name: for people, such as "A". runs_s: how long each rank runs before it ends by itself.
    limit_s: the job's time limit. among: the only nodes it may get; (): any.
    requeue: whether the scheduler starts it again after it lost a node.
    """

    name: str
    nodes: int
    runs_s: float
    limit_s: float
    among: tuple[str, ...] = ()
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as its scheduler shows it at one moment.

    nodes: those it holds, one entry for each place it has there; () while it waits.
    status: the scheduler's own words for its state and the reason. restarts: how often it was
    restarted. failed: it is over and failed, as the scheduler says; not where it was cancelled.
    blocked: it waits for something else than nodes: a limit of its user, a date, a licence.
    """

    job: str
    phase: Phase
    nodes: tuple[str, ...] = ()
    status: str = ""
    restarts: int = 0
    failed: bool = False
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A line that a rank wrote while it ran.

    restarts: of its job, when the rank was started. at_s: seconds since 1970, by its node's clock.
    what: "beat"; "end" where its time is over; "sigterm" where it got that.
    """

    job: str
    restarts: int
    rank: int
    node: str
    at_s: float
    what: str = "beat"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the scheduler and at the heartbeats.

    asked_s, answered_s: the records were so at some moment in between, by the controller's clock.
    records: all jobs of this run by id; None where the scheduler did not answer, and `why` says so.
    beats: heartbeats since the look before. unreadable: lines that were no heartbeat. passed: what
    the scheduler reported by itself between the look before and this one, where it does that; no
    heartbeats are read with these. reported: it is one of them. complete: no job had a node between
    the last answer and this one but as `passed` says.
    """

    asked_s: float
    answered_s: float
    records: Mapping[str, JobRecord] | None
    beats: tuple[Heartbeat, ...] = ()
    unreadable: int = 0
    why: str = ""
    passed: tuple[Look, ...] = ()
    reported: bool = False
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """Names of the nodes that jobs of this run can get. free: those that nobody uses."""

    nodes: tuple[str, ...]
    free: tuple[str, ...]


class Engine(Protocol):
    """A scheduler. Every method has a time limit, and raises ClusterError at it."""

    name: str
    """For messages, such as "slurm" or "kubernetes, kueue"."""

    def capacity(self) -> Capacity:
        """The nodes there are now. Raises ClusterError."""

    def others(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Which of these nodes somebody else uses or took out of use, or are away; with who or why,
        in the scheduler's words. Raises ClusterError."""

    def submit(self, request: GangRequest) -> tuple[str, ...]:
        """Submit a gang; ids of its jobs, one where the scheduler knows gangs.

        Each rank gets a node to itself. Raises Refused, ClusterError.
        """

    def observe(self) -> Look:
        """Look at all jobs of this run, also at one whose submission was not answered. Never
        raises: a scheduler that does not answer is a look with the reason."""

    def cancel(self, jobs: Sequence[str]) -> None:
        """End these jobs, running or waiting; one that is over is no error."""

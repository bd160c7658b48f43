"""The protocol of an engine, the adapter of one scheduler, and the values it takes and returns.

The rest of an experiment is the same for all schedulers. A gang of one node is a plain job.
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
    """State of a job with respect to nodes, common to all schedulers."""

    WAITING = "waiting"
    """It has no node."""
    HOLDING = "holding"
    """It has its nodes."""
    ENDING = "ending"
    """It is being terminated, and may still have some nodes."""
    OVER = "over"
    """It has no node and will get none."""


@dataclass(frozen=True, slots=True)
class GangRequest:
    """A gang to submit: one rank on each of `nodes` nodes; ranks write heartbeats.

    name: for people, such as "A". runs_s: seconds after which each rank ends by itself. limit_s:
    the job's time limit. among: the only nodes it may get; () for any. requeue: whether the
    scheduler starts it again after it lost a node.
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

    nodes: nodes that it holds, one entry per slot; () while it waits. status: the scheduler's own
    words for its state and the reason. restarts: number of restarts. failed: whether the scheduler
    reports it as failed; False if it was cancelled. blocked: whether it waits for something other
    than nodes: a QOS limit, a begin time or a licence.
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

    restarts: the job's restarts when the rank was started. at_s: seconds since 1970, by its node's
    clock. what: "beat"; "end" if its time is over; "sigterm" if it received SIGTERM or SIGINT.
    """

    job: str
    restarts: int
    rank: int
    node: str
    at_s: float
    what: str = "beat"


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation of the scheduler and of the heartbeats.

    requested_s, answered_s: the records were true at some moment in between, by the controller's
    clock. records: all jobs of this run by id; None if the scheduler did not answer, with the
    reason in `why`. beats: heartbeats since the previous observation. unreadable: number of lines
    that are no heartbeats. reported_changes: changes that the scheduler reported by itself since
    the previous observation, if it does that; these have no heartbeats. reported: whether this
    observation is one of those. complete: whether `reported_changes` has all changes since the
    previous answer.
    """

    requested_s: float
    answered_s: float
    records: Mapping[str, JobRecord] | None
    beats: tuple[Heartbeat, ...] = ()
    unreadable: int = 0
    why: str = ""
    reported_changes: tuple[Observation, ...] = ()
    reported: bool = False
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """Names of the nodes that jobs of this run can get. free: those that no job uses."""

    nodes: tuple[str, ...]
    free: tuple[str, ...]


class Engine(Protocol):
    """Adapter of a scheduler. Every method has a time limit, and raises ClusterError at it."""

    name: str
    """Name for messages, such as "slurm" or "kubernetes, kueue"."""

    def capacity(self) -> Capacity:
        """The present nodes. Raises ClusterError."""

    def others(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Those of these nodes that others use or that are out of service, with the user or the
        reason in the scheduler's words. Raises ClusterError."""

    def submit(self, request: GangRequest) -> tuple[str, ...]:
        """Submit a gang. Returns the ids of its jobs: one if the scheduler supports gangs.

        Each rank has a node of its own. Raises Refused, ClusterError.
        """

    def observe(self) -> Observation:
        """Observe all jobs of this run, including one whose submission was not answered. Never
        raises: if the scheduler does not answer, the observation has the reason."""

    def cancel(self, jobs: Sequence[str]) -> None:
        """End these jobs, running or waiting. A job that is over is no error."""

    def close(self) -> None:
        """End all jobs of the engine."""

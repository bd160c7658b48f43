"""What the queue says of a job, from one look to the next. Pure.

Names of states and reasons are Slurm's own (squeue(1), JOB STATE CODES and JOB REASON CODES).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_mnode.launchers.slurm import JobState

_HELD = frozenset(("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
_NEVER = frozenset(
    (
        *("JobHeldAdmin", "JobHeldUser", "launch failed requeued held", "BadConstraints"),
        *("PartitionNodeLimit", "PartitionTimeLimit", "AccountNotAllowed", "QOSNotAllowed"),
        *("InvalidAccount", "InvalidQOS", "DependencyNeverSatisfied", "PartitionInactive"),
        *("user env retrieval failed requeued held", "job requeued in held state"),
    )
)
"""Reasons to wait that do not pass by waiting."""
_TOO_MUCH = re.compile(r"(QOS|Assoc)Max\w+PerJob(Limit)?")
"""It asks for more than a job may have, whoever else runs: of nodes, time and the like."""


@dataclass(frozen=True, slots=True)
class Course:
    """A job so far: how often it was seen to start, its nodes then, and which start it is at."""

    starts: int = 0
    nodes: tuple[str, ...] = ()
    requeue: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened between two looks: "requeued", or "started" on these nodes."""

    what: Literal["requeued", "started"]
    requeue: int
    nodes: tuple[str, ...] = ()


def changes(course: Course, state: JobState) -> tuple[Course, list[Change]]:
    """What happened since, in order. Of starts that came and went between two looks only the last
    is seen, and that once the job is over."""
    found: list[Change] = []
    requeue = max(course.requeue, state.restarts or 0)
    nodes, starts = course.nodes, course.starts
    if requeue > course.requeue:
        found.append(Change("requeued", requeue))
    if (runs(state) or state.over) and state.nodes and starts <= requeue:
        nodes, starts = state.nodes, requeue + 1
        if requeue or not state.over:  # how a first start ended is noted already
            found.append(Change("started", requeue, nodes))
    return Course(starts, nodes, requeue), found


def runs(state: JobState) -> bool:
    """Whether its script is running: not while nodes boot for it, or are still taken down."""
    return state.runs and not {state.state, *state.flags} & {"CONFIGURING", "COMPLETING"}


def never_starts(state: JobState) -> str:
    """Why waiting does not help a job that waits; "" where it may."""
    if not state.waits:
        return ""
    if state.state in _HELD:
        return f"it is held: {state.state}" + f" ({state.reason})" * bool(state.reason)
    told = (state.reason or "").strip("()").replace("_", " ")
    known = {name.replace("_", " ") for name in _NEVER}
    never = told in known or _TOO_MUCH.fullmatch(told) is not None
    return f"it would never start: {state.reason}" if never else ""


def in_queue(number: int | None, state: JobState | None) -> str:
    """What Slurm says of a job that waits; "" where it does not, or nothing is known of it."""
    if state is None or not state.waits:
        return ""
    return f"job {number} waits in the queue: {state.text}"


def why_requeued(lost: Sequence[str], preempted: bool, state: JobState) -> str:
    """For the event: who is gone, or that it was preempted, or what the scheduler says."""
    if lost:
        return f"{', '.join(lost)} is gone"
    if preempted:
        return "preempted"
    return "by the scheduler" + f" ({state.reason})" * bool(state.reason and not state.over)


def why_over(state: JobState | None, lost: Sequence[str], preempted: bool) -> str:
    """Why a job that is over did not come to its own end; "" where it did, well or not.

    state: None where Slurm does not know it any more.
    """
    if state is not None and state.state == "COMPLETED":
        return ""
    if lost:
        return f"{', '.join(lost)} is gone"
    if state is not None and state.state != "FAILED":
        return f"Slurm ended it: {state.state}" + f" ({state.reason})" * bool(state.reason)
    return "preempted" if preempted else ""

"""Submits, watches and cancels a job in Slurm's queue, and interprets Slurm's states.

Names of states and reasons are Slurm's own (squeue(1), JOB STATE CODES and JOB REASON CODES).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.slurm import sbatch
from pytest_mnode.jobs.slurm.nodes import Names
from pytest_mnode.launchers.cleanup.leftovers import Cleanup, Leftovers
from pytest_mnode.launchers.slurm import JobState, Slurm
from pytest_mnode.launchers.slurm.jobs import BOOTING

POLL_JOB_S = 0.25
"""Seconds between two requests to Slurm."""
SILENCE_S = 60.0
"""How long Slurm may leave requests unanswered, as it does during a restart."""
_END_S = 90.0
"""Time limit for the end of a cancelled job; Slurm's default KillWait is 30 s."""
_HELD = frozenset(("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
_NEVER = frozenset(
    (
        *("JobHeldAdmin", "JobHeldUser", "launch failed requeued held", "BadConstraints"),
        *("PartitionNodeLimit", "PartitionTimeLimit", "AccountNotAllowed", "QOSNotAllowed"),
        *("InvalidAccount", "InvalidQOS", "DependencyNeverSatisfied", "PartitionInactive"),
        *("user env retrieval failed requeued held", "job requeued in held state"),
        "ReservationDeleted",
    )
)
"""Reasons of a pending job that do not pass by waiting."""
_TOO_MUCH = re.compile(r"(QOS|Assoc)Max\w+PerJob(Limit)?")
"""Reasons of a job that requests more nodes, time or the like than one job may have."""


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Observed starts of a job, the nodes of the last start, and the number of requeues."""

    starts: int = 0
    nodes: tuple[str, ...] = ()
    requeue: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A change between two checks: "requeued", or "started" on `nodes`."""

    what: Literal["requeued", "started"]
    requeue: int
    nodes: tuple[str, ...] = ()


def changes(history: JobHistory, state: JobState) -> tuple[JobHistory, list[Change]]:
    """Changes since the last check, in order. Of starts that began and ended between two checks,
    only the last is seen, once the job is over."""
    found: list[Change] = []
    requeue = max(history.requeue, state.restarts or 0)
    nodes, starts = history.nodes, history.starts
    if requeue > history.requeue:
        found.append(Change("requeued", requeue))
    if (runs(state) or state.over) and state.nodes and starts <= requeue:
        nodes, starts = state.nodes, requeue + 1
        if requeue or not state.over:  # a first start that is over has its end noted already
            found.append(Change("started", requeue, nodes))
    return JobHistory(starts, nodes, requeue), found


def runs(state: JobState) -> bool:
    """Whether its script runs; False while nodes boot for it or it is completing."""
    return state.runs and not state.ending and state.state not in BOOTING


def never_starts(state: JobState) -> str:
    """Why a pending job will never start; "" if it may."""
    if not state.waits:
        return ""
    if state.state in _HELD:
        return f"it is held: {state.state}{_in_brackets(state.reason)}"
    reason = (state.reason or "").strip("()").replace("_", " ")
    known = {name.replace("_", " ") for name in _NEVER}
    never = reason in known or _TOO_MUCH.fullmatch(reason) is not None
    return f"it would never start: {state.reason}" if never else ""


def _in_brackets(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def in_queue(number: int | None, state: JobState | None) -> str:
    """Number and state of a pending job; "" if it is not pending, or unknown to Slurm."""
    if state is None or not state.waits:
        return ""
    return f"job {number} waits in the queue: {state.text}"


def why_requeued(lost: Sequence[str], preempted: bool, state: JobState) -> str:
    """Detail of the event: the lost nodes, the preemption, or Slurm's reason."""
    if lost:
        return f"{', '.join(lost)} is gone"
    if preempted:
        return "preempted"
    return f"by the scheduler{_in_brackets(None if state.over else state.reason)}"


def why_over(state: JobState | None, lost: Sequence[str], preempted: bool) -> str:
    """Why a job was ended before its own end; "" if it ended by itself, well or not.

    state: None if Slurm does not know the job any more.
    """
    if state is not None and state.state == "COMPLETED":
        return ""
    if lost:
        return f"{', '.join(lost)} is gone"
    if state is not None and state.state != "FAILED":
        return f"Slurm ended it: {state.state}{_in_brackets(state.reason)}"
    return "preempted" if preempted else ""


class Queued:
    """At most one job, with the name of `leftovers`; it is cancelled when this process is gone.

    number: None until it is submitted. state: the last one seen, with the run's node names; None
    before that, and if Slurm does not know the job any more.
    """

    def __init__(self, slurm: Slurm, names: Names, leftovers: Leftovers) -> None:
        self.slurm = slurm
        self.name = leftovers.name
        self.number: int | None = None
        self.state: JobState | None = None
        self._names = names
        self._cleanup = Cleanup(leftovers)
        self._tried = False
        self._silent_since: float | None = None

    def submit(self, script: str, env: Mapping[str, str], options: Sequence[str]) -> None:
        """Queue it. Raises SlurmError, one line."""
        self._tried = True
        self.number = sbatch.submit(script, env, [*options, f"--job-name={self.name}"])

    def look(self) -> JobState | None:
        """Its state now. Raises ClusterError if Slurm does not answer."""
        assert self.number is not None, "not submitted"
        state = self.slurm.job(self.number)
        if state is not None:
            state = replace(state, nodes=self._names.for_run(state.nodes))
        self.state = state
        return state

    def answers(self) -> bool:
        """Update `state`; False if Slurm does not answer now, and `state` is unchanged.

        Raises ClusterError if Slurm has not answered for SILENCE_S.
        """
        asked = time.monotonic()
        try:
            self.look()
        except ClusterError:
            self._silent_since = asked if self._silent_since is None else self._silent_since
            if time.monotonic() - self._silent_since > SILENCE_S:
                raise
            return False
        self._silent_since = None
        return True

    def cancel(self) -> None:
        if self.number is not None and not (self.state is not None and self.state.over):
            self.slurm.cancel(self.number)

    def await_end(self, lost: bool = False) -> None:
        """Wait until it is out of the queue. Raises ClusterError if it stays.

        lost: one of its nodes was lost; a completing job may wait for that node only.
        """
        end = time.monotonic() + _END_S
        while self.number is not None:
            heard, state = self.answers(), self.state
            if heard and (state is None or state.over):
                return
            if time.monotonic() > end:
                if lost and state is not None and state.ending:
                    return
                still = "in the queue" if state is None else state.state
                left = self._cleanup.leftovers
                raise ClusterError(f"job {self.number} is still {still} after scancel: {left}")
            time.sleep(POLL_JOB_S)

    def close(self, done: bool) -> None:
        """Idempotent. done: the job has ended; else the clean-up process keeps cancelling it."""
        # A submission without an answer may still have reached Slurm.
        self._cleanup.close(done and (self.number is not None or not self._tried))

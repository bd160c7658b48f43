"""The engine for Slurm: a gang is one job of N whole nodes.

Heartbeats are files in a directory that all nodes see. All jobs of a run have a common name that no
other job has, by which they are found, and ended by `Cleanup` even if the controller dies.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.gang import heartbeat_rank
from pytest_mnode.gang.engine import Capacity, GangRequest, JobRecord, Observation, Phase, Refused
from pytest_mnode.gang.heartbeats import HeartbeatFiles
from pytest_mnode.gang.slurm_options import (
    NEVER,
    ONLY,
    SlurmRoom,
    for_sbatch,
    is_free,
    submitting,
    without,
)
from pytest_mnode.jobs.slurm.sbatch import submit
from pytest_mnode.launchers.cleanup.leftovers import Cleanup, Leftovers
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.slurm import JobState, NodeState, Slurm, SlurmError
from pytest_mnode.launchers.slurm.jobs import SHORT, jobs_from_lines

_FAILED = frozenset(
    {"FAILED", "LAUNCH_FAILED", "BOOT_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "DEADLINE"}
)
_BLOCKED = re.compile(
    r"QOS|Assoc|Licenses|JobHeld|JobHold|Held|Dependency|BeginTime|PartitionDown|PartitionInactive"
    r"|Invalid(?:Account|QOS)|AccountNotAllowed|AccountingPolicy|Max\w+Per(?:Account|User)\b"
    r"|\w*Limit\b|\w+_held(?:_state)?\b|Reservation"
)
"""Reasons of a pending job that free nodes do not remove, such as limits, holds, begin times.
Source: squeue(1), JOB REASON CODES."""
_TAKEN_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "MAINT", "RESERVED", "REBOOT", "BLOCKED"})


def phase_of(job: JobState) -> Phase:
    """Raises ClusterError for an unknown state."""
    if not job.known:
        raise ClusterError(f"job {job.job_id} is in the unknown state {job.state}")
    if job.ending:
        return Phase.ENDING
    if job.waits:
        return Phase.WAITING
    return Phase.OVER if job.over else Phase.HOLDING


def record_of(job: JobState) -> JobRecord:
    phase = phase_of(job)
    nodes = job.nodes if phase in (Phase.HOLDING, Phase.ENDING) else ()
    reason = f" ({job.reason})" if job.reason and job.reason != "None" else ""
    failed = phase is Phase.OVER and job.state in _FAILED
    blocked = phase is Phase.WAITING and bool(_BLOCKED.match(job.reason or ""))
    status, restarts = f"{job.state}{reason}", job.restarts or 0
    return JobRecord(str(job.job_id), phase, nodes, status, restarts, failed, blocked)


def others_of(
    nodes: Sequence[str], jobs: Iterable[JobState], there: Iterable[NodeState], ours: str
) -> dict[str, str]:
    """Those of these nodes that have a job whose name is not `ours`, or that are out of service,
    with the job's user or the reason."""
    found = {
        node.name: node.text
        for node in there
        # Slurm also drains a node where ranks of this run did not end: no other user took it.
        if (node.flags & _TAKEN_OUT or not node.usable) and "Kill task failed" not in node.text
    }
    for job in jobs:
        if job.runs and job.name != ours:
            user = job.user or "an unknown user"
            found |= dict.fromkeys(job.nodes, f"job {job.job_id} of {user}")
    return {node: found[node] for node in nodes if node in found}


_VARIABLES = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_PROCID", "SLURMD_NODENAME")
_UNKNOWN = (None, 0, 126, 127)
"""Statuses of an sbatch that says nothing about its job: no answer, an odd one, none started."""
_NO_SERVER = ("Unable to contact", "Socket timed out", "Connection refused", "Zero Bytes")


def options_of(names: Mapping[str, str]) -> list[str]:
    """sbatch options for `scheduler.names`."""
    return [f"--{name}={value}" for name, value in names.items()]


def script(python: str, directory: Path, runs_s: float) -> str:
    """The batch script: one rank per node, each with its own heartbeat file."""
    program = Path(heartbeat_rank.__file__).read_text()
    words = [python, "-I", "-S", "-c", program, str(directory), f"{runs_s:.3f}", *_VARIABLES]
    step = ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--cpu-bind=none", "--mpi=none"]
    return f"#!/bin/sh\nexec {shlex.join([*step, *words])}\n"


class SlurmEngine:
    """An `Engine` for Slurm; `close` ends all of its jobs.

    shared: a directory that all nodes see, in which the engine creates its own. leftovers: with the
    name of its jobs. python: path on the nodes. args: more sbatch options, such as --partition=gpu.
    names: the spec's scheduler.names.
    """

    name = "slurm"

    def __init__(
        self,
        shared: Path,
        leftovers: Leftovers,
        *,
        python: str = "",
        args: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
    ) -> None:
        given = [*for_sbatch(args), *options_of(names or {})]
        # sbatch uses only the last --exclude, so one option has all nodes.
        self._options = without(without(given, *ONLY), *NEVER)
        self._python = python or sys.executable
        self._slurm = Slurm()
        self._room = SlurmRoom(self._slurm, given)
        self._target = self._room.target
        self._job_name = leftovers.name
        try:
            self.directory = Path(tempfile.mkdtemp(prefix=".mnode-gang-", dir=shared))
        except OSError as error:
            raise UsageError(
                f"no directory for heartbeats in {shared}: {error.strerror}; give a directory that "
                "all nodes see by --mnode-shared-dir"
            ) from None
        self.heartbeats = HeartbeatFiles(self.directory)
        self._submitted = self._unanswered = False
        self._names: tuple[str, ...] = ()
        self._cleanup = Cleanup(leftovers, str(self.directory))

    def capacity(self) -> Capacity:
        """Nodes of the jobs' partitions or reservation; free are the idle nodes."""
        usable = self._room.usable()
        free = [node.name for node in usable if is_free(node)]
        return Capacity(tuple(node.name for node in usable), tuple(free))

    def others(self, nodes: Sequence[str]) -> dict[str, str]:
        there = self._target.unreserved(self._slurm.nodes(nodes))
        # Only jobs on these nodes: listing all jobs of a large cluster would delay the next
        # observation.
        text = self._slurm.run(
            *("squeue", "--all", "--noheader", "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING"),
            *(f"--nodelist={compress(nodes, tails=False)}", SHORT),
        )
        return others_of(nodes, jobs_from_lines(text), there, self._job_name)

    def submit(self, request: GangRequest) -> tuple[str, ...]:
        return (self._sbatch(request, request.nodes),)

    def _sbatch(self, request: GangRequest, nodes: int) -> str:
        """Submit one job. Returns its id."""
        others: list[str] = []
        if request.among or self._target.only or self._target.never:
            # Read once: the list is long on large clusters, and seldom changes.
            self._names = self._names or tuple(node.name for node in self._slurm.nodes())
            others = self._target.out(self._names, request.among)
        minutes = max(1, math.ceil(request.limit_s / 60))
        options = [
            *self._options,
            f"--job-name={self._job_name}",
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            "--exclusive",
            f"--time={minutes}",
            "--requeue" if request.requeue else "--no-requeue",
            *([f"--exclude={compress(others, tails=False)}"] if others else []),
            f"--chdir={self.directory}",
            f"--output={self.directory}/%j.out",
            "--open-mode=append",
        ]
        text = script(self._python, self.directory, request.runs_s)
        self._submitted = self._unanswered = True  # the job may be queued even without an answer
        try:
            job = submit(text, submitting(os.environ), options)
        except SlurmError as error:
            if error.returncode in _UNKNOWN or any(w in error.text for w in _NO_SERVER):
                raise
            self._unanswered = False
            raise Refused(error.text) from None
        self._unanswered = False
        return str(job)

    def observe(self) -> Observation:
        asked = time.time()
        try:
            jobs = self._slurm.jobs(self._job_name)
            records = {str(job.job_id): record_of(job) for job in jobs}
        except ClusterError as error:
            return Observation(asked, time.time(), None, *self.heartbeats.read(), why=str(error))
        answered = time.time()
        return Observation(asked, answered, records, *self.heartbeats.read())

    def cancel(self, jobs: Sequence[str]) -> None:
        self._slurm.cancel(*map(int, jobs))

    def close(self) -> None:
        """End all jobs of this run, and remove its directory. Raises ClusterError."""
        left = self._cleanup.end(not self._unanswered)
        if left and self._submitted:
            raise ClusterError(left)


def default_shared(root: Path) -> Path:
    """Default directory for heartbeats: the tests' root directory if it is writable, else home."""
    return root if os.access(root, os.W_OK) else Path.home()

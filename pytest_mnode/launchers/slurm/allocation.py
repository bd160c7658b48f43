"""The run's allocation: the one that it runs in, or one that it requests and holds."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.cleanup import child
from pytest_mnode.launchers.cleanup.leftovers import Cleanup, Leftovers
from pytest_mnode.launchers.hosts import expand
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.slurm.command_lines import gpus_option, hopeless, queue_limit_s, salloc
from pytest_mnode.launchers.slurm.commands import Slurm, error_line
from pytest_mnode.launchers.slurm.jobs import JobState
from pytest_mnode.launchers.slurm.nodes import NodeState
from pytest_mnode.processes import end_programs
from pytest_mnode.progress import progress

_FIRST_POLL_S, _POLL_S = 5.0, 20.0
"""A request that can never be granted is found soon; after that a person waits for the queue."""
_WITHDRAWN_S, _RELEASED_S = 10.0, 20.0
"""Limits of salloc's end after SIGTERM, and of the end of the job, which then is retried."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A granted allocation. names: its nodes, in Slurm's order."""

    job_id: int
    names: tuple[str, ...]

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Granted:
        """Read from Slurm's variables. Raises UsageError that names a missing or invalid one."""
        job = environ.get("SLURM_JOB_ID", "")
        if not (job.isascii() and job.isdigit()):
            raise UsageError(f"SLURM_JOB_ID={job}: accepted: the number of an allocation")
        if groups := _groups(environ):
            shown = "; ".join(f"group {number}: {nodes}" for number, nodes in enumerate(groups))
            raise UsageError(
                f"allocation {job} is a heterogeneous job of {len(groups)} components ({shown}), "
                "and a run uses the nodes of one; start pytest in an allocation of one component"
            )
        nodes = environ.get("SLURM_JOB_NODELIST", environ.get("SLURM_NODELIST", ""))
        if not nodes:
            raise UsageError(
                f"SLURM_JOB_ID={job} is set, but no SLURM_JOB_NODELIST; start pytest inside an "
                "allocation, or unset SLURM_JOB_ID"
            )
        return cls(int(job), expand(nodes))


def _groups(environ: Mapping[str, str]) -> list[str]:
    """Nodes of each component of a heterogeneous job; [] for any other job."""
    for kind in ("HET", "PACK"):  # PACK before 20.02
        size = environ.get(f"SLURM_{kind}_SIZE", "")
        if size.isdecimal() and int(size) > 1:
            name = f"SLURM_JOB_NODELIST_{kind}_GROUP_"
            return [environ.get(f"{name}{number}", "?") for number in range(int(size))]
    return []


def on_first(granted: Granted, on: Sequence[str]) -> Granted:
    """The same allocation, with those of its nodes that `on` names before the others."""
    names = [name for name in granted.names if name in on]
    return replace(granted, names=tuple(dict.fromkeys((*names, *granted.names))))


def surrounding(environ: Mapping[str, str], nodes: int) -> Granted:
    """The allocation that the controller runs in, with at least `nodes` nodes.

    Raises UsageError, ClusterError that names what is missing.
    """
    granted = Granted.read(environ)
    missing = nodes - len(granted.names)
    remedy = f"missing: {missing}; allocate them with --nodes={nodes}"
    return _enough(granted, nodes, f"allocation {granted.job_id} has", remedy)


class OwnAllocation:
    """The run's own allocation, without a shell; released however this process ends.

    leftovers: with the name of its job. arguments: the user's arguments for salloc. gpus_per_node:
    requested unless the arguments mention GPUs.
    """

    def __init__(
        self,
        slurm: Slurm,
        leftovers: Leftovers,
        arguments: Sequence[str] = (),
        gpus_per_node: int = 0,
    ) -> None:
        self._slurm = slurm
        self._leftovers = leftovers
        self._arguments = tuple(arguments)
        self._gpus_per_node = gpus_per_node
        self._gpus: list[str] = []
        self._salloc: subprocess.Popen[bytes] | None = None
        self._cleanup: Cleanup | None = None

    def get(self, nodes: int) -> Granted:
        """At least `nodes` nodes. Waits in the queue, unless even an empty cluster has too few.

        Raises ClusterError that names what is missing.
        """
        self._gpus = gpus_option(self._gpus_per_node, self._arguments, self._cluster_nodes())
        command = salloc(self._leftovers.name, nodes, self._arguments, self._gpus)
        self._cleanup = Cleanup(self._leftovers)
        try:
            with tempfile.TemporaryFile() as said:
                self._salloc = subprocess.Popen(
                    child.tied(command),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    start_new_session=True,  # a Ctrl-C is for the controller alone
                )
                status = self._status(self._salloc, nodes)
                said.seek(0)
                text = said.read().decode(errors="replace")
            job = self._job() if status == 0 else None
            if job is None:
                why = f"{error_line(text, status)}{self._gpus_option_reason()}"
                raise ClusterError(f"slurm: {count(nodes)} not allocated: {why}")
            remedy = "remove any --nodes from --mnode-slurm-args"
            return _enough(Granted(job.job_id, job.nodes), nodes, "Slurm allocated", remedy)
        except ClusterError as error:
            if left := self._release():
                raise ClusterError(f"{error}; {left}") from None
            raise
        except BaseException:
            self.close()
            raise

    def guard(self) -> None:
        """Start the process again that releases the allocation, should somebody have killed it."""
        if self._cleanup is not None:
            self._cleanup.guard()

    def close(self) -> None:
        """Release it. Says what may be left if Slurm does not."""
        if left := self._release():
            sys.stderr.write(f"mnode: {left}\n")

    def _release(self) -> str:
        """Release it; "" if that was done in time, else what may be left."""
        program, cleanup, self._cleanup = self._salloc, self._cleanup, None
        if cleanup is None:
            return ""
        answered = True
        if program is not None:
            program.terminate()  # one that waits withdraws its request
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(_WITHDRAWN_S)
            end_programs([program])
            answered = (program.returncode or 0) >= 0  # Slurm may still get a killed one's request
        left = cleanup.end(answered, _RELEASED_S)
        return left and f"slurm: the allocation was not released: {left}"

    def _status(self, program: subprocess.Popen[bytes], nodes: int) -> int:
        """salloc's exit status. Raises ClusterError for a request that is not granted in time."""
        limit_s = queue_limit_s(self._arguments)
        deadline, look = time.monotonic() + limit_s, time.monotonic() + min(_FIRST_POLL_S, _POLL_S)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return program.wait(max(0.0, min(deadline, look) - time.monotonic()))
            if time.monotonic() >= deadline:
                raise ClusterError(self._too_late(nodes, limit_s))
            look = time.monotonic() + _POLL_S
            self._refuse_hopeless(nodes)

    def _job(self) -> JobState | None:
        """Its job; None if Slurm does not know it yet, or any more."""
        return next(iter(self._slurm.jobs(self._leftovers.name)), None)

    def _refuse_hopeless(self, nodes: int) -> None:
        """Raise ClusterError if even an empty cluster has too few nodes."""
        try:
            job = self._job()
            missing = hopeless(job, self._slurm.nodes(), nodes)
        except ClusterError:
            return  # Slurm does not answer: wait, within the limit
        if job is not None and job.waits:
            why = job.reason or "no reason given"
            progress(f"allocation {job.job_id} waits in the queue ({why})")
        if missing is not None:
            raise ClusterError(f"slurm: {count(nodes)} requested: {missing}")

    def _cluster_nodes(self) -> tuple[NodeState, ...] | None:
        """The cluster's nodes; None if they are not needed, or if Slurm does not answer."""
        if not self._gpus_per_node:
            return None
        try:
            return self._slurm.nodes()
        except ClusterError:
            return None

    def _gpus_option_reason(self) -> str:
        """Why the request has an option that the user did not give."""
        if not self._gpus:
            return ""
        return (
            f" ({self._gpus[0]} is requested because the spec sets accelerators.per_node; set "
            "--gpus or --gres in --mnode-slurm-args to override it)"
        )

    def _too_late(self, nodes: int, limit_s: float) -> str:
        text = f"slurm: {count(nodes)} not allocated within {limit_s:g} s"
        try:
            if (job := self._job()) is not None:
                text += f": job {job.job_id} is {job.state} ({job.reason or 'no reason given'})"
        except ClusterError as error:
            text += f"; {error}"
        return text + "; set --immediate=SECONDS in --mnode-slurm-args to wait longer"


def _enough(granted: Granted, nodes: int, has: str, remedy: str) -> Granted:
    """Raises ClusterError if it has fewer nodes."""
    if len(granted.names) < nodes:
        there = f"{len(granted.names)}: {', '.join(granted.names)}"
        raise ClusterError(f"slurm: {count(nodes)} requested, but {has} {there}; {remedy}")
    return granted

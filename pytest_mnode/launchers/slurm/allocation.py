"""The run's allocation: the one that it runs in, or one that it requests and holds."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.cleanup.client import ENDED, CleanupDaemon
from pytest_mnode.launchers.hosts import expand
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.slurm.command_lines import gpus_option, hopeless, queue_limit_s, salloc
from pytest_mnode.launchers.slurm.commands import Slurm, error_line
from pytest_mnode.launchers.slurm.nodes import NodeState
from pytest_mnode.progress import progress

_FIRST_POLL_S, _POLL_S = 5.0, 20.0
"""A request that can never be granted is found soon; after that a person waits for the queue."""
_CLOSE_S = 30.0


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


class Allocation(Protocol):
    """Source of a run's nodes; `daemon` must be started before `get`."""

    daemon: CleanupDaemon

    def get(self, nodes: int) -> Granted:
        """At least `nodes` nodes. Raises ClusterError that names what is missing."""

    def gone(self) -> str | None:
        """Why the allocation ended; None while it lasts, or if this object cannot know."""

    def close(self) -> None:
        """Release the allocation, if the run requested it."""


@dataclass(slots=True)
class CurrentAllocation:
    """The allocation that the controller runs in."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    daemon: CleanupDaemon = field(default_factory=lambda: CleanupDaemon(lambda _: None))

    def get(self, nodes: int) -> Granted:
        granted = Granted.read(self.environ)
        if len(granted.names) < nodes:
            raise ClusterError(
                f"slurm: {count(nodes)} requested, but allocation {granted.job_id} has "
                f"{len(granted.names)}: {', '.join(granted.names)}; "
                f"missing: {nodes - len(granted.names)}; allocate them with --nodes={nodes}"
            )
        return granted

    def gone(self) -> str | None:
        """None: only Slurm knows whether the allocation still exists."""
        return None

    def close(self) -> None:
        """Do nothing: the run did not request this allocation."""


class OwnAllocation:
    """The run's own allocation, held by salloc and released however this process ends.

    arguments: the user's arguments for salloc. gpus_per_node: requested unless the arguments
    mention GPUs.
    """

    def __init__(self, slurm: Slurm, arguments: Sequence[str] = (), gpus_per_node: int = 0) -> None:
        self._slurm = slurm
        self._arguments = tuple(arguments)
        self._gpus_per_node = gpus_per_node
        self._gpus: list[str] = []
        self.name = f"pytest-mnode-{uuid.uuid4().hex[:8]}"
        self._events: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self.daemon = CleanupDaemon(self._events.put)
        self._asked = False
        self._lines: list[str] = []
        self._job: int | None = None
        self._ended: str | None = None
        self._left = ""
        """The allocation that could not be ended; "" if there is none."""

    def get(self, nodes: int) -> Granted:
        """See Allocation. Waits in the queue, unless even an empty cluster has too few nodes."""
        self._start(nodes)
        limit_s = queue_limit_s(self._arguments)
        deadline, look = time.monotonic() + limit_s, time.monotonic() + min(_FIRST_POLL_S, _POLL_S)
        try:
            while True:
                now = time.monotonic()
                granted = self._next(min(deadline, look) - now)
                if granted is not None:
                    return self._enough(granted, nodes)
                if self._ended is not None:
                    why = f"{self._ended}{self._gpus_option_reason()}"
                    raise ClusterError(f"slurm: {count(nodes)} not allocated: {why}")
                if time.monotonic() >= deadline:
                    raise ClusterError(self._too_late(nodes, limit_s))
                if time.monotonic() >= look:
                    look = time.monotonic() + _POLL_S
                    self._refuse_hopeless(nodes)
        except ClusterError as error:
            if left := self._release():
                raise ClusterError(f"{error}; {left}") from None
            raise
        except BaseException:
            self.close()
            raise

    def gone(self) -> str | None:
        while not self._events.empty():
            self._next(0)
        return self._ended

    def close(self) -> None:
        """See Allocation. Says its number if Slurm does not release it."""
        if left := self._release():
            sys.stderr.write(f"mnode: {left}\n")

    def _release(self) -> str:
        """Release it; "" if that was done in time, else what may be left."""
        if not self._asked:
            return ""
        self._asked = False
        if self._ended is None:
            with contextlib.suppress(ClusterError):
                self.daemon.order(end=self.name)
        end = time.monotonic() + _CLOSE_S
        while self._ended is None and time.monotonic() < end:
            self._next(end - time.monotonic())
        if self._ended is None:
            self._left = self._left or str(self._job or f"named {self.name}")
        if not self._left:
            return ""
        return (
            f"slurm: allocation {self._left} may be left: neither salloc nor scancel ended it; its "
            f"end is retried for an hour (look for it by squeue --name={self.name})"
        )

    def _start(self, nodes: int) -> None:
        self._gpus = gpus_option(self._gpus_per_node, self._arguments, self._cluster_nodes())
        command = salloc(self.name, nodes, self._arguments, self._gpus)
        self.daemon.order(allocate=self.name, argv=command)
        self._asked = True

    def _next(self, timeout_s: float) -> Granted | None:
        """Process the daemon's next event; the allocation, if it was granted."""
        try:
            event = self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if event is None:
            self._ended = self._ended or ENDED
        elif "line" in event:
            self._lines.append(event["line"])
        elif "job" in event:
            self._job = event["job"]
        elif "left" in event:
            self._left = event["left"] or f"named {self.name}"
        elif "granted" in event:
            granted = Granted.read(event["granted"])
            self._job = granted.job_id
            return granted
        elif self._ended is None:
            self._ended = error_line("\n".join(self._lines), event["ended"] or 0)
        return None

    def _enough(self, granted: Granted, nodes: int) -> Granted:
        if len(granted.names) < nodes:
            raise ClusterError(
                f"slurm: {count(nodes)} requested, but Slurm allocated {len(granted.names)}: "
                f"{', '.join(granted.names)}; remove any --nodes from --mnode-slurm-args"
            )
        return granted

    def _refuse_hopeless(self, nodes: int) -> None:
        """Raise ClusterError if even an empty cluster has too few nodes."""
        if self._job is None:
            return
        try:
            job = self._slurm.job(self._job)
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
            job = self._slurm.job(self._job) if self._job is not None else None
            if job is not None:
                text += f": job {job.job_id} is {job.state} ({job.reason or 'no reason given'})"
        except ClusterError as error:
            text += f"; {error}"
        return text + "; set --immediate=SECONDS in --mnode-slurm-args to wait longer"

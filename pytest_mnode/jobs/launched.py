"""The interface of a launched job, whether this run or a scheduler starts its torchruns."""

from __future__ import annotations

import signal as signals
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import ClusterError, TimeLimitError, UsageError
from pytest_mnode.jobs import job_processes
from pytest_mnode.jobs.job import Job, JobEvent, JobResult
from pytest_mnode.launchers.nodes import Nodes

POLL_S = 0.02
NFS_DELAY_S = 35.0
"""Seconds until a file of one machine is seen on all others: NFS revalidates after 30 s."""


class LaunchedJob(ABC):
    """A torchrun job with one torchrun per node. It ends with its test."""

    def __init__(self, cluster: Nodes, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._id = uuid.uuid4().hex  # MNODE_JOB in the environment of its processes
        self._result: JobResult | None = None
        self._preempted = False
        self._events: list[JobEvent] = []
        self._requeue = 0

    @property
    @abstractmethod
    def nodes(self) -> tuple[str, ...]:
        """The nodes of its current or last start."""

    @property
    def _places(self) -> job_processes.Places:
        return self._cluster

    @property
    def requeue(self) -> int:
        return self._requeue

    @property
    def events(self) -> tuple[JobEvent, ...]:
        return tuple(self._events)

    def kill(
        self,
        *,
        node: str | None = None,
        rank: int | None = None,
        signal: signals.Signals = signals.SIGKILL,
    ) -> list[int]:
        """Send a signal to one rank, or to all processes of the job on a node; returns their pids.

        Raises UsageError unless one of node and rank is given, ClusterError if there is no such
        process.
        """
        if (node is None) == (rank is None):
            raise UsageError("kill needs either node= or rank=")
        size = len(self.nodes) * self._job.procs_per_node
        if rank is not None and not 0 <= rank < size:
            raise UsageError(f"rank={rank}: the job has {size}")
        # With the c10d rendezvous, torchrun assigns ranks to nodes: search all nodes.
        on = job_processes.living(self._places, self.nodes) if node is None else [node]
        wanted = "all" if rank is None else str(rank)
        done = self._signal(on, wanted, signal)
        if not done:
            what = "process of the job" if rank is None else f"rank {rank}"
            raise ClusterError(f"no {what} is running on {node or ', '.join(on)}")
        return done

    @abstractmethod
    def preempt(self, grace_s: float) -> list[str]:
        """Preempt it as a scheduler does: SIGTERM on all nodes at once, and `grace_s` seconds later
        SIGKILL for remaining processes. Returns the names of the nodes that needed SIGKILL.

        The job is requeued if `Job.requeues` allows it.
        """

    def pids(self, node: str, rank: int | None = None) -> list[int]:
        """Pids on a node of one rank, or of all processes of the job."""
        wanted = "all" if rank is None else str(rank)
        found = job_processes.pids(self._places, [node], self._id, wanted)
        return list(found.get(node, ()))

    def alive(self, known: Mapping[str, Sequence[tuple[int, float]]]) -> list[Culprit]:
        """Processes of `known` that still run, as "pid 7 on node1"; a lost node has none.

        known: (pid, a time it ran at) by node. Raises ClusterError.
        """
        there = job_processes.living(self._places, known)
        found = job_processes.alive(self._places, {node: known[node] for node in there})
        return [
            Culprit(f"pid {pid} on {node}", node)
            for node, some in found.items()
            for pid in sorted(some)
        ]

    @abstractmethod
    def output(self, node: str) -> str:
        """Output of all starts of the job on a node until now."""

    @abstractmethod
    def poll(self) -> JobResult | None:
        """Check it once; its result if it is over, else None."""

    def wait(self, timeout: float) -> JobResult:
        """Wait until torchrun has ended on every node and no requeue follows, `timeout` s at most.

        Raises TimeLimitError, which names the nodes on which the job still runs.
        """
        end = time.monotonic() + timeout
        while (result := self.poll()) is None:
            if time.monotonic() >= end:
                raise TimeLimitError(f"{self._where()} after {timeout:g} s")
            time.sleep(POLL_S)
        return result

    @abstractmethod
    def close(self) -> None:
        """Kill its processes, remove its logs. Raises ClusterError if SIGKILL is not enough."""

    @abstractmethod
    def _where(self) -> str:
        """Why the job is not over, such as "the job still runs on node0"."""

    def _signal(self, on: Sequence[str], wanted: str, number: signals.Signals) -> list[int]:
        """Signal processes and note the events; returns their pids."""
        done = job_processes.signal(self._places, on, self._id, wanted, int(number))
        for name, sent in done.items():
            if sent:
                pids = tuple(pid for pid, _ in sent)
                self._note("signalled", name, pids, number.name, sent[0][1])
        return [pid for sent in done.values() for pid, _ in sent]

    def _kill(self, on: Iterable[str]) -> None:
        """SIGKILL all processes of the job. Raises ClusterError if that is not enough."""
        there = job_processes.living(self._places, on)
        killed, left = job_processes.end(self._places, there, self._id)
        for name, pids in killed.items():
            if pids:
                self._note("killed", name, pids)
        if left:
            raise ClusterError(f"SIGKILL did not end {', '.join(left)}")

    def _note_preempted(self, killed: Sequence[str], grace_s: float) -> None:
        self._preempted = True
        detail = f"{', '.join(killed)} killed after {grace_s:g} s" if killed else ""
        self._note("preempted", detail=detail)

    def _note(
        self,
        what: str,
        node: str | None = None,
        pids: Sequence[int] = (),
        detail: str = "",
        time_s: float | None = None,
    ) -> None:
        at = time.time() if time_s is None else time_s
        self._events.append(JobEvent(at, what, self._requeue, node, tuple(pids), detail))

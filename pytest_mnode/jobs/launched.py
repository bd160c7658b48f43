"""What a test holds of a job that it launched, whoever starts the job's parts."""

from __future__ import annotations

import signal as signals
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_mnode.errors import ClusterError, TimeLimitError, UsageError
from pytest_mnode.jobs import processes
from pytest_mnode.jobs.described import Job, JobEvent, JobResult

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes

POLL_S = 0.02


class LaunchedJob(ABC):
    """A torchrun job, one torchrun a node. Ends with its test."""

    def __init__(self, cluster: Nodes, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._id = uuid.uuid4().hex  # marks its processes
        self._events: list[JobEvent] = []
        self._requeue = 0

    @property
    @abstractmethod
    def nodes(self) -> tuple[str, ...]:
        """The nodes it runs on now, or ran on last."""

    @property
    def requeue(self) -> int:
        """How often it was started again."""
        return self._requeue

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """What happened to it so far, in order."""
        return tuple(self._events)

    def kill(
        self,
        *,
        node: str | None = None,
        rank: int | None = None,
        signal: signals.Signals = signals.SIGKILL,
    ) -> list[int]:
        """Send a signal to a rank, or to all processes of the job on a node; pids on that node.

        Raises UsageError for neither or both, ClusterError where there is no such process.
        """
        if (node is None) == (rank is None):
            raise UsageError("kill needs node= or rank=, one of them")
        if rank is not None and not 0 <= rank < len(self.nodes) * self._job.procs_per_node:
            raise UsageError(f"rank={rank}: the job has {self._size}")
        # With the c10d rendezvous it is torchrun that gives ranks to nodes: look on all.
        on = processes.living(self._cluster, self.nodes) if node is None else [node]
        wanted = "all" if rank is None else str(rank)
        done = self._signal(on, wanted, signal)
        if not done:
            what = "process of the job" if rank is None else f"rank {rank}"
            raise ClusterError(f"no {what} is running on {node or ', '.join(on)}")
        return done

    @abstractmethod
    def preempt(self, grace_s: float) -> list[str]:
        """As a scheduler that wants the nodes back: SIGTERM to the job on all nodes at once, and
        SIGKILL to whatever is left `grace_s` seconds later. Names of the nodes that had to be
        killed. Requeued where it may be.
        """

    def pids(self, node: str, rank: int | None = None) -> list[int]:
        """Pids, as the node sees them, of one rank or of all the job's processes there."""
        wanted = "all" if rank is None else str(rank)
        return list(processes.pids(self._cluster, [node], self._id, wanted)[node])

    @abstractmethod
    def output(self, node: str) -> str:
        """What the job has printed on a node so far, over all its starts."""

    @abstractmethod
    def poll(self) -> JobResult | None:
        """See how it is; its result once it is over."""

    def wait(self, timeout: float) -> JobResult:
        """Wait for torchrun on every node, and for that of requeues, `timeout` seconds at most.

        Raises TimeLimitError naming the nodes on which it still runs.
        """
        end = time.monotonic() + timeout
        while (result := self.poll()) is None:
            if time.monotonic() >= end:
                raise TimeLimitError(f"{self._where()} after {timeout:g} s")
            time.sleep(POLL_S)
        return result

    @abstractmethod
    def close(self) -> None:
        """Kill what is left of it and remove its logs. Raises ClusterError if some is left."""

    @abstractmethod
    def _where(self) -> str:
        """Where it is, for a wait that is over: "the job still runs on node0"."""

    @property
    def _size(self) -> int:
        return len(self.nodes) * self._job.procs_per_node

    def _signal(self, on: Sequence[str], wanted: str, number: signals.Signals) -> list[int]:
        """Signal processes, noted by node and time; their pids."""
        done = processes.signal(self._cluster, on, self._id, wanted, int(number))
        for name, sent in done.items():
            if sent:
                pids = tuple(pid for pid, _ in sent)
                self._note("signalled", name, pids, number.name, sent[0][1])
        return [pid for sent in done.values() for pid, _ in sent]

    def _kill(self, on: Sequence[str]) -> None:
        """SIGKILL whatever is marked as the job's. Raises ClusterError where that is not enough."""
        left = []
        there = processes.living(self._cluster, on)
        for name, ended in processes.end(self._cluster, there, self._id).items():
            if ended.killed:
                self._note("killed", name, ended.killed)
            left += [f"pid {pid} on {name}" for pid in ended.left]
        if left:
            raise ClusterError(f"SIGKILL did not end {', '.join(left)}")

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

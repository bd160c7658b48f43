"""A job as it runs: started, watched, killed, preempted, requeued, ended."""

from __future__ import annotations

import signal as signals
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_mnode.errors import ClusterError, TimeLimitError, UsageError
from pytest_mnode.job import processes
from pytest_mnode.job.described import Job, JobEvent, JobResult
from pytest_mnode.job.parts import Parts
from pytest_mnode.job.requeue import Seen, decide
from pytest_mnode.job.torchrun import was_preempted

if TYPE_CHECKING:
    from pytest_mnode.handle import Cluster

_POLL_S = 0.02
_ASK_AGAIN_S = 0.5
"""Between two questions whether a lost node is back."""


class RunningJob:
    """A torchrun job, one torchrun a node. Ends with its test.

    Requeues happen in `poll` and `wait`, in the caller's thread; nothing watches in between.
    """

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._parts = Parts(cluster, job, self._note)
        self._ended: dict[str, int] = {}
        self._lost: tuple[str, ...] = ()
        self._first_size = 0
        self._events: list[JobEvent] = []
        self._requeue = 0
        self._preempted = False
        self._result: JobResult | None = None
        self._waiting_since: float | None = None
        self._asked_at = -1.0

    @classmethod
    def start(cls, cluster: Cluster, job: Job) -> RunningJob:
        """Start it. Raises UsageError for nodes that this test does not have, ClusterError."""
        nodes = job.placed_on(cluster.nodes)
        running = cls(cluster, job)
        try:
            running._begin(nodes)
        except BaseException:
            running.close()
            raise
        return running

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes it runs on now, or ran on last."""
        return self._parts.nodes

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
        on = self._parts.living() if node is None else [node]
        wanted = "all" if rank is None else str(rank)
        done = self._parts.signal(on, wanted, signal)
        if not done:
            what = "process of the job" if rank is None else f"rank {rank}"
            raise ClusterError(f"no {what} is running on {node or ', '.join(on)}")
        return done

    def preempt(self, grace_s: float) -> list[str]:
        """As a scheduler that wants the nodes back: SIGTERM to torchrun on all nodes at once, and
        SIGKILL to whatever is left `grace_s` seconds later. Requeued, where it may be, by `wait`.

        Names of the nodes that had to be killed.
        """
        self._parts.signal(self._parts.living(), "torchrun", signals.SIGTERM)
        end = time.monotonic() + grace_s
        while time.monotonic() < end and self._parts.running():
            time.sleep(_POLL_S)
        late = self._parts.running()
        self._preempted = True
        self._note("preempted", detail=f"{', '.join(late)} killed after {grace_s:g} s" * bool(late))
        if late:
            self._parts.end()
        return late

    def pids(self, node: str, rank: int | None = None) -> list[int]:
        """Pids, as the node sees them, of one rank or of all the job's processes there."""
        wanted = "all" if rank is None else str(rank)
        return self._parts.pids(node, wanted)

    def output(self, node: str) -> str:
        """What the job has printed on a node so far, over all its starts."""
        return self._parts.output(node)

    def poll(self) -> JobResult | None:
        """See how it is, and requeue it where that is due; its result once it is over.

        Raises ClusterError where processes of a start outlive SIGKILL: it is not started again.
        """
        if self._result is not None:
            return self._result
        ended = self._parts.ended()
        fresh = ended.keys() - self._ended.keys()
        for name in sorted(fresh):
            self._note("ended", name, detail=f"status {ended[name]}")
        self._ended = ended
        if not fresh and not self._due_to_ask():
            return None
        seen = self._seen()
        todo = decide(self._job, seen)
        if todo.final:
            if todo.why:
                self._note("gave up", detail=f"{todo.why}, after {self._requeue} requeues")
            return self._finish()
        if todo.nodes:
            self._again(todo.nodes, todo.why)
        elif todo.why and self._gave_up_waiting():
            return self._finish()
        return None

    def wait(self, timeout: float) -> JobResult:
        """Wait for torchrun on every node, and for that of requeues, `timeout` seconds at most.

        Raises TimeLimitError naming the nodes on which it still runs.
        """
        end = time.monotonic() + timeout
        while (result := self.poll()) is None:
            if time.monotonic() >= end:
                raise TimeLimitError(f"{self._where()} after {timeout:g} s")
            time.sleep(_POLL_S)
        return result

    def close(self) -> None:
        """Kill what is left of the job and remove its logs. Raises ClusterError if some is left."""
        self._parts.close()

    @property
    def _size(self) -> int:
        return len(self.nodes) * self._job.procs_per_node

    def _begin(self, nodes: tuple[str, ...]) -> None:
        self._ended, self._lost, self._preempted = {}, (), False
        self._first_size = self._first_size or len(nodes)
        self._parts.launch(nodes, self._requeue)
        self._note("started", detail=", ".join(nodes))

    def _again(self, nodes: tuple[str, ...], why: str) -> None:
        self._parts.end()
        self._requeue += 1
        self._waiting_since = None
        self._note("requeued", detail=why)
        self._begin(nodes)

    def _seen(self) -> Seen:
        suspects = [name for name in self.nodes if self._ended.get(name)]
        asked = dict.fromkeys((*suspects, *(self._job.spares if suspects else ())))
        self._asked_at = time.monotonic()
        gone = {name for name in asked if not processes.is_there(self._cluster, name)}
        for name in self.nodes:
            if name in gone and name not in self._lost:
                self._lost += (name,)
                self._note("node lost", name)
        over = len(self._ended) == len(self.nodes)
        told = over and was_preempted([self._parts.printed(name) for name in self.nodes])
        return Seen(
            nodes=self.nodes,
            first_size=self._first_size,
            ended=self._ended,
            there=[name for name in self._cluster.nodes if name not in gone],
            lost=self._lost,
            requeue=self._requeue,
            preempted=self._preempted or told,
        )

    def _due_to_ask(self) -> bool:
        """Whether it waits for a node, and has not asked for a while."""
        waits = self._waiting_since is not None
        return waits and time.monotonic() - self._asked_at > _ASK_AGAIN_S

    def _gave_up_waiting(self) -> bool:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
            self._parts.end()
        if now - self._waiting_since < self._job.back_within_s:
            return False
        text = f"{', '.join(self._lost)} not back within {self._job.back_within_s:g} s"
        self._note("gave up", detail=text)
        return True

    def _finish(self) -> JobResult:
        self._result = JobResult(
            self._parts.ended(), {name: self.output(name) for name in self.nodes}
        )
        return self._result

    def _where(self) -> str:
        if self._waiting_since is not None:
            return f"the job waits for {', '.join(self._lost)} to be there again"
        return f"the job still runs on {', '.join(self._parts.running())}"

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

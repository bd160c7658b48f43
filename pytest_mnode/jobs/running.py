"""A job as it runs: started, watched, killed, preempted, requeued, ended."""

from __future__ import annotations

import signal as signals
import time
from typing import TYPE_CHECKING

from pytest_mnode.jobs import processes
from pytest_mnode.jobs.described import Job, JobResult
from pytest_mnode.jobs.launched import POLL_S, LaunchedJob
from pytest_mnode.jobs.parts import Parts
from pytest_mnode.jobs.requeue import Seen, decide
from pytest_mnode.jobs.torchrun import was_preempted

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes

_ASK_AGAIN_S = 0.5
"""Between two questions whether a lost node is back."""


class RunningJob(LaunchedJob):
    """A torchrun job whose parts are commands on nodes. Ends with its test.

    Requeues happen in `poll` and `wait`, in the caller's thread; nothing watches in between.
    """

    def __init__(self, cluster: Nodes, job: Job, note: str = "") -> None:
        super().__init__(cluster, job)
        self._how = note
        self._parts = Parts(cluster, job, self._id, self._note)
        self._ended: dict[str, int] = {}
        self._lost: tuple[str, ...] = ()
        self._first_size = 0
        self._preempted = False
        self._result: JobResult | None = None
        self._waiting_since: float | None = None
        self._asked_at = -1.0

    @classmethod
    def start(cls, cluster: Nodes, job: Job, note: str = "") -> RunningJob:
        """Start it. Raises UsageError for nodes that this test does not have, ClusterError.

        note: for its first event, how it is started where that could have been otherwise.
        """
        nodes = job.placed_on(cluster.nodes)
        running = cls(cluster, job, note)
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

    def preempt(self, grace_s: float) -> list[str]:
        """As a scheduler that wants the nodes back: SIGTERM to torchrun on all nodes at once, and
        SIGKILL to whatever is left `grace_s` seconds later. Requeued, where it may be, by `wait`.

        Names of the nodes that had to be killed.
        """
        self._signal(self._parts.living(), "torchrun", signals.SIGTERM)
        end = time.monotonic() + grace_s
        while time.monotonic() < end and self._parts.running():
            time.sleep(POLL_S)
        late = self._parts.running()
        self._preempted = True
        self._note("preempted", detail=f"{', '.join(late)} killed after {grace_s:g} s" * bool(late))
        if late:
            self._parts.end()
        return late

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

    def close(self) -> None:
        """Kill what is left of the job and remove its logs. Raises ClusterError if some is left."""
        self._parts.close()

    def _begin(self, nodes: tuple[str, ...]) -> None:
        self._ended, self._lost, self._preempted = {}, (), False
        self._first_size = self._first_size or len(nodes)
        self._parts.launch(nodes, self._requeue)
        how = f" ({self._how})" * bool(self._how and not self._requeue)
        self._note("started", detail=", ".join(nodes) + how)

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

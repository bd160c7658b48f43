"""A job whose torchruns are commands that this run starts on nodes, and requeues itself."""

from __future__ import annotations

import contextlib
import signal as signals
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pytest_mnode.jobs import job_processes
from pytest_mnode.jobs.job import Job, JobResult, JobSnapshot, decide
from pytest_mnode.jobs.launched import POLL_S, LaunchedJob
from pytest_mnode.jobs.torchrun import Start, was_preempted
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.launchers.remote.node_process import Program
from pytest_mnode.processes import end_programs

_ASK_AGAIN_S = 0.5
"""Pause between two checks whether a lost node is back."""
_FOLLOW_S = 1.0


class RunningJob(LaunchedJob):
    """A torchrun job whose torchruns are commands on nodes. It ends with its test.

    Requeues happen in `poll` and `wait`, in the caller's thread; the job is not watched in between.
    """

    def __init__(self, cluster: Nodes, job: Job, note: str = "") -> None:
        super().__init__(cluster, job)
        self._started_how = note
        self._nodes: tuple[str, ...] = ()
        self._used: dict[str, None] = {}
        self._torchruns: dict[str, Program] = {}
        self._logs = tempfile.TemporaryDirectory(prefix="job-", dir=cluster.scratch)
        self._ended: dict[str, int] = {}
        self._lost: tuple[str, ...] = ()
        self._first_size = 0
        self._waiting_since: float | None = None
        self._asked_at = -1.0

    @classmethod
    def start(cls, cluster: Nodes, job: Job, how: Any = "") -> Self:
        """Start it. Raises UsageError for nodes that this test does not have, ClusterError.

        how: the last argument of the class; here the detail of the first event, such as why the job
        was not submitted to a scheduler.
        """
        nodes = job.placed_on(cluster.nodes)
        running = cls(cluster, job, how)
        try:
            running._launch(nodes)
        except BaseException:
            running.close()
            raise
        return running

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._nodes

    def preempt(self, grace_s: float) -> list[str]:
        on = job_processes.living(self._places, self.nodes)
        self._signal(on, "torchrun", signals.SIGTERM)
        end = time.monotonic() + grace_s
        while time.monotonic() < end and self._still_running():
            time.sleep(POLL_S)
        late = self._still_running()
        self._note_preempted(late, grace_s)
        if late:
            self._end(self.nodes)
        return late

    def output(self, node: str) -> str:
        return "".join(self._printed(node, requeue) for requeue in range(self._requeue + 1))

    def poll(self) -> JobResult | None:
        """Check it once, and requeue it if due; its result if it is over, else None.

        Raises ClusterError if processes of a start outlive SIGKILL: it is not started again.
        """
        if self._result is not None:
            return self._result
        ended = self._exit_statuses()
        fresh = ended.keys() - self._ended.keys()
        for name in sorted(fresh):
            self._note("ended", name, detail=self._how_ended(name, ended[name]))
        self._ended = ended
        waits = self._waiting_since is not None
        if not fresh and not (waits and time.monotonic() - self._asked_at > _ASK_AGAIN_S):
            return None
        decision = decide(self._job, self._snapshot())
        if decision.final:
            if decision.why:
                self._note("gave up", detail=f"{decision.why}, after {self._requeue} requeues")
            return self._finish()
        if decision.nodes:
            self._requeue_on(decision.nodes, decision.why)
        elif decision.why and self._gave_up_waiting():
            return self._finish()
        return None

    def close(self) -> None:
        try:
            self._end(self._used)
        finally:
            self._logs.cleanup()

    def _launch(self, nodes: tuple[str, ...]) -> None:
        self._first_size = self._first_size or len(nodes)
        self._ended, self._lost, self._preempted = {}, (), False
        self._nodes = nodes
        self._used |= dict.fromkeys(nodes)
        self._start_torchruns(nodes)
        how = f" ({self._started_how})" if self._started_how and not self._requeue else ""
        self._note("started", detail=", ".join(nodes) + how)

    def _start_torchruns(self, nodes: tuple[str, ...]) -> None:
        cluster, job = self._cluster, self._job
        self._torchruns = {}
        start = Start(
            self._id,
            nodes,
            self._requeue,
            cluster.address(nodes[0]),
            cluster.free_port(nodes[0]),
            cluster.python,
        )
        for name in nodes:
            log = self._log(name, self._requeue)
            argv = start.argv(job, name, cluster.address(name), f"{log}-ranks")
            env = start.own(job, name)
            if cluster.share_kernel:
                # Temporary files that killed processes leave are removed with the job.
                env.setdefault("TMPDIR", self._logs.name)
            defaults = start.defaults(job, cluster.fabric_interface(name))
            self._torchruns[name] = cluster.start(
                argv, name, env=env, defaults=defaults, output=log
            )

    def _requeue_on(self, nodes: tuple[str, ...], why: str) -> None:
        self._end(self.nodes)
        self._requeue += 1
        self._waiting_since = None
        self._note("requeued", detail=why)
        self._launch(nodes)

    def _end(self, on: Iterable[str]) -> None:
        """Kill all processes on these nodes. Raises ClusterError if SIGKILL is not enough."""
        try:
            self._kill(on)
        finally:
            until = time.monotonic() + _FOLLOW_S
            for process in self._torchruns.values():
                # The local command ends with the one on its node, unless the node is gone.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
            end_programs(list(self._torchruns.values()))

    def _exit_statuses(self) -> dict[str, int]:
        codes = {name: program.poll() for name, program in self._torchruns.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def _still_running(self) -> list[str]:
        ended = self._exit_statuses()
        return [name for name in self.nodes if name not in ended]

    def _how_ended(self, node: str, status: int) -> str:  # noqa: ARG002
        return f"status {status}"

    def _snapshot(self) -> JobSnapshot:
        suspects = [name for name in self.nodes if self._ended.get(name)]
        asked = {*suspects, *(self._job.spares if suspects else ())}
        self._asked_at = time.monotonic()
        gone = asked - job_processes.answering(self._cluster, asked)
        for name in self.nodes:
            if name in gone and name not in self._lost:
                self._lost += (name,)
                self._note("node lost", name)
        over = len(self._ended) == len(self.nodes)
        outputs = [self._printed(name, self._requeue) for name in self.nodes] if over else []
        return JobSnapshot(
            nodes=self.nodes,
            first_size=self._first_size,
            ended=self._ended,
            there=[name for name in self._cluster.nodes if name not in gone],
            lost=self._lost,
            requeue=self._requeue,
            preempted=self._preempted or was_preempted(outputs),
        )

    def _gave_up_waiting(self) -> bool:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
            self._end(self.nodes)
        if now - self._waiting_since < self._job.back_within_s:
            return False
        text = f"{', '.join(self._lost)} not back within {self._job.back_within_s:g} s"
        self._note("gave up", detail=text)
        return True

    def _finish(self) -> JobResult:
        output = {name: self.output(name) for name in self.nodes}
        self._result = JobResult(self._exit_statuses(), output)
        return self._result

    def _where(self) -> str:
        if self._waiting_since is not None:
            return f"the job waits for {', '.join(self._lost)} to come back"
        return f"the job still runs on {', '.join(self._still_running())}"

    def _printed(self, node: str, requeue: int) -> str:
        path = self._log(node, requeue)
        return path.read_text(errors="replace") if path.exists() else ""

    def _log(self, node: str, requeue: int) -> Path:
        return Path(self._logs.name) / (f"{node}.{requeue}" if requeue else node)

"""A job in Slurm's queue, as a test uses it."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.job import Job, JobResult
from pytest_mnode.jobs.launched import NFS_DELAY_S, POLL_S, LaunchedJob
from pytest_mnode.jobs.slurm import files, queued
from pytest_mnode.jobs.slurm.nodes import Losses, Names
from pytest_mnode.jobs.slurm.queued import POLL_JOB_S, Change, JobHistory, Queued, changes
from pytest_mnode.jobs.slurm.sbatch import Request, submitting
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.launchers.slurm import JobState
from pytest_mnode.protocol.messages import RUN


class SubmittedJob(LaunchedJob):
    """A torchrun job that sbatch submitted, with one torchrun per node. It ends with its test.

    Slurm requeues it by itself; `poll` and `wait` only observe that.
    """

    def __init__(
        self, cluster: Nodes, job: Job, request: Request, names: Names, queued: Queued
    ) -> None:
        super().__init__(cluster, job)
        self._names = names
        self._request = request
        self._queued = queued
        self._directory = tempfile.TemporaryDirectory(
            prefix="job-", dir=cluster.scratch, ignore_cleanup_errors=True
        )
        self._files = Path(self._directory.name)
        self._read = files.JobFiles(self._files)
        self._history = JobHistory()
        self._losses = Losses(queued.slurm, names, pinned=request.moves)
        self._noted: set[tuple[str, int]] = set()
        """Nodes and starts whose end is an event already."""
        self._looked_at = -POLL_JOB_S
        self._missing_since: float | None = None

    @classmethod
    def start(
        cls, cluster: Nodes, job: Job, request: Request, names: Names, queued: Queued
    ) -> SubmittedJob:
        """Submit the request with its own name and output. Raises SlurmError."""
        submitted = cls(cluster, job, request, names, queued)
        try:
            submitted._submit(names.for_run(request.begin_on))
        except BaseException:
            submitted.close()
            raise
        return submitted

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of its current or last start; before the first, the requested ones."""
        return self._history.nodes

    @property
    def number(self) -> int | None:
        return self._queued.number

    def preempt(self, grace_s: float) -> list[str]:
        on, began = self.nodes, time.time()
        self._queued.slurm.run("scancel", "--signal=TERM", str(self.number))
        end = time.monotonic() + grace_s
        while time.monotonic() < end and self._read.running(on, self._requeue):
            time.sleep(POLL_S)
        late = self._read.running(on, self._requeue)
        sent = self._read.sigterms(on, self._requeue)
        for name in on:
            if name in sent:
                self._note("signalled", name, [sent[name][0]], "SIGTERM", sent[name][1])
            else:
                how = "SIGTERM, time by the controller's clock: the node reported none"
                self._note("signalled", name, detail=how, time_s=began)
        self._note_preempted(late, grace_s)
        if late:
            self._kill(on)
        return late

    def output(self, node: str) -> str:
        """Output of all starts of the job on a node until now; on the first node with the output of
        Slurm."""
        return self._read.output(node, self._requeue, node in self.nodes[:1])

    def poll(self) -> JobResult | None:
        """Check it once; its result if it is over, else None.

        Raises ClusterError if Slurm does not answer for 60 s.
        """
        if self._result is not None:
            return self._result
        self._note_ended()
        if time.monotonic() - self._looked_at < POLL_JOB_S:
            return None
        self._looked_at = time.monotonic()
        if not self._queued.answers():
            return None
        state = self._queued.state
        if state is None or state.over:
            return self._ended(state)
        return self._follow(state) if state.known else None

    def close(self) -> None:
        """Cancel it, kill its remaining processes, remove its logs.

        Raises ClusterError if it stays in the queue.
        """
        done = False
        try:
            state = self._queued.state
            if state is None or not state.over:
                self._end()
            done = True
        finally:
            self._queued.close(done)
            self._directory.cleanup()

    def _submit(self, nodes: tuple[str, ...]) -> None:
        cluster, job = self._cluster, self._job
        nodes_by_name = {
            theirs: files.JobNode(ours, cluster.address(ours), cluster.fabric_interface(ours))
            for ours, theirs in self._names.slurm.items()
        }
        plan = files.Plan(self._id, job, nodes_by_name, cluster.job_facts.srun_arguments)
        program = (cluster.python, "-m", "pytest_mnode.jobs.slurm.on_node", "batch")
        argv = [*program, str(plan.write(self._files))]
        output = str(self._files / files.OUTPUT)
        request = replace(self._request, output=output)
        env = {**submitting(os.environ), **cluster.given_env, RUN: cluster.run_id}
        text = f"#!/bin/sh\nexec {shlex.join(argv)}\n"
        self._queued.submit(text, env, request.options())
        self._history = JobHistory(nodes=nodes)
        self._note("submitted", detail=f"job {self.number} for {', '.join(nodes)}")

    def _follow(self, state: JobState) -> JobResult | None:
        """Note changes; its result if the job can never end well, else None."""
        history, found = changes(self._history, state)
        if found:
            self._note_ended()
        again = state.waits and history.requeue > 0
        if found or again or self._losses.due:
            self._note_lost()
        self._note_changes(history, found, state)
        if again and self.number is not None:
            self._losses.let_move(self.number)
        why = queued.never_starts(state) or (
            again and self._losses.waited_long(self._job.back_within_s)
        )
        if self._requeue > self._job.requeues:
            why = f"started again {self._requeue} times, {self._job.requeues} were allowed"
        if not why:
            return None
        self._end()
        return self._finish(why)

    def _ended(self, state: JobState | None) -> JobResult | None:
        self._note_ended()
        self._note_lost()
        history, found = changes(self._history, state) if state is not None else (self._history, [])
        if state is not None and history != self._history:  # it changed after the last check
            self._note_changes(history, found, state)
            self._note_ended()
            self._note_lost()
        missing = self._read.running(self.nodes, self._history.requeue)
        if missing and state is not None and state.state == "COMPLETED":
            self._missing_since = self._missing_since or time.monotonic()
            if time.monotonic() - self._missing_since < NFS_DELAY_S:
                return None
        why = queued.why_over(state, self._losses.lost, self._was_preempted())
        return self._finish(why and f"{why}, after {self._requeue} requeues")

    def _note_changes(self, history: JobHistory, found: list[Change], state: JobState) -> None:
        for change in found:
            self._requeue = change.requeue
            if change.what == "started":
                self._losses.started()
                self._preempted = False
                self._note("started", detail=", ".join(change.nodes))
            else:
                self._note(
                    "requeued",
                    detail=queued.why_requeued(self._losses.lost, self._was_preempted(), state),
                )
                self._losses.requeued()
        self._history = history

    def _was_preempted(self) -> bool:
        return self._preempted or self._read.preempted(self.nodes, self._history.requeue)

    def _note_ended(self) -> None:
        ends = self._read.statuses(sorted(self.nodes), self._history.requeue)
        for name, status in ends.items():
            if status is not None and (name, self._history.requeue) not in self._noted:
                self._noted.add((name, self._history.requeue))
                self._note("ended", name, detail=f"status {status.code}")

    def _note_lost(self) -> None:
        for name, reason in self._losses.look(self.nodes).items():
            self._note("node lost", name, detail=f"Slurm says {reason}")

    def _finish(self, why: str) -> JobResult:
        if why:
            self._note("gave up", detail=why)
        codes = self._read.codes(self.nodes, self._history.requeue)
        self._result = JobResult(codes, {name: self.output(name) for name in self.nodes})
        return self._result

    def _where(self) -> str:
        state = self._queued.state
        if state is None or state.waits:
            reason = f" ({state.reason})" if state is not None and state.reason else ""
            return f"job {self.number} waits in the queue{reason}"
        on = self._read.running(self.nodes, self._history.requeue) or self.nodes
        return f"the job still runs on {', '.join(on)}"

    def _end(self) -> None:
        self._queued.cancel()
        state = self._queued.look() if self.number is not None else None
        if state is not None and not state.over and not state.waits:
            with contextlib.suppress(ClusterError):
                self._kill(self.nodes)
        self._queued.await_end(lost=bool(self._losses.lost))

"""A job in Slurm's queue, as a test holds it."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.described import Job, JobResult
from pytest_mnode.jobs.launched import POLL_S, LaunchedJob
from pytest_mnode.jobs.slurm import files, following
from pytest_mnode.jobs.slurm.following import Change, Course, changes, never_starts
from pytest_mnode.jobs.slurm.losses import Losses
from pytest_mnode.jobs.slurm.names import Names
from pytest_mnode.jobs.slurm.queued import LOOK_S, Queued
from pytest_mnode.jobs.slurm.request import Request, submitting
from pytest_mnode.jobs.slurm.traces import Late, Traces
from pytest_mnode.launchers.slurm import JobState, Slurm
from pytest_mnode.protocol.messages import RUN

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes


class SubmittedJob(LaunchedJob):
    """A torchrun job that sbatch submitted, one torchrun a node. Ends with its test.

    The scheduler starts it again by itself; `poll` and `wait` only see that it did.
    """

    def __init__(
        self, cluster: Nodes, job: Job, request: Request, names: Names, slurm: Slurm
    ) -> None:
        super().__init__(cluster, job)
        self._names = names
        self._request = request
        self._queued = Queued(slurm, names, f"mnode-{self._id[:12]}")
        self._directory = tempfile.TemporaryDirectory(
            prefix="job-", dir=cluster.scratch, ignore_cleanup_errors=True
        )
        self._files = Path(self._directory.name)
        self._traces = Traces(self._files)
        self._course = Course()
        self._losses = Losses(slurm, names, pinned=request.moves)
        self._preempted = False
        self._noted: set[tuple[str, str, int]] = set()
        self._result: JobResult | None = None
        self._looked_at = -LOOK_S
        self._late = Late()

    @classmethod
    def start(
        cls, cluster: Nodes, job: Job, request: Request, names: Names, slurm: Slurm
    ) -> SubmittedJob:
        """Submit it, as is requested but for a name and an output of its own. Raises SlurmError."""
        submitted = cls(cluster, job, request, names, slurm)
        try:
            submitted._submit(names.for_run(request.begin_on))
        except BaseException:
            submitted.close()
            raise
        return submitted

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes it runs on now, or ran on last; before it starts, those asked for."""
        return self._course.nodes

    @property
    def number(self) -> int | None:
        """Slurm's number of the job."""
        return self._queued.number

    def preempt(self, grace_s: float) -> list[str]:
        """As a scheduler that wants the nodes back: SIGTERM to all of its steps by Slurm, and
        SIGKILL to whatever is left `grace_s` seconds later. Slurm requeues it where it may be.

        Names of the nodes that had to be killed.
        """
        on, began = self.nodes, time.time()
        self._queued.slurm.run("scancel", "--signal=TERM", str(self.number))
        end = time.monotonic() + grace_s
        while time.monotonic() < end and self._traces.running(on, self._requeue):
            time.sleep(POLL_S)
        late = self._traces.running(on, self._requeue)
        told = self._traces.told(on, self._requeue)
        for name in on:
            if name in told:
                self._note("signalled", name, [told[name][0]], "SIGTERM", told[name][1])
            else:
                how = "SIGTERM, by the controller's clock: the node did not say"
                self._note("signalled", name, detail=how, time_s=began)
        self._preempted = True
        self._note("preempted", detail=f"{', '.join(late)} killed after {grace_s:g} s" * bool(late))
        if late:
            self._kill(on)
        return late

    def output(self, node: str) -> str:
        """What the job has printed on a node so far, over all its starts; on the first node also
        what Slurm said."""
        return self._traces.output(node, self._requeue, node in self.nodes[:1])

    def poll(self) -> JobResult | None:
        """See how it is; its result once it is over.

        Raises ClusterError where Slurm has been silent for long.
        """
        if self._result is not None:
            return self._result
        self._note_ended()
        if time.monotonic() - self._looked_at < LOOK_S:
            return None
        self._looked_at = time.monotonic()
        if not self._queued.answers():
            return None
        state = self._queued.state
        if state is None or state.over:
            return self._came_to_its_end(state)
        return self._follow(state) if state.known else None

    def close(self) -> None:
        """Take it out of the queue, kill what is left on its nodes, remove its logs.

        Raises ClusterError where it stays in the queue.
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
        places = {
            theirs: files.Place(ours, cluster.address(ours), cluster.fabric_interface(ours))
            for ours, theirs in self._names.slurm.items()
        }
        plan = files.Plan(self._id, job, places).write(self._files)
        argv = [cluster.python, "-m", "pytest_mnode.jobs.slurm.lead", str(plan)]
        output = str(self._files / files.OUTPUT)
        request = replace(self._request, output=output)
        env = {**submitting(os.environ), RUN: cluster.mark}
        text = f"#!/bin/sh\nexec {shlex.join(argv)}\n"
        self._queued.submit(text, env, request.options())
        self._course = Course(nodes=nodes)
        self._note("submitted", detail=f"job {self.number} for {', '.join(nodes)}")

    def _follow(self, state: JobState) -> JobResult | None:
        """Note what happened; its result where it can come to nothing any more."""
        course, found = changes(self._course, state)
        if found:
            self._note_ended()
        again = state.waits and course.requeue > 0
        if found or again or self._losses.due:
            self._note_lost()
        self._note_changes(course, found, state)
        if again and self.number is not None:
            self._losses.let_move(self.number)
        why = never_starts(state) or (again and self._losses.waited_long(self._job.back_within_s))
        if self._requeue > self._job.requeues:
            why = f"started again {self._requeue} times, {self._job.requeues} were allowed"
        if not why:
            return None
        self._end()
        return self._finish(why)

    def _came_to_its_end(self, state: JobState | None) -> JobResult | None:
        self._note_ended()
        self._note_lost()
        course, found = changes(self._course, state) if state is not None else (self._course, [])
        if state is not None and course != self._course:  # since the last look
            self._note_changes(course, found, state)
            self._note_ended()
            self._note_lost()
        silent = self._traces.running(self.nodes, self._course.requeue)
        if state is not None and state.state == "COMPLETED" and self._late.may_come(silent):
            return None
        why = following.why_over(state, self._losses.lost, self._told())
        return self._finish(why and f"{why}, after {self._requeue} requeues")

    def _note_changes(self, course: Course, found: list[Change], state: JobState) -> None:
        for change in found:
            self._requeue = change.requeue
            if change.what == "started":
                self._losses.started()
                self._preempted = False
                self._note("started", detail=", ".join(change.nodes))
            else:
                self._note(
                    "requeued",
                    detail=following.why_requeued(self._losses.lost, self._told(), state),
                )
                self._losses.requeued()
        self._course = course

    def _told(self) -> bool:
        """Whether its last start was preempted."""
        return self._preempted or self._traces.preempted(self.nodes, self._course.requeue)

    def _once(self, what: str, node: str) -> bool:
        """Whether this was not noted yet of this start; now it is."""
        key = (what, node, self._course.requeue)
        new = key not in self._noted
        self._noted.add(key)
        return new

    def _note_ended(self) -> None:
        ends = self._traces.statuses(sorted(self.nodes), self._course.requeue)
        for name, status in ends.items():
            if status is not None and self._once("ended", name):
                self._note("ended", name, detail=f"status {status.code}")

    def _note_lost(self) -> None:
        for name, said in self._losses.look(self.nodes).items():
            self._note("node lost", name, detail=f"Slurm says {said}")

    def _finish(self, why: str) -> JobResult:
        if why:
            self._note("gave up", detail=why)
        codes = self._traces.codes(self.nodes, self._course.requeue)
        self._result = JobResult(codes, {name: self.output(name) for name in self.nodes})
        return self._result

    def _where(self) -> str:
        state = self._queued.state
        if state is None or state.waits:
            reason = f" ({state.reason})" if state is not None and state.reason else ""
            return f"job {self.number} waits in the queue{reason}"
        on = self._traces.running(self.nodes, self._course.requeue) or self.nodes
        return f"the job still runs on {', '.join(on)}"

    def _end(self) -> None:
        """Out of the queue, and off its nodes."""
        self._queued.cancel()
        state = self._queued.look() if self.number is not None else None
        if state is not None and not state.over and not state.waits:
            with contextlib.suppress(ClusterError):
                self._kill(self.nodes)
        self._queued.await_end(lost=bool(self._losses.lost))

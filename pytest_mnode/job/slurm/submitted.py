"""A job in Slurm's queue, as a test holds it."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.errors import ClusterError
from pytest_mnode.job import processes
from pytest_mnode.job.described import Job, JobResult
from pytest_mnode.job.launched import POLL_S, LaunchedJob
from pytest_mnode.job.slurm import files, queue
from pytest_mnode.job.slurm.following import Course, changes, never_starts, why_requeued
from pytest_mnode.job.slurm.guard import Guard
from pytest_mnode.job.slurm.names import Names
from pytest_mnode.job.slurm.request import Request, submitting
from pytest_mnode.slurm import JobState, Slurm, SlurmError
from pytest_mnode.world.messages import RUN

if TYPE_CHECKING:
    from pytest_mnode.handle import Cluster

LOOK_S = 0.25
"""Between two questions to the scheduler."""
_NODES_LOOK_S = 2.0
_END_S = 90.0
"""For the scheduler to end a job that was cancelled; KillWait is 30 s where nobody set it."""
_SIGNAL_S = 5.0
LOST = 128 + 9
"""Exit status of torchrun where its node went, or Slurm killed it, before it could say one."""


class SubmittedJob(LaunchedJob):
    """A torchrun job that sbatch submitted, one torchrun a node. Ends with its test.

    The scheduler starts it again by itself; `poll` and `wait` only see that it did.
    """

    def __init__(
        self, cluster: Cluster, job: Job, request: Request, names: Names, slurm: Slurm
    ) -> None:
        super().__init__(cluster, job)
        self._names = names
        self._slurm = slurm
        self._request = request
        self._name = f"mnode-{self._id[:12]}"
        self._directory = tempfile.TemporaryDirectory(prefix="job-", dir=cluster.scratch)
        self._files = Path(self._directory.name)
        self._course = Course()
        self._number: int | None = None
        self._state: JobState | None = None
        self._guard: Guard | None = None
        self._pinned = request.moves
        self._lost: tuple[str, ...] = ()
        self._preempted = False
        self._noted: set[tuple[str, str, int]] = set()
        self._result: JobResult | None = None
        self._looked_at = self._nodes_looked_at = -LOOK_S
        self._waits_since: float | None = None

    @classmethod
    def start(
        cls, cluster: Cluster, job: Job, request: Request, names: Names, slurm: Slurm
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
        return self._number

    def preempt(self, grace_s: float) -> list[str]:
        """As a scheduler that wants the nodes back: SIGTERM to all of its steps by Slurm, and
        SIGKILL to whatever is left `grace_s` seconds later. Slurm requeues it where it may be.

        Names of the nodes that had to be killed.
        """
        on, began = self.nodes, time.time()
        self._slurm.run("scancel", "--signal=TERM", str(self._number))
        end = time.monotonic() + grace_s
        while time.monotonic() < end and self._open(on):
            time.sleep(POLL_S)
        late = self._open(on)
        self._note_told(on)
        for name in on:
            if self._once("told", name):
                detail = "SIGTERM, by the controller's clock: the node did not say"
                self._note("signalled", name, detail=detail, time_s=began)
        self._preempted = True
        self._note("preempted", detail=f"{', '.join(late)} killed after {grace_s:g} s" * bool(late))
        if late:
            self._kill(on)
        return late

    def output(self, node: str) -> str:
        """What the job has printed on a node so far, over all its starts; on the first node also
        what Slurm said."""
        logs = [files.log_of(self._files, node, n) for n in range(self._requeue + 1)]
        if self.nodes and node == self.nodes[0]:
            logs.append(self._files / files.OUTPUT)
        return "".join(path.read_text(errors="replace") for path in logs if path.exists())

    def poll(self) -> JobResult | None:
        """See how it is; its result once it is over. Raises SlurmError where Slurm is silent."""
        if self._result is not None:
            return self._result
        self._note_ended()
        if time.monotonic() - self._looked_at < LOOK_S:
            return None
        state = self._look()
        if state is None or state.over:
            self._note_ended()
            self._note_lost()
            return self._finish(self._why_over(state))
        if not state.known:
            return None
        course, found = changes(self._course, state)
        if found or time.monotonic() - self._nodes_looked_at > _NODES_LOOK_S:
            self._note_lost()
        for change in found:
            self._requeue = change.requeue
            if change.what == "started":
                self._begin_life(change.nodes)
            else:
                why = why_requeued(self._lost, self._preempted or self._was_told(), state)
                self._note("requeued", detail=why)
                self._waits_since = time.monotonic()
        self._course = course
        if state.waits and course.requeue:
            self._let_move()
        why = never_starts(state) or self._waited_long(state)
        if self._requeue > self._job.requeues:
            why = f"started again {self._requeue} times, {self._job.requeues} were allowed"
        return self._give_up(why) if why else None

    def close(self) -> None:
        """Take it out of the queue, kill what is left on its nodes, remove its logs.

        Raises ClusterError where it stays in the queue, or SIGKILL does not end a process.
        """
        try:
            self._end()
        finally:
            if self._guard is not None:
                self._guard.close()
                self._guard = None
            self._directory.cleanup()

    def _submit(self, nodes: tuple[str, ...]) -> None:
        cluster, job = self._cluster, self._job
        places = {
            theirs: files.Place(ours, cluster.address(ours), cluster.fabric_interface(ours))
            for ours, theirs in self._names.slurm.items()
        }
        plan = files.Plan(self._id, job, places).write(self._files)
        argv = [cluster.python, "-m", "pytest_mnode.job.slurm.lead", str(plan)]
        output = str(self._files / files.OUTPUT)
        request = replace(self._request, name=self._name, output=output)
        env = {**submitting(os.environ), RUN: cluster.mark}
        self._guard = Guard(self._name)
        text = f"#!/bin/sh\nexec {shlex.join(argv)}\n"
        self._number = queue.submit(text, env, request.options())
        self._course = Course(nodes=nodes)
        self._note("submitted", detail=f"job {self._number} for {', '.join(nodes)}")

    def _look(self) -> JobState | None:
        assert self._number is not None
        state = self._slurm.job(self._number)
        if state is not None:
            state = replace(state, nodes=self._names.for_run(state.nodes))
        self._state = state
        self._looked_at = time.monotonic()
        return self._state

    def _begin_life(self, nodes: tuple[str, ...]) -> None:
        self._lost, self._preempted, self._waits_since = (), False, None
        self._course = Course(self._requeue + 1, nodes, self._requeue)
        self._note("started", detail=", ".join(nodes))

    def _open(self, on: Sequence[str]) -> list[str]:
        """Nodes on which torchrun has not ended."""
        return [n for n in on if files.read_status(self._files, n, self._requeue) is None]

    def _was_told(self) -> bool:
        """Whether its last start was told to end, or a rank said so."""
        starts = [files.read_status(self._files, n, self._course.requeue) for n in self.nodes]
        return any(status.preempted or status.told for status in starts if status is not None)

    def _once(self, what: str, node: str) -> bool:
        """Whether this was not noted yet of this start; now it is."""
        key = (what, node, self._course.requeue)
        new = key not in self._noted
        self._noted.add(key)
        return new

    def _note_ended(self) -> None:
        for name in sorted(self.nodes):
            status = files.read_status(self._files, name, self._course.requeue)
            if status is not None and self._once("ended", name):
                self._note("ended", name, detail=f"status {status.code}")

    def _note_told(self, on: Sequence[str]) -> None:
        """When torchrun was told to end, by the clocks of its nodes."""
        for name in on:
            told = files.read_told(self._files, name, self._course.requeue)
            if told is not None and self._once("told", name):
                self._note("signalled", name, [told[0]], "SIGTERM", told[1])

    def _note_lost(self) -> None:
        self._nodes_looked_at = time.monotonic()
        for node in self._slurm.nodes(self._names.for_slurm(self.nodes)) if self.nodes else ():
            [name] = self._names.for_run([node.name])
            if node.lost and name not in self._lost:
                self._lost += (name,)
                self._note("node lost", name, detail=f"Slurm says {node.text}")

    def _let_move(self) -> None:
        """Have Slurm forget on which nodes the job had to begin, once one of them is gone.

        It does so for a job that waits only, and not while the last start is being taken down.
        """
        if self._pinned and not self._lost:
            self._note_lost()
        if self._pinned and self._lost:
            with contextlib.suppress(SlurmError):
                self._slurm.run("scontrol", "update", f"JobId={self._number}", "ReqNodeList=")
                self._pinned = False

    def _waited_long(self, state: JobState) -> str:
        if self._waits_since is None or not state.waits or not self._lost:
            return ""
        limit_s = self._job.back_within_s
        if time.monotonic() - self._waits_since < limit_s:
            return ""
        return f"{', '.join(self._lost)} not back within {limit_s:g} s"

    def _why_over(self, state: JobState | None) -> str:
        """Why it is not started again though it might be asked; "" where it just ended."""
        if state is not None and state.state == "COMPLETED":
            return ""
        if self._lost:
            return f"{', '.join(self._lost)} is gone, after {self._requeue} requeues"
        if state is not None and state.state not in ("COMPLETED", "FAILED"):
            return f"Slurm ended it: {state.state}" + f" ({state.reason})" * bool(state.reason)
        if self._preempted or self._was_told():
            return f"preempted, after {self._requeue} requeues"
        return ""

    def _give_up(self, why: str) -> JobResult:
        self._end()
        return self._finish(why)

    def _finish(self, why: str) -> JobResult:
        if why:
            self._note("gave up", detail=why)
        found = {n: files.read_status(self._files, n, self._course.requeue) for n in self.nodes}
        codes = {name: LOST if status is None else status.code for name, status in found.items()}
        self._result = JobResult(codes, {name: self.output(name) for name in self.nodes})
        return self._result

    def _where(self) -> str:
        state = self._state
        if state is None or state.waits:
            reason = f" ({state.reason})" if state is not None and state.reason else ""
            return f"job {self._number} waits in the queue{reason}"
        return f"the job still runs on {', '.join(self._open(self.nodes) or self.nodes)}"

    def _kill(self, on: Sequence[str]) -> None:
        """What is marked as the job's, by our own steps on its nodes."""
        left = []
        there = processes.living(self._cluster, on)
        for name, ended in processes.end(self._cluster, there, self._id).items():
            if ended.killed:
                self._note("killed", name, ended.killed)
            left += [f"{pid} on {name}" for pid in ended.left]
        if left:
            raise ClusterError(f"SIGKILL did not end pids {', '.join(left)}")

    def _end(self) -> None:
        """Out of the queue, and off its nodes."""
        if self._number is None or (self._state is not None and self._state.over):
            return
        self._slurm.cancel(self._number)
        state = self._look()
        if state is not None and not state.over and not state.waits:
            with contextlib.suppress(ClusterError):
                self._kill(self.nodes)
        end = time.monotonic() + _END_S
        while (state := self._look()) is not None and not state.over:
            if time.monotonic() > end:
                # A node that went takes its time to be given up; it holds nothing any more.
                if "COMPLETING" in {state.state, *state.flags} and self._lost:
                    return
                raise ClusterError(f"job {self._number} is still {state.state} after scancel")
            time.sleep(LOOK_S)

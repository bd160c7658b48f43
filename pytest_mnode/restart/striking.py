"""The reference job under torchrun: run whole once, and once for each kill."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.errors import ClusterError, NodeLostError, TimeLimitError
from pytest_mnode.job import JobEvent, JobResult, RunningJob, processes
from pytest_mnode.restart import watching
from pytest_mnode.restart.evidence import Struck
from pytest_mnode.restart.judging import Finding, judge
from pytest_mnode.restart.lives import History, Life, history_of
from pytest_mnode.restart.planning import HELD, STRIKE_AFTER, Plan, plan
from pytest_mnode.spec.restart import Kill, RestartCriterion
from pytest_mnode.train.config import JobConfig
from pytest_mnode.train.records import read_records
from pytest_mnode.wrong import Wrong

if TYPE_CHECKING:
    from pytest_mnode.handle import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

_START_LIMIT_S = 180.0
"""Of a job, from its launch to the step that a kill waits for."""
_PATIENCE = 2.0
"""How many times `within` a job is waited for, so that a late one is measured, not only missed."""
_END_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Killed:
    """What came of one kill: findings, and lines for whoever reads the log."""

    findings: Sequence[Finding]
    lines: Sequence[str]

    def record(self, measure: Measure) -> None:
        """Have every finding judged with the test."""
        for finding in self.findings:
            finding.record(measure)


def judged_kill(
    kill: Kill, promise: RestartCriterion, cluster: Cluster, spec: Spec, base: Path
) -> Killed:
    """Kill the reference job, see it come back, and compare it with one that was not killed.

    base: a directory of this session on this machine. The run that is not killed is made once in
    it for each job and set of nodes.
    """
    place = watching.shared_place(cluster, spec, base)
    if isinstance(place, str):
        why = "a job needs a directory that all nodes share"
        return Killed(
            [Wrong("kills that the job did not come back from", None, why, note=place)], []
        )
    planned = plan(promise, cluster.nodes, cluster.procs_per_node)
    whole = uninterrupted(planned, promise, cluster, place, base)
    with watching.run_directory(cluster, planned.eye, place, kill) as directory:
        stroke = _Stroke(kill, promise, planned, cluster, directory)
        struck, cut = stroke.run(base / f"{kill}-records")
    findings = judge(whole, cut, struck, planned.terms(kill, promise))
    return Killed(findings, [struck.what, *map(str, stroke.events)])


def uninterrupted(
    planned: Plan, promise: RestartCriterion, cluster: Cluster, place: Path, base: Path
) -> History:
    """The run that nobody kills, by the same torchrun; made once in a session."""
    kept = base / f"whole-{planned.digest()}"
    if not (kept / "made").exists():
        with (
            watching.run_directory(cluster, planned.eye, place, "whole") as directory,
            contextlib.closing(
                _launched(planned, promise, cluster, planned.whole(directory))
            ) as job,
        ):
            with contextlib.suppress(TimeLimitError):
                job.wait(_START_LIMIT_S)
            watching.read_history(cluster, planned.eye, directory, kept)
        (kept / "made").touch()
    return history_of(read_records(kept))


def _launched(
    planned: Plan, promise: RestartCriterion, cluster: Cluster, config: JobConfig
) -> RunningJob:
    path = watching.write_config(cluster, planned.eye, config)
    return cluster.launch(planned.job(path, promise))


@dataclass(slots=True)
class _Stroke:
    """One run that is killed."""

    kill: Kill
    promise: RestartCriterion
    plan: Plan
    cluster: Cluster
    directory: str
    events: Sequence[JobEvent] = ()

    def run(self, into: Path) -> tuple[Struck, History]:
        """Launch, strike, wait; what was seen, and the records, which are brought `into`."""
        config = self.plan.cut(self.kill, self.directory)
        with contextlib.closing(_launched(self.plan, self.promise, self.cluster, config)) as job:
            ready = self._await(job, *self._moment(), 1, _START_LIMIT_S)
            struck = self._struck(job, into) if ready else self._not_ready(job)
            self.events = job.events
        return struck, self._history(into)

    def _moment(self) -> tuple[int, int]:
        """Ranks and step to wait for before the kill; no ranks: for a checkpoint held open."""
        return (0, HELD) if self.kill == "checkpoint" else (self.plan.ranks, STRIKE_AFTER)

    def _not_ready(self, job: RunningJob) -> Struck:
        why = (
            f"not killed: {self._moment()[1]} steps were not reached; {_how_ended(job, job.poll())}"
        )
        return Struck(why, time.time(), "the controller", None, None, False, why)

    def _struck(self, job: RunningJob, into: Path) -> Struck:
        what, at, clock, late = self._strike(job)
        shelf = watching.read_shelf(self.cluster, self.plan.eye, self.directory)
        before = self._history(into)
        if len(before.lives) != 1:
            shelf = None  # it may hold what the next life saved
        if self.kill == "node" and self.promise.node_loss == "rebooted":
            self._boot_again(job)
        patience = _PATIENCE * self.promise.within_s
        self._await(job, self.plan.ranks_after(self.kill), 0, 2, patience)
        alive = self._alive(before.lives[0]) if before.lives else None
        result: JobResult | None = None
        with contextlib.suppress(TimeLimitError):
            result = job.wait(_END_LIMIT_S if job.poll() is None else 0.0)
        return Struck(
            what=what,
            at=at,
            clock=clock,
            shelf=shelf,
            alive=alive,
            came_back=result is not None and result.ok,
            ended_how=_how_ended(job, result),
            gently=self.kill == "preemption",
            in_writing=HELD if self.kill == "checkpoint" else None,
            late=late,
            notes=_notes(job),
        )

    def _strike(self, job: RunningJob) -> tuple[str, float, str, Sequence[str]]:
        """What was done, when, by whose clock, and which nodes were killed after their grace."""
        late: Sequence[str] = ()
        if self.kill == "node":
            at = time.time()
            self.cluster.power_off(self.plan.victim)
            return f"power-off of {self.plan.victim}", at, "the controller", late
        if self.kill == "preemption":
            late = job.preempt(self.promise.grace_s)
            what = f"SIGTERM to the job, with {self.promise.grace_s:g} s to end"
        else:
            # Rank 0 is who commits a checkpoint.
            rank = 0 if self.kill == "checkpoint" else min(1, self.plan.ranks - 1)
            job.kill(rank=rank, signal=signal.SIGKILL)
            what = f"SIGKILL of rank {rank}"
        sent = [event for event in job.events if event.what == "signalled"]
        first = min(sent, key=lambda event: event.time_s)
        if self.kill != "preemption":
            what += f" on {first.node}"
        if self.kill == "checkpoint":
            what += f" while the checkpoint of step {HELD} was written"
        return what, first.time_s, str(first.node), late

    def _boot_again(self, job: RunningJob) -> None:
        """As an operator does, once the launcher has seen that the node is gone."""
        end = time.monotonic() + self.promise.within_s
        while not any(event.what == "node lost" for event in job.events):
            if job.poll() is not None or time.monotonic() > end:
                return
            time.sleep(0.02)
        self.cluster.power_on(self.plan.victim)

    def _await(self, job: RunningJob, ranks: int, step: int, starts: int, limit_s: float) -> bool:
        return watching.await_steps(
            self.cluster,
            self.plan.eye,
            self.directory,
            ranks=ranks,
            step=step,
            starts=starts,
            limit_s=limit_s,
            over=lambda: job.poll() is not None,
        )

    def _history(self, into: Path) -> History:
        return watching.read_history(self.cluster, self.plan.eye, self.directory, into)

    def _alive(self, life: Life) -> list[str] | None:
        """Processes of a killed life that still run; what was on a lost node went with it."""
        found = []
        for node, known in life.processes.items():
            with contextlib.suppress(NodeLostError):
                try:
                    running = processes.alive(self.cluster, {node: known})[node]
                except ClusterError as error:
                    if isinstance(error, NodeLostError):
                        raise
                    return None
                found += [f"pid {pid} on {node}" for pid in sorted(running)]
        return found


def _how_ended(job: RunningJob, result: JobResult | None) -> str:
    """In words, with what the ranks said last."""
    if result is None:
        return f"the job still ran on {', '.join(job.nodes)}"
    codes = ", ".join(f"{code} on {node}" for node, code in result.returncodes.items())
    said = [
        line.strip()
        for text in result.output.values()
        for line in text.splitlines()
        if line.startswith("train: ")
    ]
    return f"torchrun ended with {codes}" + (f"; {said[-1]}" if said else "")


def _notes(job: RunningJob) -> tuple[str, ...]:
    """How often the launcher started the job again, and where."""
    requeued = [event for event in job.events if event.what == "requeued"]
    if not requeued:
        return ("by torchrun's restart",)
    why = "; ".join(event.detail for event in requeued)
    return (f"requeued: {why}; on {', '.join(job.nodes)}",)

"""One run of the reference job under torchrun, killed once or twice."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart import watching
from pytest_mnode.criteria.restart.evidence import Struck
from pytest_mnode.criteria.restart.lives import History, Life
from pytest_mnode.criteria.restart.planning import HELD, STRIKE_AFTER, Plan
from pytest_mnode.errors import ClusterError, MnodeError, TimeLimitError
from pytest_mnode.jobs import JobEvent, JobResult, LaunchedJob, processes
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.spec.restart import Kill, RestartCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster

START_LIMIT_S = 180.0
"""Of a job, from its launch to the step that a kill waits for."""
_PATIENCE = 2.0
"""How many times `within` a job is waited for, so that a late one is measured, not only missed."""
_END_LIMIT_S = 120.0


def launched(
    planned: Plan, promise: RestartCriterion, cluster: Cluster, config: JobConfig
) -> LaunchedJob:
    """Start the job with this config, which is put into its directory."""
    path = watching.write_config(cluster, planned.eye, config)
    return cluster.launch(planned.job(path, promise))


@dataclass(slots=True)
class Ordeal:
    """A run and its kills, in their order. into: a directory here, to which records are brought."""

    kills: Sequence[Kill]
    promise: RestartCriterion
    plan: Plan
    cluster: Cluster
    directory: str
    into: Path
    struck: dict[Kill, Struck] = field(default_factory=dict)
    events: Sequence[JobEvent] = ()

    def run(self) -> History:
        """Launch, strike, wait; the records, while `struck` says what else was seen."""
        config = self.plan.cut(self.kills, self.directory)
        with contextlib.closing(launched(self.plan, self.promise, self.cluster, config)) as job:
            for number, kill in enumerate(self.kills):
                self._strike_and_wait(job, kill, number)
            result: JobResult | None = None
            with contextlib.suppress(TimeLimitError):
                result = job.wait(_END_LIMIT_S)
            self._over(how_ended(job, result), result is not None and result.ok)
            self.events = job.events
        return self._history()

    def _strike_and_wait(self, job: LaunchedJob, kill: Kill, number: int) -> None:
        lives = len(self._history().lives) if number else 1
        ranks, step = (0, HELD) if kill == "checkpoint" else (self.plan.ranks, STRIKE_AFTER[number])
        reached, unseen, _ = self._await(job, ranks, step, lives, START_LIMIT_S)
        if not reached:
            result = job.poll()
            how = how_ended(job, result) if result else f"waited {START_LIMIT_S:g} s"
            how = unseen or how
            moment = f"step {step} was not " + ("saved" if kill == "checkpoint" else "reached")
            why = f"there was no kill: {moment} in start {lives} of the run; {how}"
            self.struck[kill] = Struck("no kill", time.time(), "nobody", missed=why)
            return
        first = last = time.monotonic()
        blow = self._strike(job, kill)
        if kill != "node":  # that one is timed from when it is begun
            last = time.monotonic()
        if blow.missed:
            self.struck[kill] = blow
            return
        before = [k for k, s in self.struck.items() if not s.missed]
        if before:
            self.struck[before[-1]] = replace(self.struck[before[-1]], lives=lives)
        shelf = watching.read_shelf(self.cluster, self.plan.eye, self.directory)
        seen = self._history().lives
        if kill == "node" and self.promise.node_loss == "rebooted":
            self._boot_again(job)
        patience = _PATIENCE * self.promise.within_s
        ranks = self.plan.ranks_after(kill)
        back, unseen, seen_at = self._await(job, ranks, 0, lives + 1, patience)
        result = job.poll()
        how = how_ended(job, result) if result else f"nothing in {patience:g} s"
        self.struck[kill] = replace(
            blow,
            killed=lives - 1,
            # It may hold what the next life saved.
            shelf=shelf if len(seen) == lives else None,
            alive=self._alive(seen[lives - 1]) if len(seen) >= lives else None,
            came_back=back,
            ended_how=unseen or how,
            gently=kill == "preemption",
            in_writing=HELD if kill == "checkpoint" else None,
            notes=_notes(job, blow.at),
            between_s=_between(first, last, seen_at),
        )

    def _over(self, how: str, well: bool) -> None:
        """Add how the job ended to the last kill that it came back from."""
        last = next((k for k in reversed(self.struck) if not self.struck[k].missed), None)
        if last is not None and self.struck[last].came_back:
            self.struck[last] = replace(self.struck[last], came_back=well, ended_how=how)

    def _strike(self, job: LaunchedJob, kill: Kill) -> Struck:
        """Do it: what, when, by whose clock."""
        if kill == "node":
            at = time.time()
            try:
                self.cluster.power_off(self.plan.victim)
            except MnodeError as error:
                return Struck("no kill", at, "nobody", missed=f"there was no kill: {error}")
            return Struck(f"power-off of {self.plan.victim}", at, "the controller")
        known, at = len(job.events), time.time()
        late: Sequence[str] = ()
        try:
            if kill == "preemption":
                late = job.preempt(self.promise.grace_s)
                what = f"SIGTERM to the job, with {self.promise.grace_s:g} s to end"
            else:
                # Rank 0 is who commits a checkpoint.
                rank = 0 if kill == "checkpoint" else min(1, self.plan.ranks - 1)
                job.kill(rank=rank, signal=signal.SIGKILL)
                what = f"SIGKILL of rank {rank}"
        except MnodeError as error:
            return Struck("no kill", at, "nobody", missed=f"there was no kill: {error}")
        sent = [event for event in job.events[known:] if event.what == "signalled"]
        if not sent:
            why = f"there was no kill: no process was there to get a signal; {_ended_now(job)}"
            return Struck("no kill", at, "nobody", missed=why)
        first = min(sent, key=lambda event: event.time_s)
        if kill != "preemption":
            what += f" on {first.node}"
        if kill == "checkpoint":
            what += f" while the checkpoint of step {HELD} was written"
        return Struck(what, first.time_s, str(first.node), late=late)

    def _boot_again(self, job: LaunchedJob) -> None:
        """As an operator does, once the launcher has seen that the node is gone."""
        end = time.monotonic() + self.promise.within_s
        while not any(event.what == "node lost" for event in job.events):
            if job.poll() is not None or time.monotonic() > end:
                return
            time.sleep(0.02)
        self.cluster.power_on(self.plan.victim)

    def _await(
        self, job: LaunchedJob, ranks: int, step: int, starts: int, limit_s: float
    ) -> tuple[bool | None, str, watching.Seen | None]:
        """Whether it was seen, see await_steps; None, and why, where it could not be; and when."""
        try:
            seen = watching.await_steps(
                self.cluster,
                self.plan.eye,
                self.directory,
                ranks=ranks,
                step=step,
                starts=starts,
                limit_s=limit_s,
                over=lambda: job.poll() is not None,
            )
        except MnodeError as error:
            return None, str(error), None
        return seen is not None, "", seen

    def _history(self) -> History:
        return watching.read_history(self.cluster, self.plan.eye, self.directory, self.into)

    def _alive(self, life: Life) -> list[str] | None:
        """Processes of a killed life that still run; what was on a lost node went with it."""
        there = processes.living(self.cluster, life.processes)
        try:
            running = processes.alive(self.cluster, {node: life.processes[node] for node in there})
        except ClusterError:
            return None
        return [f"pid {pid} on {node}" for node in there for pid in sorted(running[node])]


def _between(first: float, last: float, seen: watching.Seen | None) -> tuple[float, float] | None:
    """Seconds from a kill, struck between `first` and `last`, to what was seen after it."""
    if seen is None:
        return None
    least = 0.0 if seen.not_before is None else max(0.0, seen.not_before - last)
    return least, seen.not_after - first


def _ended_now(job: LaunchedJob) -> str:
    result = job.poll()
    return how_ended(job, result) if result is not None else "the job had not ended"


def how_ended(job: LaunchedJob, result: JobResult | None) -> str:
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


def _notes(job: LaunchedJob, since: float) -> tuple[str, ...]:
    """How the job was started again, and where."""
    requeued = [e for e in job.events if e.what == "requeued" and e.time_s >= since]
    if not requeued:
        return ("by torchrun's restart",)
    why = "; ".join(event.detail for event in requeued)
    return (f"requeued: {why}; on {', '.join(job.nodes)}",)

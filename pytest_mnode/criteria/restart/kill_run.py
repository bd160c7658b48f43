"""One run of the reference job under torchrun, killed once or several times."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.restart import run_files
from pytest_mnode.criteria.restart.history import History, Incarnation
from pytest_mnode.criteria.restart.judging import KillReport
from pytest_mnode.criteria.restart.plan import KILL_AFTER, Plan
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import ClusterError, MnodeError, TimeLimitError
from pytest_mnode.jobs import JobEvent, JobResult, LaunchedJob
from pytest_mnode.jobs.torchrun import last_line
from pytest_mnode.logs.causes import ENDINGS, causes
from pytest_mnode.progress import progress
from pytest_mnode.spec.restart import Kill, RestartCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster

START_LIMIT_S = 180.0
"""Limit from the launch of a job to the step that a kill waits for."""
_PATIENCE = 2.0
"""Wait for a job this many times `within`, so that a late return is measured too."""
_END_LIMIT_S = 120.0
_NOTICED_S = 10.0


@dataclass(slots=True)
class KillRun:
    """A run and its kills, in order. into: local directory to which records are copied.

    reports: one per kill; none for the kills after one that the job did not survive.
    """

    kills: Sequence[Kill]
    promise: RestartCriterion
    plan: Plan
    cluster: Cluster
    directory: str
    into: Path
    reports: dict[Kill, KillReport] = field(default_factory=dict)
    events: Sequence[JobEvent] = ()

    def run(self) -> History:
        """Launch the job, kill it, wait for its end, and return the history of the run."""
        config = self.plan.cut(self.kills, self.directory)
        path = run_files.write_config(self.cluster, self.plan.observer_node, config)
        with contextlib.closing(self.cluster.launch(self.plan.job(path, self.promise))) as job:
            for number, kill in enumerate(self.kills):
                progress(f"kill: {kill}", number, len(self.kills))
                report = self._kill_and_wait(job, kill, number)
                self.reports[kill] = report
                if report.stalled:
                    self.reports |= dict.fromkeys(self.kills[number:], report)
                    break
                if not report.missed and not report.came_back:
                    break
            result: JobResult | None = None
            if all(
                not report.stalled and (report.missed or report.came_back)
                for report in self.reports.values()
            ):
                with contextlib.suppress(TimeLimitError):
                    result = job.wait(_END_LIMIT_S)
                self._note_the_end(_how_ended(job, result), result is not None and result.ok)
            self.events = job.events
        return self._history()

    def _kill_and_wait(self, job: LaunchedJob, kill: Kill, number: int) -> KillReport:
        started = len(self._history().incarnations) if number else 1
        step = KILL_AFTER[kill]
        ranks = 0 if kill == "checkpoint" else self.plan.ranks
        reached, unseen, _ = self._await(job, ranks, step, started, START_LIMIT_S)
        if not reached:
            result = job.poll()
            how = _how_ended(job, result) if result else _how_it_waits(job)
            moment = f"step {step} was not " + ("saved" if kill == "checkpoint" else "reached")
            missed = _missed(f"{moment} in start {started} of the run; {unseen or how}")
            return replace(missed, stalled=result is None and not unseen)
        first = last = time.monotonic()
        report = self._kill(job, kill)
        if kill != "node":  # a lost node is timed from the beginning of its power-off
            last = time.monotonic()
        if report.missed:
            return report
        before = [one for one in self.reports if not self.reports[one].missed]
        if before:
            changed = replace(self.reports[before[-1]], incarnations=started)
            self.reports[before[-1]] = changed
        listing = run_files.list_store(self.cluster, self.plan.observer_node, self.directory)
        seen = self._history().incarnations
        if kill == "node" and self.promise.node_loss == "rebooted":
            self._boot_again(job)
        patience = _PATIENCE * self.promise.within_s
        ranks = self.plan.ranks_after(kill)
        back, unseen, seen_between = self._await(job, ranks, 0, started + 1, patience)
        result, queued_s = job.poll(), _queued_s(job, report.at)
        how = _how_ended(job, result) if result else f"no new step within {patience:g} s"
        if not back and result is None and queued_s == math.inf:
            back, how = None, f"requeued, and not started again within {patience:g} s"
        return replace(
            report,
            queued_s=queued_s,
            incarnation=started - 1,
            # A later listing may include checkpoints of the next incarnation.
            listing=listing if len(seen) == started else None,
            alive=_alive(job, seen[started - 1]) if len(seen) >= started else None,
            came_back=back,
            ended_how=unseen or how,
            preempted=kill == "preemption",
            in_writing=step if kill == "checkpoint" else None,
            notes=_notes(job, report.at),
            between_s=_between(first, last, seen_between),
        )

    def _note_the_end(self, how: str, well: bool) -> None:
        """Add how the job ended to the report of the last kill."""
        last = next((k for k in reversed(self.reports) if not self.reports[k].missed), None)
        if last is not None:
            self.reports[last] = replace(self.reports[last], came_back=well, ended_how=how)

    def _kill(self, job: LaunchedJob, kill: Kill) -> KillReport:
        """Kill the job, and report what was done, when, and by whose clock."""
        known, at = len(job.events), time.time()
        late: Sequence[str] = ()
        try:
            if kill == "node":
                self.cluster.power_off(self.plan.victim)
                return KillReport(f"power-off of {self.plan.victim}", at, "the controller")
            if kill == "preemption":
                late = job.preempt(self.promise.grace_s)
                what = f"SIGTERM to the job, with {self.promise.grace_s:g} s to end"
            else:
                # Rank 0 commits checkpoints.
                rank = 0 if kill == "checkpoint" else min(1, self.plan.ranks - 1)
                job.kill(rank=rank, signal=signal.SIGKILL)
                what = f"SIGKILL of rank {rank}"
        except MnodeError as error:
            result = _end_of(job)
            how = f"; {_how_ended(job, result)}" if result is not None else ""
            return _missed(f"{error}{how}")
        sent = [event for event in job.events[known:] if event.what == "signalled"]
        if not sent:
            result = _end_of(job)
            state = _how_ended(job, result) if result is not None else "the job had not ended"
            return _missed(f"there was no process to signal; {state}")
        first = min(sent, key=lambda event: event.time_s)
        if kill != "preemption":
            what += f" on {first.node}"
        if kill == "checkpoint":
            what += f" while the checkpoint of step {KILL_AFTER[kill]} was written"
        return KillReport(what, first.time_s, str(first.node), late=late)

    def _boot_again(self, job: LaunchedJob) -> None:
        """Boot the lost node, as an operator does, once the launcher has noticed the loss."""
        end = time.monotonic() + self.promise.within_s
        while not any(event.what == "node lost" for event in job.events):
            if job.poll() is not None or time.monotonic() > end:
                return
            time.sleep(0.02)
        self.cluster.power_on(self.plan.victim)

    def _await(
        self, job: LaunchedJob, ranks: int, step: int, starts: int, limit_s: float
    ) -> tuple[bool | None, str, run_files.SeenBetween | None]:
        """Whether await_steps saw the step (None if not known), why it is not known, and when."""
        try:
            seen = run_files.await_steps(
                self.cluster,
                self.plan.observer_node,
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
        node = self.plan.observer_node
        return run_files.read_history(self.cluster, node, self.directory, self.into)


def _alive(job: LaunchedJob, killed: Incarnation) -> list[Culprit] | None:
    """Processes of a killed incarnation that still run, none on a lost node; None if not known."""
    try:
        return job.alive(killed.processes)
    except ClusterError:
        return None


def _missed(why: str) -> KillReport:
    return KillReport("no kill", time.time(), "nobody", missed=f"there was no kill: {why}")


def _between(
    first: float, last: float, seen: run_files.SeenBetween | None
) -> tuple[float, float] | None:
    """Shortest and longest time from a kill, between `first` and `last`, to the step seen, in s."""
    if seen is None:
        return None
    least = 0.0 if seen.not_before is None else max(0.0, seen.not_before - last)
    return least, seen.not_after - first


def _end_of(job: LaunchedJob) -> JobResult | None:
    """The result of a job without ranks: torchrun ends a little later than its ranks."""
    with contextlib.suppress(MnodeError):
        return job.wait(_NOTICED_S)
    return None


def _how_ended(job: LaunchedJob, result: JobResult | None) -> str:
    """How the job ended, in words, with the reason if the job printed one."""
    if result is None:
        return f"the job still ran on {', '.join(job.nodes)}"
    codes = ", ".join(f"{code} on {node}" for node, code in result.returncodes.items())
    killed = any(event.what == "signalled" for event in job.events)
    why = "" if result.ok else _why_ended(result, ENDINGS if killed else ())
    return f"torchrun ended with {codes}{'; ' * bool(why)}{why}"


def _why_ended(result: JobResult, unless: Sequence[str]) -> str:
    """The known cause, the last message of a rank, or the last line of a node that failed.

    unless: names of causes that do not count here.
    """
    if known := _cause(result.output, unless):
        return known
    lines = [line.strip() for text in result.output.values() for line in text.splitlines()]
    if messages := [line for line in lines if line.startswith("train: ")]:
        return messages[-1]
    last = {node: last_line(result.output.get(node, "")) for node in result.returncodes}
    failed = [node for node, code in result.returncodes.items() if code and last[node]]
    return f"the last line on {failed[0]}: {last[failed[0]]!r}" if failed else "it printed nothing"


def _how_it_waits(job: LaunchedJob) -> str:
    """How long a job was waited for, with the cause if the job printed one."""
    why = _cause({node: job.output(node) for node in job.nodes}, ())
    return f"waited {START_LIMIT_S:g} s" + (f"; {why}" if why else "")


def _cause(output: Mapping[str, str], unless: Sequence[str]) -> str:
    """The known root cause in the output of nodes; "" if there is none."""
    known = [
        replace(cause, host=cause.host or node)
        for node, text in output.items()
        for cause in causes(text)
        if cause.root and cause.name not in unless
    ]
    return min(known, key=lambda cause: cause.order).text if known else ""


def _queued_s(job: LaunchedJob, since: float) -> float:
    """Seconds from a kill until a requeued job was started again: infinite if it waits, 0 if it was
    not requeued."""
    later = [one for one in job.events if one.time_s >= since]
    moves = [one for one in later if one.what in ("requeued", "started")]
    if not any(one.what == "requeued" for one in moves):
        return 0.0
    return moves[-1].time_s - since if moves[-1].what == "started" else math.inf


def _notes(job: LaunchedJob, since: float) -> tuple[str, ...]:
    """How the job was started again, and where."""
    requeued = [e for e in job.events if e.what == "requeued" and e.time_s >= since]
    if not requeued:
        return ("by torchrun's restart",)
    why = "; ".join(event.detail for event in requeued)
    return (f"requeued: {why}; on {', '.join(job.nodes)}",)

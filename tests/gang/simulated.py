"""A simulated scheduler with its own clock: correct, or with the faults that a test chooses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_mnode.errors import ClusterError
from pytest_mnode.gang.engine import (
    Capacity,
    Engine,
    GangRequest,
    Heartbeat,
    JobRecord,
    Observation,
    Phase,
    Refused,
)
from pytest_mnode.gang.site import Report, Site
from pytest_mnode.spec.gang import GangCriterion

TICK_S = 0.1
BEAT_EVERY = 2
ENDS_IN_S = 0.3


@dataclass
class Job:
    id: str
    request: GangRequest
    nodes: tuple[str, ...] = ()
    began_s: float | None = None
    ending_s: float | None = None
    over: bool = False
    restarts: int = 0
    got_sigterm: bool = False
    why: str = "PENDING (Resources)"

    @property
    def waits(self) -> bool:
        return self.began_s is None and not self.over


@dataclass
class Scheduler:
    """An engine, a clock and a power switch in one. faults: its wrong behaviour.

    partial: starts a job on too few nodes. one_by_one: binds a node every N s. never_next: starts
    no gang after the first. keeps: cancels nothing. no_backfill: starts nothing behind a waiting
    job. twice: allocates taken nodes again. early: a rank of a waiting gang runs. outlives: ranks
    run on after the end. elsewhere: a rank runs on another node. late_rank: one rank starts N s
    late. silent: no heartbeat from this node. blind: no answer for N s from the fifth observation
    on. slow: answers take N s. fails: every job fails at once with these words. garbled: lines that
    are no heartbeat. dies: gangs end after N s without a rank; dies_again: in their second start.
    late_small: the small job waits N s after a gang. power_limit: the power command never ends;
    interrupted: the user interrupts it; slow_power: it takes N s. foreign: nodes that others take
    after the first submission. unlisted: it does not list users of nodes. unreasonable: no reason.
    split: a gang becomes N jobs of one node. watched: cancelling takes N s, and the next
    observation reports what was seen meanwhile.
    After a node was lost, half_requeue: the gang goes on without it; stubborn: it is requeued in
    any case; zombies: its ranks run on; never_again: it stays away.
    """

    names: tuple[str, ...] = ("node0", "node1", "node2", "node3")
    faults: dict[str, float | str | tuple[str, ...]] = field(default_factory=dict)
    name: str = "simulated"
    refuses: bool = True

    def __post_init__(self) -> None:
        self.now = 1_700_000_000.0
        self.jobs: list[Job] = []
        self.beats: list[Heartbeat] = []
        self.reported_changes: list[Observation] = []
        self.off: dict[str, float] = {}
        self.observations = 0
        self.blind_until = 0.0
        self.ran_gang = False
        self.over_s = 0.0
        self.alarm: tuple[float, threading.Event] | None = None
        self.zombies: list[tuple[str, int, str]] = []

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / TICK_S))):
            self.now += TICK_S
            self._tick()
            if self.alarm is not None and self.now >= self.alarm[0]:
                self.alarm[1].set()
                self.alarm = None
                time.sleep(0.05)  # for the thread that waits for it

    def capacity(self) -> Capacity:
        taken = self._taken()
        there = tuple(node for node in self.names if node not in self.off)
        return Capacity(there, tuple(node for node in there if node not in taken))

    def others(self, nodes: Sequence[str]) -> dict[str, str]:
        foreign = self.faults.get("foreign", ()) if self.jobs else ()
        if "unlisted" in self.faults:
            raise ClusterError("squeue: cannot be read")
        taken = {n: "job 17 of bob" for n in nodes if isinstance(foreign, tuple) and n in foreign}
        return taken | {n: "DOWN: no answer" for n in nodes if n in self.off}

    def submit(self, request: GangRequest) -> tuple[str, ...]:
        if request.nodes > len(self.names) and self.refuses:
            raise Refused("Requested node configuration is not available")
        asks = [request]
        if "split" in self.faults and request.nodes > 1:
            asks = [replace(request, nodes=1, requeue=False)] * request.nodes
        made = [Job(str(len(self.jobs) + i + 1), one) for i, one in enumerate(asks)]
        self.jobs += made
        self.now += 0.02
        return tuple(job.id for job in made)

    def observe(self) -> Observation:
        asked = self.now
        self.observations += 1
        if "blind" in self.faults and self.observations == 5:
            self.blind_until = asked + float(str(self.faults["blind"]))
        self.now += 0.02 + float(str(self.faults.get("slow", 0.0)))
        beats, self.beats = tuple(self.beats), []
        if asked < self.blind_until:
            return Observation(asked, self.now, None, beats, why="squeue: no answer in 20 s")
        unreadable = 1 if "garbled" in self.faults and self.observations == 5 else 0
        reported_changes, self.reported_changes = tuple(self.reported_changes), []
        return Observation(
            asked, self.now, self._records(), beats, unreadable, reported_changes=reported_changes
        )

    def close(self) -> None:
        """Nothing outlives it."""

    def cancel(self, jobs: Sequence[str]) -> None:
        for job in self.jobs:
            if job.id in jobs and "keeps" not in self.faults:
                if job.waits:
                    job.over = True
                elif job.ending_s is None and not job.over:
                    job.ending_s = self.now
        if (seconds := self.faults.get("watched")) is not None:
            self.now += TICK_S
            self.reported_changes.append(Observation(self.now, self.now, self._records()))
            self.now += float(str(seconds))

    def power(self, what: str, node: str) -> None:
        if "no_power" in self.faults:
            raise ClusterError(f"cannot switch {node} {what}: the spec names no command for it")
        if (seconds := self.faults.get("slow_power")) is not None:
            self._take(float(str(seconds)))
        if what == "off":
            self.off[node] = self.now
            if "power_limit" in self.faults:
                raise ClusterError("bmc off: no answer in 60 s")
            if "interrupted" in self.faults:
                raise KeyboardInterrupt
        else:
            self.off.pop(node, None)

    def _take(self, seconds: float) -> None:
        """Time passes for a caller that waits here, without other events."""
        if threading.current_thread() is threading.main_thread():
            self.sleep(seconds)
            return
        reached = threading.Event()
        self.alarm = (self.now + seconds, reached)
        assert reached.wait(60)

    # Events.

    def _records(self) -> dict[str, JobRecord]:
        found = {}
        for job in self.jobs:
            if job.over:
                fails = "dies" not in self.faults or self._dies(job) is not None
                status = str(self.faults.get("fails", "COMPLETED")) if fails else "COMPLETED"
                phase = Phase.OVER
            elif job.waits:
                reason = "PENDING" if "unreasonable" in self.faults else job.why
                phase, status = Phase.WAITING, reason
            elif job.ending_s is not None:
                phase, status = Phase.ENDING, "COMPLETING"
            else:
                phase, status = Phase.HOLDING, "RUNNING"
            nodes = job.nodes if phase in (Phase.HOLDING, Phase.ENDING) else ()
            failed = phase is Phase.OVER and status.startswith("FAILED")
            found[job.id] = JobRecord(job.id, phase, nodes, status, job.restarts, failed)
        return found

    def _taken(self) -> set[str]:
        taken = {n for job in self.jobs if not job.over and not job.waits for n in job.nodes}
        foreign = self.faults.get("foreign", ())
        return taken | (set(foreign) if self.jobs and isinstance(foreign, tuple) else set())

    def _tick(self) -> None:
        for job in self.jobs:
            self._age(job)
        for job in self.jobs:
            if job.waits and not self._start(job) and "no_backfill" in self.faults:
                break
        if round(self.now / TICK_S) % BEAT_EVERY == 0:
            for job in self.jobs:
                self._beat(job)
            for rank, (name, restarts, node) in enumerate(self.zombies):
                self.beats.append(Heartbeat(name, restarts, rank, node, self.now))

    def _age(self, job: Job) -> None:
        lost = [n for n in job.nodes if n in self.off and self.now - self.off[n] > 5.0]
        fails = job.began_s is not None and "fails" in self.faults and "dies" not in self.faults
        dies = self._dies(job)
        fails |= None not in (dies, job.began_s) and self.now - (job.began_s or 0.0) >= (dies or 0)
        if fails or (job.ending_s is not None and self.now - job.ending_s >= ENDS_IN_S):
            job.over = True
        elif job.began_s is not None and job.ending_s is None and not job.over:
            if lost and "half_requeue" in self.faults:
                job.nodes = tuple(n for n in job.nodes if n not in lost)
            elif lost and (job.request.requeue or "stubborn" in self.faults):
                if "zombies" in self.faults:
                    self.zombies = [(job.id, job.restarts, n) for n in job.nodes if n not in lost]
                job.nodes, job.began_s, job.restarts = (), None, job.restarts + 1
                job.why = "PENDING (BeginTime)"
            elif lost or self.now - job.began_s >= job.request.runs_s:
                if not lost:
                    self._last_beats(job)
                job.ending_s = self.now
        if "one_by_one" in self.faults and job.began_s is not None and job.ending_s is None:
            every = float(str(self.faults["one_by_one"]))
            due = min(job.request.nodes, 1 + int((self.now - job.began_s) / every))
            free = [n for n in self._among(job) if n not in self._taken()]
            job.nodes += tuple(free[: due - len(job.nodes)])

    def _dies(self, job: Job) -> float | None:
        fault = "dies_again" if job.restarts else "dies"
        if job.request.nodes == 1 or fault not in self.faults:
            return None
        return float(str(self.faults[fault]))

    def _among(self, job: Job) -> tuple[str, ...]:
        there = job.request.among or self.names
        return tuple(node for node in there if node not in self.off)

    def _start(self, job: Job) -> bool:
        free = [node for node in self._among(job) if node not in self._taken()]
        gang = job.request.nodes > 1
        if not gang and self.now - self.over_s < float(str(self.faults.get("late_small", 0.0))):
            return False
        if gang and "never_next" in self.faults and self.ran_gang:
            return False
        if job.restarts and "never_again" in self.faults:
            return False
        if gang and "twice" in self.faults and len(free) < job.request.nodes:
            free += [node for node in self._among(job) if node not in free]
        wanted = job.request.nodes
        if gang and "partial" in self.faults:
            wanted = min(wanted, max(1, len(free)))
        if len(free) < wanted:
            return False
        first = 1 if "one_by_one" in self.faults else wanted
        job.nodes, job.began_s = tuple(free[:first]), self.now
        self.ran_gang = self.ran_gang or gang
        return True

    def _last_beats(self, job: Job) -> None:
        """Last heartbeats of all ranks: a gang ends when its last rank does."""
        self.over_s = self.now if job.request.nodes > 1 else self.over_s
        for rank, node in enumerate(job.nodes):
            if node != self.faults.get("silent"):
                where = self._where(job, rank, node)
                self.beats.append(Heartbeat(job.id, job.restarts, rank, where, self.now, "end"))

    def _where(self, job: Job, rank: int, node: str) -> str:
        wrong = job.request.nodes > 1 and rank == 1 and "elsewhere" in self.faults
        return "node9" if wrong else node

    def _beat(self, job: Job) -> None:
        gang = job.request.nodes > 1
        if job.waits and gang and "early" in self.faults:
            self.beats.append(Heartbeat(job.id, job.restarts, 0, self.names[0], self.now))
        outlives = gang and "outlives" in self.faults and job.ending_s is not None
        if outlives and job.ending_s is not None and self.now - job.ending_s < 4.0:
            self.beats.append(Heartbeat(job.id, job.restarts, 0, job.nodes[0], self.now))
        if job.began_s is None or job.ending_s is not None or job.over:
            return
        if self._dies(job) is not None:
            return
        for rank, node in enumerate(job.nodes):
            late = float(str(self.faults.get("late_rank", 0))) if gang and rank == 1 else 0.0
            if node in self.off or self.now - job.began_s < late:
                continue
            if node == self.faults.get("silent"):
                continue
            where = self._where(job, rank, node)
            self.beats.append(Heartbeat(job.id, job.restarts, rank, where, self.now))


def site(scheduler: Scheduler, **promised: object) -> Site:
    """A site with this scheduler, whose promise has short times."""
    page = {"rounds": 2, "runs": "3 s", "waits": "4 s", "next_within": "8 s", "together": "2 s"}
    promise = GangCriterion.model_validate({**page, **promised})

    @contextmanager
    def opened() -> Iterator[Engine]:
        yield scheduler

    return Site(promise, opened, scheduler.power, scheduler)


def ran(how: str, scheduler: Scheduler, **promised: Any) -> Report:
    done: Report = getattr(site(scheduler, **promised), how)()
    return done

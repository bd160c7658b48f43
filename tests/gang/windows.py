"""Composed windows of observations, and the failures among their measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pytest_mnode.gang.engine import Heartbeat, JobRecord, Observation, Phase
from pytest_mnode.gang.judge_rounds import Round, filled_turn, race_turn
from pytest_mnode.gang.judging import judged_rounds
from pytest_mnode.gang.site import Report
from pytest_mnode.gang.window import Gang, Window
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec.gang import GangCriterion

FAIL, UNKNOWN = "fail", "inconclusive"
PARTS = "longest time that a gang held a part of its nodes"
WAITING = "ranks of waiting gangs that ran"
AFTER = "ranks still running after their gang was over"
ELSEWHERE = "ranks on nodes that their gang did not hold"
ALONE = "longest time that ranks of a gang ran without all others"
NEVER = "gangs that never ran, though there was room"
NEXT = "longest time from room for a gang to its start"
NOT_TRIED = "rounds in which no gang had to wait"
LEFT = "jobs left in the queue"
NOT_BACK = "nodes not given back"
TWICE = "nodes held by two jobs at once"
NO_REASON = "gangs larger than the cluster without a refusal or a reason"
BLOCKED = "jobs that a gang larger than the cluster keeps from running"
FATE = "gangs neither requeued nor cancelled whole when a node had died"
OFF = "time from the death of a node until its gang is off all nodes"
OLD = "ranks still running after their gang lost a node"
AGAIN = "time until the requeued gang runs whole again"
OTHERS = "longest time to the start of jobs beside a gang larger than the cluster"
UNHEARD = "gangs whose ranks did not all run concurrently to completion"
CONDUCTED = "experiments that could not be conducted"


def faults(judged: Sequence[Measurement]) -> dict[str, tuple[str, str]]:
    """Measurements that do not pass: verdict, and culprit and note."""
    return {
        one.name: (str(one.verdict), f"{one.culprit or ''} | {one.note}")
        for one in judged
        if one.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)
    }


def verdicts(report: Report) -> dict[str, str]:
    return {name: verdict for name, (verdict, _) in faults(report.measurements).items()}


def culprit(report: Report, name: str) -> str:
    return next(f.culprit or f.note for f in report.measurements if f.name == name)


def words(report: Report, name: str) -> str:
    return next(f"{f.culprit or ''}; {f.note}" for f in report.measurements if f.name == name)


PROMISE = GangCriterion.model_validate({"together": "4 s", "next_within": "60 s"})
NODES = ("n0", "n1", "n2")
A, B = Gang("A", 3, ("1",), 5.0, 100.0), Gang("B", 3, ("2",), 5.0, 100.1)
Shown = Callable[[float], dict[str, JobRecord]]


def waits(
    job: str, why: str = "Resources", restarts: int = 0, *, blocked: bool = False
) -> JobRecord:
    return JobRecord(job, Phase.WAITING, (), f"PENDING ({why})", restarts, blocked=blocked)


def holds(job: str, *nodes: str, restarts: int = 0) -> JobRecord:
    return JobRecord(job, Phase.HOLDING, nodes, "RUNNING", restarts)


def over(job: str, state: str = "COMPLETED", restarts: int = 0) -> JobRecord:
    return JobRecord(job, Phase.OVER, (), state, restarts, failed=state.startswith("FAILED"))


def course(job: str, began: float, ended: float, state: str = "COMPLETED") -> Shown:
    """A gang that waits, is whole, and ends."""

    def at(t: float) -> dict[str, JobRecord]:
        if began <= t < ended:
            return {job: holds(job, *NODES)}
        return {job: waits(job) if t < began else over(job, state)}

    return at


def both(*some: Shown) -> Shown:
    return lambda t: {job: record for one in some for job, record in one(t).items()}


def ran(job: str, rank: int, began: float, ended: float, restarts: int = 0) -> list[Heartbeat]:
    beats = [
        Heartbeat(job, restarts, rank, NODES[rank], began + 0.2 * n)
        for n in range(int((ended - began) / 0.2))
    ]
    return [*beats, Heartbeat(job, restarts, rank, NODES[rank], ended, "end")]


def all_ran(job: str, began: float, ended: float, restarts: int = 0) -> list[Heartbeat]:
    return [beat for rank in range(3) for beat in ran(job, rank, began, ended, restarts)]


def watched(
    shown: Shown, beats: Iterable[Heartbeat], until: float, off: dict[str, float] | None = None
) -> tuple[Observation, ...]:
    """Observations every 0.25 s from 100.2 on. off: nodes whose clock is ahead by this time."""
    observations, t, left = [], 100.2, sorted(beats, key=lambda beat: beat.at_s)
    while t < until:
        now = [beat for beat in left if beat.at_s <= t]
        left = left[len(now) :]
        stamped = [replace(b, at_s=b.at_s + (off or {}).get(b.node, 0.0)) for b in now]
        observations.append(Observation(t, t + 0.05, shown(t), tuple(stamped)))
        t += 0.25
    return tuple(observations)


def raced(
    observations: tuple[Observation, ...],
    cleared: float,
    promise: GangCriterion = PROMISE,
    **more: object,
) -> dict[str, tuple[str, str]]:
    return faults(judged_race(observations, cleared, promise, **more))


def judged_race(
    observations: tuple[Observation, ...],
    cleared: float,
    promise: GangCriterion = PROMISE,
    **more: object,
) -> Sequence[Measurement]:
    window = Window("race 1", (A, B), observations, cleared_s=cleared)
    window = replace(window, **more)  # type: ignore[arg-type]
    return judged_rounds([Round(window, race_turn(window, ("A", "B")))], promise)


RACE = both(course("1", 101, 107), course("2", 108, 114))
RACED = [*all_ran("1", 101.3, 106.3), *all_ran("2", 108.3, 113.3)]


def filled(
    second: Shown,
    small: Shown,
    beats: list[Heartbeat],
    cleared: float,
    off: dict[str, float] | None = None,
) -> dict[str, tuple[str, str]]:
    """A filler job has n3 until 135 s; B and a small job are submitted at 105 s."""
    gangs = (
        Gang("filler 1", 1, ("1",), 500.0, 100.0),
        Gang("B", 3, ("2",), 5.0, 105.0),
        Gang("small", 1, ("3",), 1.0, 105.2),
    )

    def shown(t: float) -> dict[str, JobRecord]:
        first = {"1": holds("1", "n3") if t < 135 else over("1", "CANCELLED")}
        return first if t < 105.2 else {**first, **second(t), **small(t)}

    observations = watched(shown, beats, cleared + 2, off)
    window = Window("filled 1", gangs, observations, cleared_s=cleared)
    turn = filled_turn(window, "B", ["filler 1"], ("filler 1", "small"))
    return faults(judged_rounds([Round(window, turn)], PROMISE))


def small_at(began: float, ended: float) -> Shown:
    def at(t: float) -> dict[str, JobRecord]:
        return {"3": waits("3") if t < began else holds("3", "n0") if t < ended else over("3")}

    return at

"""Windows made by hand: records of gangs, heartbeats of their ranks, and looks at both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pytest_mnode.criteria.restart.findings import Finding
from pytest_mnode.gang.engine import Beat, Look, Phase, Record
from pytest_mnode.gang.terms import Terms
from pytest_mnode.gang.timeline import Gang
from tests.gang.reading import (
    verdict,
)

TERMS = Terms(settle_s=0.0, together_s=4.0, clock_skew_s=1.0, next_within_s=60.0)
NODES = ("n0", "n1", "n2")
A, B = Gang("A", 3, ("1",), 5.0, 100.0), Gang("B", 3, ("2",), 5.0, 100.1)
Shown = Callable[[float], dict[str, Record]]


def waits(job: str, why: str = "Resources", life: int = 0, *, barred: bool = False) -> Record:
    return Record(job, Phase.WAITING, (), f"PENDING ({why})", life, barred=barred)


def holds(job: str, *nodes: str, life: int = 0) -> Record:
    return Record(job, Phase.HOLDING, nodes, "RUNNING", life)


def over(job: str, said: str = "COMPLETED", life: int = 0) -> Record:
    return Record(job, Phase.OVER, (), said, life, failed=said.startswith("FAILED"))


def course(job: str, began: float, ended: float, said: str = "COMPLETED") -> Shown:
    """A gang that waits, is whole, and is over."""

    def at(t: float) -> dict[str, Record]:
        if began <= t < ended:
            return {job: holds(job, *NODES)}
        return {job: waits(job) if t < began else over(job, said)}

    return at


def both(*some: Shown) -> Shown:
    return lambda t: {job: record for one in some for job, record in one(t).items()}


def ran(job: str, rank: int, began: float, ended: float, life: int = 0) -> list[Beat]:
    beats = [
        Beat(job, life, rank, NODES[rank], began + 0.2 * n)
        for n in range(int((ended - began) / 0.2))
    ]
    return [*beats, Beat(job, life, rank, NODES[rank], ended, "end")]


def all_ran(job: str, began: float, ended: float, life: int = 0) -> list[Beat]:
    return [beat for rank in range(3) for beat in ran(job, rank, began, ended, life)]


def watched(
    shown: Shown, beats: Iterable[Beat], until: float, off: dict[str, float] | None = None
) -> tuple[Look, ...]:
    """Looks every 0.25 s from 100.2 on. off: nodes whose clock is ahead by so much."""
    looks, t, left = [], 100.2, sorted(beats, key=lambda beat: beat.at_s)
    while t < until:
        now = [beat for beat in left if beat.at_s <= t]
        left = left[len(now) :]
        stamped = [replace(b, at_s=b.at_s + (off or {}).get(b.node, 0.0)) for b in now]
        looks.append(Look(t, t + 0.05, shown(t), tuple(stamped)))
        t += 0.25
    return tuple(looks)


def told(findings: Sequence[Finding]) -> dict[str, tuple[str, str]]:
    """What is not right: verdict, and culprit and note."""
    return {
        f.name: (found, f"{f.culprit or ''} | {f.note}")
        for f in findings
        if (found := verdict(f)) is not None
    }

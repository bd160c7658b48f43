"""Composed records of runs: each value follows from step and rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from pytest_mnode.criteria.restart.comparing import Tolerance
from pytest_mnode.criteria.restart.history import history_of
from pytest_mnode.criteria.restart.judging import KillReport, StoreListing, Terms, judge
from pytest_mnode.measurement import Measurement
from pytest_mnode.reference_job.records import (
    CheckpointRecord,
    EndRecord,
    Record,
    StartRecord,
    StepRecord,
)

RANKS, STEPS, EPOCH, EVERY = 2, 12, 8, 4
BATCH = 4
EXACT = Tolerance(0.0, "bit by bit")
TERMS = Terms(STEPS, EXACT, 60.0)

Change = Callable[[Record], Record | None]
"""Changes a record, or removes it (None)."""


def incarnation(
    first: int,
    last: int,
    *,
    ranks: int = RANKS,
    loaded: int | None = None,
    began: float = 1000.0,
    number: int = 0,
    ends: bool = False,
    change: Change = lambda record: record,
) -> list[Record]:
    """Records of ranks that did steps `first` to `last`, one step per second."""
    found: list[Record | None] = []
    for rank in range(ranks):
        place: dict[str, Any] = {
            **{"rank": rank, "world_size": ranks, "node": f"node{rank}"},
            **{"pid": 100 * (number + 1) + rank, "incarnation": f"{number}.0"},
        }
        saved: dict[str, Any] = {"loaded": loaded, "loaded_from": ranks if loaded else None}
        saved["saved_at"] = None if loaded is None else 1000.0 + loaded
        found.append(change(StartRecord(**place, time=began, **saved)))
        for step in range(first, last + 1):
            found.append(change(_step(step, rank, ranks, place, began + step - first)))
            if step % EVERY == 0:
                ended = began + step - first + 1.1
                cost: dict[str, Any] = {"seconds": 0.1, "write_s": 0.05, "bytes": 10}
                cost |= {"begun": ended - 0.1, "ended": ended}
                found.append(change(CheckpointRecord(**place, step=step, **cost)))
        if ends:
            end = EndRecord(
                **place, steps=last, parameters="p", optimiser="o", lr=0.1, time=began + 100
            )
            found.append(change(end))
    return [record for record in found if record is not None]


def _step(step: int, rank: int, ranks: int, place: dict[str, Any], began: float) -> StepRecord:
    epoch, index = divmod(step - 1, EPOCH)
    share = BATCH // ranks
    begin = index * BATCH + rank * share
    return StepRecord(
        **place,
        step=step,
        epoch=epoch,
        samples=tuple(range(begin, begin + share)),
        loss=5.0 - step / 8,
        tokens=10,
        lr=0.1 * step,
        rng=f"{step}/{rank}",
        began=began,
        ended=began + 0.5,
        wall_s=0.5,
        parts={},
    )


WHOLE = incarnation(1, STEPS, ends=True)
KILLED = incarnation(1, 6)
KILL = KillReport(
    "SIGKILL of rank 1 on node1",
    at=1010.0,
    clock="node1",
    listing=StoreListing((4,)),
    alive=[],
    came_back=True,
)


def resumed(first: int = 5, *, loaded: int | None = 4, **given: Any) -> list[Record]:
    """The incarnation after the kill, which begins 15 s after it."""
    known: dict[str, Any] = {"began": 1025.0, "number": 1, "ends": True}
    return incarnation(first, STEPS, loaded=loaded, **(known | given))


def verdicts(
    cut: Iterable[Record],
    kill: KillReport = KILL,
    terms: Terms = TERMS,
    whole: Iterable[Record] = WHOLE,
    **changed: Any,
) -> dict[str, Measurement]:
    """Measurements that are wrong or without a value, by name."""
    found = judge(history_of(whole), history_of(cut), replace(kill, **changed), terms)
    return {one.name: one for one in found if not is_right(one)}


def is_right(one: Measurement) -> bool:
    return one.value is not None and (one.expected is None or one.passed)


def only(kind: type[Any], step: int | None = None, rank: int | None = None, **new: Any) -> Change:
    """Changes records of one kind: from this step on and of this rank; None for all."""

    def change(record: Record) -> Any:
        given: Any = record
        if not isinstance(record, kind) or (rank is not None and given.rank != rank):
            return record
        if step is not None and given.step < step:
            return record
        made = {name: value(record) if callable(value) else value for name, value in new.items()}
        return replace(given, **made)

    return change

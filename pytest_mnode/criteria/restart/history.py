"""Incarnations of a run: which ranks trained which steps, from their records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mnode.reference_job.records import (
    CheckpointRecord,
    EndRecord,
    Record,
    StartRecord,
    StepRecord,
    UnreadableRecord,
)


@dataclass(slots=True)
class RankIncarnation:
    """Records of one rank between one start and the next, in the order of writing."""

    start: StartRecord
    steps: list[StepRecord] = field(default_factory=list)
    checkpoints: list[CheckpointRecord] = field(default_factory=list)
    end: EndRecord | None = None


@dataclass(frozen=True, slots=True)
class Incarnation:
    """All ranks from one start of the job to the next; `number` counts from 0.

    by_rank: ranks that wrote something. size: the number of ranks that there should be.
    """

    number: int
    size: int
    by_rank: Mapping[int, RankIncarnation]

    @property
    def loaded(self) -> int:
        """The step that it resumed from, the lowest of all ranks; 0 if it did not resume."""
        return min(own.start.loaded or 0 for own in self.by_rank.values())

    @property
    def silent(self) -> list[int]:
        """Ranks that wrote nothing."""
        return [rank for rank in range(self.size) if rank not in self.by_rank]

    @property
    def last_step(self) -> int:
        """The last step that any rank finished; `loaded` if no rank finished one."""
        steps = [s.step for own in self.by_rank.values() for s in own.steps]
        return max(steps, default=self.loaded)

    def last_step_until(self, time: float) -> int:
        """The last step that any rank had finished at this wall-clock time; 0 if there is none."""
        steps = [s.step for own in self.by_rank.values() for s in own.steps if s.ended <= time]
        return max(steps, default=0)

    @property
    def last_common_step(self) -> int:
        """The last step that all ranks finished; `loaded` if there is none."""
        if self.silent:
            return self.loaded
        lasts = [own.steps[-1].step if own.steps else 0 for own in self.by_rank.values()]
        return max(self.loaded, min(lasts))

    @property
    def processes(self) -> dict[str, list[tuple[int, float]]]:
        """(pid, a time when the process ran) of each rank, by node."""
        found: dict[str, list[tuple[int, float]]] = {}
        for own in self.by_rank.values():
            found.setdefault(own.start.node, []).append((own.start.pid, own.start.time))
        return found

    def first_step_ended(self) -> float | None:
        """Wall-clock time when all ranks had finished their first step; None if not all did."""
        firsts = [own.steps[0].ended for own in self.by_rank.values() if own.steps]
        return max(firsts) if len(firsts) == self.size else None


@dataclass(frozen=True, slots=True)
class Effective:
    """A step, and which incarnation did it; it counts if no later incarnation did it again."""

    step: int
    incarnation: int
    by_rank: Mapping[int, StepRecord]


@dataclass(frozen=True, slots=True)
class History:
    """A run: its incarnations in order; `stray` lines belong to none or could not be read."""

    incarnations: tuple[Incarnation, ...]
    stray: tuple[str, ...] = ()

    def kept_until(self, incarnation: Incarnation) -> int:
        """The last step of an incarnation that no later one did again."""
        later = [other.loaded for other in self.incarnations if other.number > incarnation.number]
        return min(later, default=incarnation.last_step)

    def effective(self) -> list[Effective]:
        """Steps that count, in order of incarnations; twice if one incarnation did a step twice."""
        return [one for one, counts in self._steps() if counts]

    def redone(self) -> list[Effective]:
        """Steps that do not count, because a later incarnation did them again."""
        return [one for one, counts in self._steps() if not counts]

    def _steps(self) -> Iterator[tuple[Effective, bool]]:
        """All steps, and whether each counts."""
        for incarnation in self.incarnations:
            until = self.kept_until(incarnation)
            for step, found in _steps(incarnation):
                yield Effective(step, incarnation.number, found), step <= until

    def curve(self) -> dict[int, Mapping[int, StepRecord]]:
        """Records of the steps that count, by step and rank; the last if a step was done twice."""
        return {one.step: one.by_rank for one in self.effective()}


def history_of(records: Iterable[Record]) -> History:
    """Incarnations from records, which come rank by rank in the order of writing (read_records).

    Each rank counts its own restarts, so these numbers do not identify an incarnation: a new one
    begins when a rank starts again, with another requeue, or with another number of ranks. Clocks
    of nodes differ, so time separates incarnations only if a rank wrote nothing in one of them.
    """
    by_rank: dict[int, list[RankIncarnation]] = {}
    stray = []
    for record in records:
        if isinstance(record, UnreadableRecord):
            stray.append(f"{record.path}:{record.line}: {record.reason}")
        elif isinstance(record, StartRecord):
            by_rank.setdefault(record.rank, []).append(RankIncarnation(record))
        elif not by_rank.get(record.rank):
            stray.append(f"rank {record.rank}: a {record.kind} before any start")
        elif isinstance(record, StepRecord):
            by_rank[record.rank][-1].steps.append(record)
        elif isinstance(record, CheckpointRecord):
            by_rank[record.rank][-1].checkpoints.append(record)
        else:
            by_rank[record.rank][-1].end = record
    groups = [group for comparable in _comparable(by_rank) for group in _grouped(comparable)]
    incarnations = []
    for number, group in enumerate(groups):
        size = next(iter(group.values())).start.world_size
        incarnations.append(Incarnation(number, size, dict(sorted(group.items()))))
    return History(tuple(incarnations), tuple(stray))


def _comparable(
    by_rank: Mapping[int, Sequence[RankIncarnation]],
) -> list[dict[int, list[RankIncarnation]]]:
    """Starts by rank, grouped by requeue and number of ranks, in the order of requeues."""
    comparable: dict[tuple[int, str], dict[int, list[RankIncarnation]]] = {}
    for rank, incarnations in by_rank.items():
        for incarnation in incarnations:
            what = (incarnation.start.world_size, incarnation.start.incarnation.partition(".")[0])
            comparable.setdefault(what, {}).setdefault(rank, []).append(incarnation)

    def order(what: tuple[int, str]) -> tuple[int, float]:
        requeue = int(what[1]) if what[1].isdecimal() else 0
        # These times are of one clock: rank 0 of every size is on the first node.
        first = comparable[what][min(comparable[what])][0]
        return requeue, first.start.time

    return [comparable[what] for what in sorted(comparable, key=order)]


def _grouped(by_rank: Mapping[int, Sequence[RankIncarnation]]) -> list[dict[int, RankIncarnation]]:
    """One group per incarnation: all first starts, all second ones; by time if a rank lacks one."""
    counts = {len(incarnations) for incarnations in by_rank.values()}
    if len(counts) == 1:
        return [{rank: starts[n] for rank, starts in by_rank.items()} for n in range(counts.pop())]
    starts = [incarnation for incarnations in by_rank.values() for incarnation in incarnations]
    groups: list[dict[int, RankIncarnation]] = []
    for incarnation in sorted(starts, key=lambda incarnation: incarnation.start.time):
        if not groups or incarnation.start.rank in groups[-1]:
            groups.append({})
        groups[-1][incarnation.start.rank] = incarnation
    return groups


def _steps(incarnation: Incarnation) -> Iterator[tuple[int, Mapping[int, StepRecord]]]:
    """Each step with the records of all ranks, once for each time that a rank did it."""
    times: dict[int, list[dict[int, StepRecord]]] = {}
    for rank, own in incarnation.by_rank.items():
        done: dict[int, int] = {}
        for record in own.steps:
            number = done.get(record.step, 0)
            done[record.step] = number + 1
            rounds = times.setdefault(record.step, [])
            if len(rounds) <= number:
                rounds.append({})
            rounds[number][rank] = record
    for step in sorted(times):
        for found in times[step]:
            yield step, found

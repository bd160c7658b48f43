"""The lives of a run: which ranks trained which steps, from what they wrote down. Pure."""

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
class RankLife:
    """What one rank wrote between one start and the next, in its order."""

    start: StartRecord
    steps: list[StepRecord] = field(default_factory=list)
    checkpoints: list[CheckpointRecord] = field(default_factory=list)
    end: EndRecord | None = None


@dataclass(frozen=True, slots=True)
class Life:
    """All ranks from one start of the job to the next; `number` counts from 0.

    by_rank: those that wrote something. size: how many there are to be.
    """

    number: int
    size: int
    by_rank: Mapping[int, RankLife]

    @property
    def loaded(self) -> int:
        """The step that it went on from, the least of what ranks say; 0 for the beginning."""
        return min(life.start.loaded or 0 for life in self.by_rank.values())

    @property
    def began_by_rank_0(self) -> float | None:
        """When rank 0 was ready to train, by its own wall clock; None where it wrote nothing."""
        return self.by_rank[0].start.time if 0 in self.by_rank else None

    @property
    def silent(self) -> list[int]:
        """Ranks that wrote nothing."""
        return [rank for rank in range(self.size) if rank not in self.by_rank]

    @property
    def last_step(self) -> int:
        """The last step that some rank finished; what was loaded where none did."""
        steps = [s.step for life in self.by_rank.values() for s in life.steps]
        return max(steps, default=self.loaded)

    def last_step_until(self, time: float) -> int:
        """The last step that some rank had finished by this wall clock; 0 where there is none."""
        steps = [s.step for own in self.by_rank.values() for s in own.steps if s.ended <= time]
        return max(steps, default=0)

    @property
    def last_common_step(self) -> int:
        """The last step that all ranks finished; what was loaded where there is none."""
        if self.silent:
            return self.loaded
        lasts = [own.steps[-1].step if own.steps else 0 for own in self.by_rank.values()]
        return max(self.loaded, min(lasts))

    @property
    def processes(self) -> dict[str, list[tuple[int, float]]]:
        """(pid, a time at which it ran) of its ranks, by node."""
        found: dict[str, list[tuple[int, float]]] = {}
        for life in self.by_rank.values():
            found.setdefault(life.start.node, []).append((life.start.pid, life.start.time))
        return found

    def first_step_ended(self) -> float | None:
        """When all of its ranks had finished their first step, wall clock; None: not all did."""
        firsts = [life.steps[0].ended for life in self.by_rank.values() if life.steps]
        return max(firsts) if len(firsts) == self.size else None


@dataclass(frozen=True, slots=True)
class Effective:
    """A step as it counts: `life` did it, and none that came later took it back."""

    step: int
    life: int
    by_rank: Mapping[int, StepRecord]


@dataclass(frozen=True, slots=True)
class History:
    """A run: its lives in order, and lines that belong to none or could not be read."""

    lives: tuple[Life, ...]
    stray: tuple[str, ...] = ()

    def kept_until(self, life: Life) -> int:
        """The last step of a life that no later one took back."""
        later = [other.loaded for other in self.lives if other.number > life.number]
        return min(later, default=life.last_step)

    def effective(self) -> list[Effective]:
        """Steps that count, in order of lives, one each time that ranks did it."""
        return [
            Effective(step, life.number, found)
            for life in self.lives
            for step, found in _steps(life)
            if step <= self.kept_until(life)
        ]

    def taken_back(self) -> list[Effective]:
        """Steps that a later life did again, in order of lives."""
        return [
            Effective(step, life.number, found)
            for life in self.lives
            for step, found in _steps(life)
            if step > self.kept_until(life)
        ]

    def curve(self) -> dict[int, Mapping[int, StepRecord]]:
        """What each rank wrote of each step that counts; of one done twice, the last."""
        return {one.step: one.by_rank for one in self.effective()}


def history_of(records: Iterable[Record]) -> History:
    """Lives from records, rank by rank and in order of writing, as `read_records` gives them.

    Ranks count their restarts apart, so that their numbers name no life: a new one begins with a
    rank that starts once more, with another requeue, or with another number of ranks. Clocks of
    nodes differ, so that time tells lives apart only where some rank wrote nothing in one.
    """
    by_rank: dict[int, list[RankLife]] = {}
    stray = []
    for record in records:
        if isinstance(record, UnreadableRecord):
            stray.append(f"{record.path}:{record.line}: {record.reason}")
        elif isinstance(record, StartRecord):
            by_rank.setdefault(record.rank, []).append(RankLife(record))
        elif not by_rank.get(record.rank):
            stray.append(f"rank {record.rank}: a {record.kind} before any start")
        else:
            _add(by_rank[record.rank][-1], record)
    groups = [group for alike in _alike(by_rank) for group in _grouped(alike)]
    lives = tuple(
        Life(number, next(iter(group.values())).start.world_size, dict(sorted(group.items())))
        for number, group in enumerate(groups)
    )
    return History(lives, tuple(stray))


def _add(life: RankLife, record: StepRecord | CheckpointRecord | EndRecord) -> None:
    if isinstance(record, StepRecord):
        life.steps.append(record)
    elif isinstance(record, CheckpointRecord):
        life.checkpoints.append(record)
    else:
        life.end = record


def _alike(by_rank: Mapping[int, Sequence[RankLife]]) -> list[dict[int, list[RankLife]]]:
    """Starts of the same requeue and number of ranks, by rank; in the order of requeues."""
    alike: dict[tuple[int, str], dict[int, list[RankLife]]] = {}
    for rank, lives in by_rank.items():
        for life in lives:
            what = (life.start.world_size, life.start.incarnation.partition(".")[0])
            alike.setdefault(what, {}).setdefault(rank, []).append(life)

    def order(what: tuple[int, str]) -> tuple[int, float]:
        requeue = int(what[1]) if what[1].isdecimal() else 0
        firsts = (lives[0].start.time for lives in alike[what].values())
        return requeue, min(firsts)

    return [alike[what] for what in sorted(alike, key=order)]


def _grouped(by_rank: Mapping[int, Sequence[RankLife]]) -> list[dict[int, RankLife]]:
    """One group a life: each rank's first start, each one's second; by time where some lack one."""
    counts = {len(lives) for lives in by_rank.values()}
    if len(counts) == 1:
        return [{rank: lives[n] for rank, lives in by_rank.items()} for n in range(counts.pop())]
    starts = [life for lives in by_rank.values() for life in lives]
    groups: list[dict[int, RankLife]] = []
    for life in sorted(starts, key=lambda life: life.start.time):
        if not groups or life.start.rank in groups[-1]:
            groups.append({})
        groups[-1][life.start.rank] = life
    return groups


def _steps(life: Life) -> Iterator[tuple[int, Mapping[int, StepRecord]]]:
    """Each step with what ranks wrote of it; once more for each time that a rank did it again."""
    times: dict[int, list[dict[int, StepRecord]]] = {}
    for rank, own in life.by_rank.items():
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

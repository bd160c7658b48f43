"""Collectives that timed out, from the output of torch's watchdogs of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from pytest_mnode.logs.causes.culprits import RANK_OF_FILE, odd_ranks
from pytest_mnode.logs.causes.table import Cause, known_cause
from pytest_mnode.logs.causes.times import time_of

_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?"
    r"(?:, NumelOut=(?P<out>\d+))?.*?Timeout\(ms\)=(?P<limit>\d+)"
)
_OWN_NUMBER = re.compile(r"\[Rank (\d+)\] Watchdog caught")
"""The rank in the process group."""
_OF_TORCH = re.compile(r"\[rank(\d+)\]:")
_RANK = re.compile(r"\b[rR]ank ?(\d+)\]")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>\d+)?(?: ?PG)?(?: ?GUID (?P<guid>\w+))? ?(?:\((?P<name>[^)]+)\))? ?"
    r"Rank (?P<own>\d+)\]"
)
_AT = re.compile(r"(?:at (?:NCCL )?work(?: sequence id)?:|SeqNum=) ?(\d+)")
_ENQUEUED = re.compile(r"[Ll]ast enqueued(?: \w+)? work: (-?\d+)")

_SAME_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE")
"""Collectives in which all ranks have the same number of elements."""
_OF_PAIRS = ("SEND", "RECV", "RECVANYSOURCE", "COALESCED")
"""Operations of two ranks: each rank counts its own, and has its own side of them."""
_OF_A_SHARE = ("_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Of these, one side has as many times the elements of the other as the group has ranks."""
_WORLD = ("0", "default_pg")
"""ID, and name, of the group of all ranks."""
_Group = tuple[str | None, str | None]
"""Name or ID, and GUID: groups of a mesh share name and ID."""


@dataclass(slots=True)
class _Work:
    """size: ranks of its group, if its elements tell. in_world: whether its rank in the group is
    that in the world."""

    rank: int
    op: str
    seq: int | None
    numel: int | None
    limit_s: float
    line: str
    file: str
    size: int | None
    in_world: bool
    group: str | None = None
    guid: str | None = None

    @property
    def text(self) -> str:
        numel = "" if self.numel is None else f" of {self.numel} elements"
        group = f" in group {self.group}" if self.group else ""
        seq = "" if self.seq is None else f" {self.seq}"
        return f"{self.op}{seq}{numel}{group}, limit {self.limit_s:g} s"


@dataclass(frozen=True, slots=True)
class _Last:
    """The last work that a rank enqueued in a group. in_group: its number in the group."""

    number: int
    line: str
    file: str
    in_group: int


@dataclass(slots=True)
class _Segment:
    """What a rank's watchdogs say in a file, up to where its numbers begin again.

    number: of earlier segments of this rank in this file. time_s: see `time_of`.
    """

    file: str
    rank: int
    number: int
    time_s: float | None
    works: dict[tuple[int | None, str], _Work] = field(default_factory=dict)
    enqueued: dict[_Group, _Last] = field(default_factory=dict)

    def is_over(self, group: _Group, at: int | None, enqueued: int | None) -> bool:
        """Whether a line about these works is of a later process, or of a rank that went on."""
        last = self.enqueued.get(group)
        return last is not None and (
            (enqueued is not None and enqueued < last.number)
            or (at is not None and at > last.number)
        )

    def agrees(self, other: _Segment) -> bool:
        """Whether both may be of one process: logs are often kept twice."""
        both = self.enqueued.keys() & other.enqueued.keys()
        if any(self.enqueued[group].number != other.enqueued[group].number for group in both):
            return False
        mine, others = (
            {(*key, work.numel) for key, work in one.works.items()} for one in (self, other)
        )
        return not mine or not others or not mine.isdisjoint(others)


@dataclass(slots=True)
class Collectives:
    """Collectives that watchdogs reported; lines of ranks may come in any order and file."""

    _segments: dict[tuple[str, int], list[_Segment]] = field(default_factory=dict)
    _files: set[str] = field(default_factory=set)

    def read(self, line: str, file: str) -> bool:
        """Read a line of a file. Whether it says no more than that a collective timed out."""
        found = _OF_TORCH.search(line) or RANK_OF_FILE.search(file) or _RANK.search(line)
        timed_out = "caught collective operation timeout" in line
        if found is None:
            return False
        if "what():" in line and file in self._files:
            # The exception repeats what the watchdog said, without the rank in the world.
            return timed_out
        rank = int(found.group(1))
        work, group = _WORK.search(line), _GROUP.search(line)
        at, enqueued = _number(_AT, line), _number(_ENQUEUED, line)
        if work is None and (group is None or (at is None and enqueued is None)):
            return False
        self._files.add(file)
        segments = self._segments.setdefault((file, rank), [])
        if not segments:
            segments.append(_Segment(file, rank, 0, time_of(line)))
        now = segments[-1]
        if work is not None:
            seq = None if work["seq"] is None else int(work["seq"])
            numel = None if work["numel"] is None else int(work["numel"])
            own, limit_s = _OWN_NUMBER.search(line), int(work["limit"]) / 1000
            in_world = own is None or int(own[1]) == rank
            size = _size(work["op"], numel, int(work["out"] or 0))
            one = _Work(rank, work["op"], seq, numel, limit_s, line.strip(), file, size, in_world)
            now.works.setdefault((seq, work["op"]), one)
        if group is None:
            return timed_out and work is not None
        key = group["name"] or group["id"], group["guid"]
        if now.is_over(key, at, enqueued):
            later = _Segment(file, rank, len(segments), time_of(line))
            for which, one in list(now.works.items()):
                if one.group is None and one.seq == at:
                    later.works[which] = now.works.pop(which)
            segments.append(later)
            now = later
        if enqueued is not None:
            now.enqueued[key] = _Last(enqueued, line.strip(), file, int(group["own"]))
        for one in now.works.values():
            if at is not None and one.seq == at:
                one.group, one.guid = key[0] or one.group, key[1] or one.guid
        return timed_out and work is not None

    def attempts(self) -> list[Attempt]:
        """Those in which a watchdog reported a collective, the last one at the end.

        A rank with other numbers in another file, or later in its file, was started again, or is
        of another job. Files are told apart by the first part of their paths that differs. What
        may belong to several attempts is compared with none.
        """
        every = [one for of in self._segments.values() for one in of]
        timed = all(one.time_s is not None for one in every)
        every.sort(key=lambda one: ((one.time_s if timed else 0) or 0, one.number, one.file))
        rivals = _rivals(every)
        attempts: list[Attempt] = []
        unsure: list[Attempt] = []
        for one in every:
            others = {other for part in _parts(one.file) for other in rivals.get(part, ())}
            fit = [to for to in reversed(attempts) if others.isdisjoint(to.parts) and to.takes(one)]
            if not timed and len(fit) > 1:
                fit = [Attempt()]
                unsure += fit
            elif not fit:
                fit = [Attempt()]
                attempts += fit
            fit[0].add(one)
        return [one for one in (*unsure, *attempts) if one.works]


@dataclass(slots=True)
class Attempt:
    """Collectives of the ranks of one job, or of one attempt of it."""

    works: dict[tuple[int, int | None, str], _Work] = field(default_factory=dict)
    parts: set[tuple[str, ...]] = field(default_factory=set)
    _enqueued: dict[_Group, dict[int, _Last]] = field(default_factory=dict)
    """Last work that each rank enqueued; also of ranks without a time-out."""
    _segments: dict[int, list[_Segment]] = field(default_factory=dict)

    def takes(self, segment: _Segment) -> bool:
        """Whether it has nothing else of this rank."""
        same = self._segments.get(segment.rank, ())
        return all(one.agrees(segment) and one.file != segment.file for one in same)

    def add(self, segment: _Segment) -> None:
        """Add what a rank's watchdogs say."""
        self._segments.setdefault(segment.rank, []).append(segment)
        self.parts.update(_parts(segment.file))
        for (seq, op), work in segment.works.items():
            self.works.setdefault((segment.rank, seq, op), work)
        for group, last in segment.enqueued.items():
            self._enqueued.setdefault(group, {})[segment.rank] = last

    def _groups(self) -> dict[_Group, list[_Work]]:
        groups: dict[_Group, list[_Work]] = {}
        for work in self.works.values():
            groups.setdefault((work.group, work.guid), []).append(work)
        _join(groups)
        return groups

    def _is_one(self, group: _Group, works: list[_Work]) -> bool:
        """Whether all are of one process group: torch before 2.5 prints no GUID, and what it
        prints instead counts the groups of a rank."""
        name, guid = group
        in_world = all(work.in_world for work in works) and all(
            rank == last.in_group for rank, last in self._enqueued.get(group, {}).items()
        )
        return name is not None and (guid is not None or in_world)

    def silent(self, files: Iterable[str]) -> tuple[int, ...]:
        """Ranks that reported nothing, while all others of their group, at least twice as many,
        wait in one collective, or four times as many in groups of a mesh: that they did not join is
        likely, not sure.

        files: names of all files. Of silent ranks with and without one, the former are meant.
        """
        everyone = {rank for rank, *_ in self.works}
        logged = self._logged(files)
        for group, works in self._groups().items():
            waiting = {work.rank for work in works}
            called = {(work.seq, work.op) for work in works}
            if len(called) > 1 or works[0].op in _OF_PAIRS or not all(w.in_world for w in works):
                continue
            size = max([*waiting, *(work.size - 1 for work in works if work.size)]) + 1
            heard = everyone | self._enqueued.get(group, {}).keys()
            of_world = group[0] in _WORLD or group[1] == "0"
            absent = (set(range(size)) | (logged if of_world else set())) - heard
            silent = absent & logged or absent
            if 0 < 2 * len(silent) <= len(waiting):
                return tuple(sorted(silent))
        heard = everyone.union(*self._enqueued.values())
        silent = {*range(max(heard) + 1)} - heard if len(self._groups()) > 1 else set()
        return tuple(sorted(silent)) if 4 * len(silent) <= len(everyone) else ()

    def _logged(self, files: Iterable[str]) -> set[int]:
        """Ranks with files that stand where those of this attempt stand."""
        here = {_folder(work.file) for work in self.works.values()}
        ranks = ((RANK_OF_FILE.search(file), _folder(file)) for file in files)
        return {int(found[1]) for found, folder in ranks if found and folder in here}

    def causes(self) -> Iterator[tuple[str, Cause]]:
        """Causes by process group, with the file of each: ranks that called another collective,
        came late, or waited."""
        for group, works in self._groups().items():
            is_one = self._is_one(group, works)
            together = [work for work in works if work.op not in _OF_PAIRS]
            if is_one and together:
                yield from _behind(together, self._enqueued.get(group, {}))
            same: dict[tuple[int | None, str], list[_Work]] = {}
            for work in works:
                apart = not is_one or work.op in _OF_PAIRS
                same.setdefault((work.seq, work.op if apart else ""), []).append(work)
            for alike in same.values():
                differ = is_one and _differ(alike)
                name = "ranks' collectives differ" if differ else "collective timed out"
                texts = " or ".join(dict.fromkeys(work.text for work in alike))
                said = {work.rank: (work.op, work.numel) for work in alike}
                ranks = odd_ranks(said) if differ else tuple(sorted(said))
                detail = texts if differ else alike[0].text
                first = next(work for work in alike if work.rank in ranks)
                yield first.file, Cause(known_cause(name), first.line, ranks=ranks, detail=detail)


def _number(pattern: re.Pattern[str], line: str) -> int | None:
    found = pattern.search(line)
    return None if found is None else int(found.group(1))


def _parts(file: str) -> Iterator[tuple[str, ...]]:
    """The beginnings of a path, the whole one included."""
    parts = PurePath(file).parts
    return (parts[:end] for end in range(1, len(parts) + 1))


def _folder(file: str) -> str | None:
    """The folder in which the files or folders of ranks stand; None without a rank."""
    found = RANK_OF_FILE.search(file)
    return None if found is None else file[: found.start()].rpartition("/")[0]


def _rivals(segments: Iterable[_Segment]) -> Mapping[tuple[str, ...], set[tuple[str, ...]]]:
    """Beginnings of paths whose files are not of one attempt."""
    by_rank: dict[int, list[_Segment]] = {}
    rivals: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for one in segments:
        for other in by_rank.setdefault(one.rank, []):
            if one.file == other.file or one.agrees(other):
                continue
            pairs = zip(_parts(one.file), _parts(other.file), strict=False)
            here, there = next(pair for pair in pairs if pair[0] != pair[1])
            rivals.setdefault(here, set()).add(there)
            rivals.setdefault(there, set()).add(here)
        by_rank[one.rank].append(one)
    return rivals


def _size(op: str, numel: int | None, out: int) -> int | None:
    few, many = sorted((numel or 0, out))
    return many // few if op in _OF_A_SHARE and few and many % few == 0 and many > few else None


def _join(groups: dict[_Group, list[_Work]]) -> None:
    """Move each work without a group into the only one that it can belong to.

    The line with the group is missing where a rank ended before it printed all.
    """
    named = {name: works for name, works in groups.items() if name != (None, None)}
    known = {name: {(one.rank, one.seq) for one in works} for name, works in named.items()}
    numbers = {name: {seq for _, seq in of} for name, of in known.items()}
    for work in groups.get((None, None), [])[:]:
        own = work.rank, work.seq
        fit = [name for name in named if work.seq in numbers[name] and own not in known[name]]
        if len(fit) == 1 and work.seq is not None:
            work.group, work.guid = fit[0]
            named[fit[0]].append(work)
            known[fit[0]].add(own)
            groups[None, None].remove(work)
    if (None, None) in groups and not groups[None, None]:
        del groups[None, None]


def _behind(works: list[_Work], enqueued: Mapping[int, _Last]) -> Iterator[tuple[str, Cause]]:
    """Ranks that did not enqueue the collective in which others of the group wait."""
    latest = max(works, key=lambda work: work.seq or 0)
    late = {rank: last for rank, last in enqueued.items() if last.number < (latest.seq or 0)}
    if late:
        one = next(iter(late.values()))
        done = "no work" if one.number < 0 else f"no more than work {one.number}"
        text = f"enqueued {done}, while others wait in {latest.text}"
        ranks = tuple(sorted(late))
        yield one.file, Cause(known_cause("rank did not join"), one.line, ranks=ranks, detail=text)


def _differ(works: list[_Work]) -> bool:
    ops = {work.op for work in works}
    return len(ops) > 1 or (
        ops <= set(_SAME_SIZE) and len({work.numel for work in works} - {None}) > 1
    )

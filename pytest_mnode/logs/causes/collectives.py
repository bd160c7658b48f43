"""Collectives that timed out, from the output of torch's watchdogs of all ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_mnode.logs.causes.table import Cause, known_cause

_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?"
    r"(?:, NumelOut=(?P<out>\d+))?.*?Timeout\(ms\)=(?P<limit>\d+)"
)
_OWN_NUMBER = re.compile(r"\[Rank (\d+)\] Watchdog caught")
"""The rank in the process group."""
_RANK = re.compile(r"\[[rR]ank ?(\d+)\]|Rank (\d+)\]")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>\d+)?(?: ?PG)?(?: ?GUID (?P<guid>\w+)(?:\((?P<name>[^)]+)\))?)? ?"
    r"Rank \d+\]"
)
_AT = re.compile(r"(?:at (?:NCCL )?work(?: sequence id)?:|SeqNum=) ?(\d+)")
_ENQUEUED = re.compile(r"[Ll]ast enqueued(?: \w+)? work: (-?\d+)")

_SAME_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE")
"""Collectives in which all ranks have the same number of elements."""
_OF_PAIRS = ("SEND", "RECV", "RECVANYSOURCE", "COALESCED")
"""Operations of two ranks: each rank counts its own, and has its own side of them."""
_OF_A_SHARE = ("_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Of these, one side has as many times the elements of the other as the group has ranks."""
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


@dataclass(slots=True)
class Collectives:
    """Collectives that watchdogs reported; lines of ranks may come in any order and file."""

    works: dict[tuple[int, int | None, str], _Work] = field(default_factory=dict)
    enqueued: dict[_Group, dict[int, tuple[int, str, str]]] = field(default_factory=dict)
    """Last work that each rank enqueued, with line and file; also of ranks without a time-out."""

    def read(self, line: str, file: str) -> None:
        """Read a line of a file; most lines report no collective."""
        if "atchdog" not in line and " work" not in line:
            return
        found = _RANK.search(line)
        if found is None:
            return
        rank = int(found.group(1) or found.group(2))
        if (work := _WORK.search(line)) is not None:
            seq = None if work["seq"] is None else int(work["seq"])
            numel = None if work["numel"] is None else int(work["numel"])
            own, limit_s = _OWN_NUMBER.search(line), int(work["limit"]) / 1000
            in_world = own is None or int(own[1]) == rank
            size = _size(work["op"], numel, int(work["out"] or 0))
            one = _Work(rank, work["op"], seq, numel, limit_s, line.strip(), file, size, in_world)
            self.works.setdefault((rank, seq, work["op"]), one)
        at, enqueued = _AT.search(line), _ENQUEUED.search(line)
        group = _GROUP.search(line)
        if group is None:
            return
        name = group["name"] or group["id"]
        if enqueued is not None:
            ranks = self.enqueued.setdefault((name, group["guid"]), {})
            # The highest: numbers begin again where a launcher restarts the ranks.
            last = int(enqueued.group(1)), line.strip(), file
            ranks[rank] = max(ranks.get(rank, last), last)
        for one in self.works.values():
            if at is not None and one.rank == rank and one.seq == int(at.group(1)):
                one.group, one.guid = name or one.group, group["guid"] or one.guid

    def _groups(self) -> dict[_Group, list[_Work]]:
        groups: dict[_Group, list[_Work]] = {}
        for work in self.works.values():
            groups.setdefault((work.group, work.guid), []).append(work)
        _join(groups)
        return groups

    def silent(self) -> tuple[int, ...]:
        """Ranks that reported nothing, while all others of their group, at least twice as many,
        wait in one collective: that they did not join it is likely, not sure."""
        for group, works in self._groups().items():
            waiting = {work.rank for work in works}
            called = {(work.seq, work.op) for work in works}
            if len(called) > 1 or works[0].op in _OF_PAIRS or not all(w.in_world for w in works):
                continue
            size = max([*waiting, *(work.size - 1 for work in works if work.size)]) + 1
            heard = waiting | self.enqueued.get(group, {}).keys()
            if 0 < 2 * len(silent := set(range(size)) - heard) <= len(waiting):
                return tuple(sorted(silent))
        return ()

    def causes(self) -> Iterator[tuple[str, Cause]]:
        """Causes by process group, with the file of each: ranks that called another collective,
        came late, or waited."""
        for (group, guid), works in self._groups().items():
            together = [work for work in works if work.op not in _OF_PAIRS]
            if group is not None and together:
                yield from _behind(together, self.enqueued.get((group, guid), {}))
            same: dict[tuple[int | None, str], list[_Work]] = {}
            for work in works:
                apart = group is None or work.op in _OF_PAIRS
                same.setdefault((work.seq, work.op if apart else ""), []).append(work)
            for alike in same.values():
                differ = group is not None and _differ(alike)
                name = "ranks' collectives differ" if differ else "collective timed out"
                texts = " or ".join(dict.fromkeys(work.text for work in alike))
                ranks = tuple(sorted(_odd(alike) if differ else {work.rank for work in alike}))
                detail = texts if differ else alike[0].text
                first = next(work for work in alike if work.rank in ranks)
                yield first.file, Cause(known_cause(name), first.line, ranks=ranks, detail=detail)


def _size(op: str, numel: int | None, out: int) -> int | None:
    few, many = sorted((numel or 0, out))
    return many // few if op in _OF_A_SHARE and few and many % few == 0 and many > few else None


def _join(groups: dict[_Group, list[_Work]]) -> None:
    """Move each work without a group into the only one that it can belong to.

    The line with the group is missing where a rank ended before it printed all.
    """
    named = {name: works for name, works in groups.items() if name != (None, None)}
    for work in groups.get((None, None), [])[:]:
        fit = [
            name
            for name, works in named.items()
            if any(one.seq == work.seq for one in works)
            and all((one.rank, one.seq) != (work.rank, work.seq) for one in works)
        ]
        if len(fit) == 1 and work.seq is not None:
            work.group, work.guid = fit[0]
            named[fit[0]].append(work)
            groups[None, None].remove(work)
    if (None, None) in groups and not groups[None, None]:
        del groups[None, None]


def _behind(
    works: list[_Work], enqueued: dict[int, tuple[int, str, str]]
) -> Iterator[tuple[str, Cause]]:
    """Ranks that did not enqueue the collective in which others of the group wait."""
    latest = max(works, key=lambda work: work.seq or 0)
    late = {rank: last for rank, last in enqueued.items() if last[0] < (latest.seq or 0)}
    if late:
        number, line, file = next(iter(late.values()))
        done = "no work" if number < 0 else f"no more than work {number}"
        text = f"enqueued {done}, while others wait in {latest.text}"
        ranks = tuple(sorted(late))
        yield file, Cause(known_cause("rank did not join"), line, ranks=ranks, detail=text)


def _differ(works: list[_Work]) -> bool:
    ops = {work.op for work in works}
    return len(ops) > 1 or (
        ops <= set(_SAME_SIZE) and len({work.numel for work in works} - {None}) > 1
    )


def _odd(works: list[_Work]) -> set[int]:
    """Ranks in the minority; all ranks if there is none."""
    counts = Counter((work.op, work.numel) for work in works)
    most = max(counts.values())
    odd = {work.rank for work in works if counts[work.op, work.numel] < most}
    return odd or {work.rank for work in works}

"""The ledger of a job's time: parts that add up to its wall time, by what its ranks noted. Pure.

Ranks run in lockstep, so a step takes as long as its slowest rank. Its input and its checkpoint
are those of the rank that waits longest; it communicates as long as the rank that waits least,
by traces of some steps; what is left of the median rank is stepping, and what the slowest rank
takes beyond it is waiting for a slow rank. What no rank noted is not zero: it is unseen.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median, median_low
from typing import Literal, NamedTuple, get_args

from pytest_mnode.jobs.observer import TRACED_STEPS
from pytest_mnode.logs.kineto import Traced, read_trace
from pytest_mnode.spec.workload import PartName

PARTS: tuple[PartName, ...] = get_args(PartName)
PRODUCTIVE: tuple[PartName, ...] = ("stepping", "communicating")
_STALLED = 3.0
"""[choice] A step that takes this many times the usual has stalled, for what is beyond that."""
_SLOW = 0.05
"""[choice] A rank is slow if it takes this fraction of a step longer than the median rank."""
_LEAST_BYTES = 1 << 20
_COMPARABLE = 0.25
_FULL = 0.9
_SLOW_LINK = 4.0
"""[choice] A path is slow if another carries this many times as much while it is busy (of healthy
ones on busy cores, up to 2.2 times). It is busy until the acknowledgement, so small messages look
slow: connections count that carried _LEAST_BYTES, this fraction of what another did, in segments
that are as full as this (of bulk data 0.94 and more)."""
_CLOCK_S = 1.0
_NEGATIVE = 0.05
"""[choice] Clocks differ if ranks live this long outside of the job, or if a part of its wall time
is negative by more than this fraction."""
_KINDS: Mapping[str, PartName] = {
    "input": "input",
    "save": "checkpointing",
    "observing": "observing",
}
_NAMED = ("begin", "sent")
"""Kinds whose note has more than times."""
_NOTES = re.compile(r"rank(\d+)\.(\d+)(?:\.(\d+)\.trace\.json\.gz|\.jsonl)$")
Span = tuple[float, float]


class Connection(NamedTuple):
    """What the kernel counted of one over TCP. local, peer: addresses. sent: bytes. busy_s: seconds
    for which its network was busy with them. room: bytes that as many segments can hold."""

    local: str
    peer: str
    sent: float
    busy_s: float
    room: float


@dataclass(slots=True)
class RankNotes:
    """What a rank noted between its start and its end; times in seconds since 1970. restarts: of
    all ranks by torchrun, before. steps: their ends. forward: its first call of a module. traces:
    by the number of their last step."""

    rank: int
    node: str = ""
    restarts: int = 0
    began: float | None = None
    forward: float | None = None
    steps: list[float] = field(default_factory=list)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    traces: dict[int, Traced] = field(default_factory=dict)
    sent: list[Connection] = field(default_factory=list)
    last: float | None = None
    """Its last note."""

    def during(self, kind: str, begin: float, end: float) -> float:
        """Seconds of this kind within a span. Spans of a kind follow each other."""
        spans, seconds = self.spans.get(kind, []), 0.0
        for at in range(bisect_right(spans, begin, key=lambda one: one[1]), len(spans)):
            if spans[at][0] >= end:
                break
            seconds += min(end, spans[at][1]) - max(begin, spans[at][0])
        return seconds


@dataclass(frozen=True, slots=True)
class Ledger:
    """The parts of a wall time, in seconds, which add up to it. slow: ranks that make others wait,
    by the part in which they do. slow_link: nodes of which one has a slow link, by what TCP
    counted; none if all paths are alike. traces: number of traces of which communication is known.
    hidden: seconds per step of communication beside computing. lost: steps done twice. ranks: that
    noted something. missing: why parts are not known. took: seconds of steps, without the first
    after each start. traced: communication per step of each traced rank, exposed and hidden, in
    seconds."""

    wall: float
    parts: Mapping[PartName, float]
    slow: Mapping[PartName, int] = field(default_factory=dict)
    traces: int = 0
    hidden: float | None = None
    steps: int = 0
    lost: int = 0
    starts: int = 0
    ranks: int = 0
    missing: Mapping[PartName | Literal["goodput"], str] = field(default_factory=dict)
    slow_link: frozenset[str] = frozenset()
    took: tuple[float, ...] = ()
    traced: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def unseen(self, name: PartName | Literal["goodput"]) -> str:
        """Why a part is not known, though its seconds are 0; "" if it is known."""
        return self.missing.get(name, "")

    @property
    def goodput(self) -> float | None:
        """Fraction of the wall time in which the job made progress; None if it is not known."""
        if not self.steps or self.unseen("goodput"):
            return None
        return sum(self.parts[name] for name in PRODUCTIVE) / self.wall


def read_notes(files: Mapping[str, bytes]) -> list[list[RankNotes]]:
    """What ranks noted, by file name; one list for each start of the job, in their order.

    All ranks of a start live at once. So a rank begins a new one if it is in the last one, or if
    all of that have ended: torchrun's own count of restarts differs from node to node. Programs
    without a call of a module are no ranks, if there are others, unless torchrun has started them
    again since. Content is read file by file.
    """
    found: dict[tuple[int, int], RankNotes] = {}
    traces: dict[tuple[int, int], dict[int, Traced]] = {}
    for name, content in files.items():
        if (match := _NOTES.search(name)) is None:
            continue
        key = int(match[1]), int(match[2])
        if not match[3]:
            found[key] = _notes(key[0], content.decode(errors="replace"))
        elif (trace := read_trace(content)) is not None:
            traces.setdefault(key, {})[int(match[3])] = trace
    for key, one in found.items():
        one.traces = traces.get(key, {})
    called = [one for one in found.values() if one.forward is not None]
    known = {one.node: one.restarts for one in sorted(called, key=lambda one: one.restarts)}
    every = [
        one
        for one in found.values()
        if not called or one.forward is not None or one.restarts > known.get(one.node, 1 << 63)
    ]
    starts: list[list[RankNotes]] = []
    for one in sorted(every, key=lambda one: one.began or 0.0):
        if (
            not starts
            or one.rank in {other.rank for other in starts[-1]}
            or _ended(starts[-1], one)
        ):
            starts.append([])
        starts[-1].append(one)
    return starts


def _ended(ranks: Iterable[RankNotes], one: RankNotes) -> bool:
    """Whether these ranks, which called a module, noted nothing more when this one began."""
    began = one.began or 0.0
    return all(r.forward is not None and r.last is not None and r.last < began for r in ranks)


def _notes(rank: int, text: str) -> RankNotes:
    notes = RankNotes(rank)
    for line in text.splitlines():
        try:
            kind, time_s, *rest = json.loads(line)
            begin, *ends = map(float, (time_s, *(rest if kind not in _NAMED else ())))
            if not all(map(math.isfinite, (begin, *ends))):
                continue
            if kind == "begin":
                notes.began, notes.node = begin, str(rest[0])
                notes.restarts = int(rest[2]) if rest[2:] else 0
            elif kind == "forward":
                notes.forward = begin
            elif kind == "sent":
                notes.sent = [
                    Connection(str(local), str(peer), *map(float, counted))
                    for local, peer, *counted in rest[0]
                ]
            elif kind == "step":
                notes.steps.append(begin)
            else:
                [ended] = ends
                notes.spans.setdefault(kind, []).append((begin, ended))
            notes.last = max(notes.last or 0.0, begin, *ends)
        except (AttributeError, LookupError, ValueError, TypeError):
            continue  # torn by a kill
    return notes


def ledger(
    starts: Sequence[Sequence[RankNotes]],
    begin: float,
    end: float,
    *,
    last_step: int | None = None,
    hung: bool = False,
) -> Ledger:
    """The ledger of a job that ran from `begin` to `end`.

    last_step: the number of steps that its log counts, from its beginning; None if unknown.
    hung: whether it was ended because it made no step.
    """
    books: list[list[dict[PartName, float]]] = []
    between: dict[PartName, float] = dict.fromkeys(PARTS, 0.0)
    slow: dict[tuple[PartName, int], float] = defaultdict(float)
    traces, took, at = 0, list[float](), begin
    traced: dict[int, list[Traced]] = defaultdict(list)
    for number, ranks in enumerate(starts):
        firsts = [one.forward for one in ranks if one.forward is not None]
        if not firsts:
            continue
        first = max(at, *firsts)
        between["restarting" if number else "starting"] += first - at
        at = first
        done = Steps.of(ranks, first)
        books.append(done.book(slow))
        traces += len(done.traced)
        took += [after - before for before, after in pairwise(done.ends)]
        for some in done.traced.values():
            for rank, one in zip(ranks, some, strict=True):
                traced[rank.rank].append(one)
        at = done.ends[-1] if done.ends else at
    of_ranks = {
        rank: (
            fmean(one.exposed for one in some) / TRACED_STEPS,
            fmean(one.hidden for one in some) / TRACED_STEPS,
        )
        for rank, some in sorted(traced.items())
    }
    lost = _lose(books, last_step)
    steps = sum(map(len, books))
    if starts and (steps or hung):
        saved = max((one.during("save", at, end) for one in starts[-1]), default=0.0)
        between["checkpointing"] += saved
        again = len(starts) > 1 and all(one.forward is None for one in starts[-1])
        rest: PartName = "stalled" if hung else "restarting" if again else "ending"
        between[rest] += max(0.0, end - at - saved)
    for book in books:
        for parts in book:
            for name, seconds in parts.items():
                between[name] += seconds
    between["unattributed"] = (end - begin) - sum(between.values())
    culprits = {name: rank for (name, rank), s in slow.items() if s > between[name] / 2}
    missing = _missing(starts, steps, traces, numbered=last_step is not None)
    ranks = [one for some in starts for one in some]
    if any(seconds < -_NEGATIVE * (end - begin) for seconds in between.values()) or any(
        (one.began or begin) < begin - _CLOCK_S or (not hung and (one.last or end) > end + _CLOCK_S)
        for one in ranks
    ):
        why = "clocks of the nodes differ from the controller's"
        missing = dict.fromkeys((*PARTS, "goodput"), why)
        culprits = {}
    return Ledger(
        end - begin,
        between,
        culprits,
        traces,
        fmean(hidden for _, hidden in of_ranks.values()) if of_ranks else None,
        steps,
        lost,
        len(starts),
        max(map(len, starts), default=0),
        missing,
        slow_link(starts[-1]) if starts else frozenset(),
        tuple(took),
        of_ranks,
    )


def _missing(
    starts: Sequence[Sequence[RankNotes]], steps: int, traces: int, *, numbered: bool
) -> dict[PartName | Literal["goodput"], str]:
    """Why parts are not known, by what ranks did not note."""
    if not steps:
        return dict.fromkeys((*PARTS, "goodput"), "no rank noted a step")
    kinds = {kind for ranks in starts for one in ranks for kind in one.spans}
    found: dict[PartName | Literal["goodput"], str] = {}
    if not traces:
        found |= dict.fromkeys(
            ("communicating", "slow rank"), "no two steps were traced by all ranks"
        )
    if not kinds & {"input", "hidden input"}:
        found["input"] = "no batch of a DataLoader was noted"
    if "save" not in kinds:
        found["checkpointing"] = "no writing of a checkpoint was noted"
    if starts[1:] and not numbered:
        found["lost steps"] = "it started again, and its log numbers no steps"
    return found


def _lose(books: Sequence[list[dict[PartName, float]]], last_step: int | None) -> int:
    """Enter steps that were done twice as lost: the last ones before a restart."""
    lost = left = max(0, sum(map(len, books)) - last_step) if last_step is not None else 0
    for book in reversed(books[:-1]):
        for number in range(len(book) - 1, max(-1, len(book) - 1 - left), -1):
            book[number] = {"lost steps": sum(book[number].values())}
            left -= 1
    return lost - left


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one start of a job. first: the begin of the first one. ends: of each, on its slowest
    rank. traced: what ranks traced, by the number of the last step."""

    ranks: Sequence[RankNotes]
    first: float
    ends: Sequence[float]
    traced: Mapping[int, Sequence[Traced]]

    @classmethod
    def of(cls, ranks: Sequence[RankNotes], first: float) -> Steps:
        """Steps that any rank ended."""
        count = max(len(one.steps) for one in ranks)
        ends = [max(one.steps[at] for one in ranks if len(one.steps) > at) for at in range(count)]
        numbers = {number for one in ranks for number in one.traces if number <= count}
        complete = {
            number: [one.traces[number] for one in ranks]
            for number in sorted(numbers)
            if all(number in one.traces for one in ranks)
        }
        return cls(ranks, first, ends, complete)

    def book(self, slow: dict[tuple[PartName, int], float]) -> list[dict[PartName, float]]:
        """The parts of each step. slow: for how long ranks are waited for, by part."""
        if not self.ends:
            return []
        book = [self._noted(number, slow) for number in range(len(self.ends))]
        rests = [self._length(number) - sum(parts.values()) for number, parts in enumerate(book)]
        usual = median(rests[1:] or rests)
        exposed, behind, slowest = self._waits(usual, rests)
        for number, (parts, rest) in enumerate(zip(book, rests, strict=True)):
            beyond = rest - usual
            if beyond > 0 and (number == 0 or rest > _STALLED * usual):
                parts["stalled" if number else "compiling"] = beyond
                rest -= beyond  # noqa: PLW2901
            parts["communicating"] = rest * exposed
            parts["slow rank"] = min(rest - parts["communicating"], behind)
            parts["stepping"] = rest - parts["communicating"] - parts["slow rank"]
            if slowest is not None:
                slow["slow rank", slowest] += parts["slow rank"]
        return book

    def _length(self, number: int, steps: int = 1) -> float:
        """Seconds of this step and the ones before it."""
        before = number - steps
        return self.ends[number] - (self.ends[before] if before >= 0 else self.first)

    def _noted(self, number: int, slow: dict[tuple[PartName, int], float]) -> dict[PartName, float]:
        """Parts that a rank timed: of the rank that took longest. No more than the step took."""
        length = left = self._length(number)
        parts: dict[PartName, float] = {}
        for kind, name in _KINDS.items():
            took = {
                r.rank: r.during(kind, self.ends[number] - length, self.ends[number])
                for r in self.ranks
            }
            most = max(took, key=lambda rank: took[rank])
            more = min(took[most], left) - median_low(took.values())
            if name != "observing" and more > _SLOW * length:
                slow[name, most] += more
            parts[name] = min(took[most], left)
            left -= parts[name]
        return parts

    def _waits(self, usual: float, rests: Sequence[float]) -> tuple[float, float, int | None]:
        """Fraction of a step without its noted parts in which all ranks wait for the network: where
        that takes most of a step, its rate is what differs from step to step. And the seconds of a
        step for which they wait for the slowest rank: the one that is behind in most traces."""
        waits, whole = list[float](), 0.0
        behind: dict[int, list[float]] = defaultdict(list)
        for number, traced in self.traced.items():
            length = self._length(number - 1, TRACED_STEPS)
            end = self.ends[number - 1]
            own = {
                rank.rank: length
                - one.exposed
                - sum(rank.during(kind, end - length, end) for kind in _KINDS)
                for rank, one in zip(self.ranks, traced, strict=True)
            }
            waits.append(min(one.exposed for one in traced))
            whole += sum(rests[number - TRACED_STEPS : number])
            slowest = max(own, key=lambda rank: own[rank])
            more = (own[slowest] - median_low(own.values())) / TRACED_STEPS
            if more > _SLOW * usual:
                behind[slowest].append(more)
        exposed = min(1.0, sum(waits) / whole) if whole > 0 else 0.0
        for rank, some in behind.items():
            if 2 * len(some) > len(waits):
                return exposed, fmean(some), rank
        return exposed, 0.0, None


def slow_link(ranks: Iterable[RankNotes]) -> frozenset[str]:
    """Nodes of which one has a slow link: the one of all slow paths, or both ends of the only one.

    A rank that is late delays all paths of a ring, but keeps none busy.
    """
    ranks = list(ranks)
    owners: dict[str, set[str]] = defaultdict(set)
    for one in ranks:
        for local, *_ in one.sent:
            owners[local].add(one.node)
    # Of all nodes are loopback and bridges of containers: they are no paths between nodes.
    nodes = {
        address: node
        for address, [node, *others] in owners.items()
        if not others and not address.startswith(("127.", "::1", "::ffff:127."))
    }
    between = [
        ((one.node, nodes[tcp.peer]), tcp)
        for one in ranks
        for tcp in one.sent
        if nodes.get(tcp.local) and nodes.get(tcp.peer, one.node) != one.node
    ]
    full = [(path, tcp) for path, tcp in between if tcp.busy_s > 0 and tcp.sent >= _FULL * tcp.room]
    least = max([_LEAST_BYTES, *(_COMPARABLE * tcp.sent for _, tcp in full)])
    moved: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for path, tcp in full:
        if tcp.sent >= least:
            moved[path][0] += tcp.sent
            moved[path][1] += tcp.busy_s
    rates = {path: sent / busy_s for path, (sent, busy_s) in moved.items()}
    most = max(rates.values(), default=0.0)
    slow = [frozenset(path) for path, rate in rates.items() if rate * _SLOW_LINK < most]
    return frozenset.intersection(*slow) if slow else frozenset()

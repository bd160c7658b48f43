"""Heartbeats: from lines to values, and who was there when. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_mnode.gang.engine import Beat

WHATS = ("beat", "end", "told")
GAP_S = 3.0
"""Without a heartbeat for so long a rank is taken for gone; one comes every 0.2 s."""


def read_beats(text: str) -> tuple[list[Beat], int]:
    """Heartbeats of whole lines, and how many lines are none."""
    beats, unreadable = [], 0
    for line in text.splitlines():
        beat = _beat(line)
        if beat is None:
            unreadable += 1
        else:
            beats.append(beat)
    return beats, unreadable


def _beat(line: str) -> Beat | None:
    words = line.split(" ")
    if len(words) != 6 or words[0] not in WHATS or not all(words):
        return None
    what, job, life, rank, node, at = words
    try:
        at_s = float(at)
        beat = Beat(job, int(life), int(rank), node, at_s, what)
    except ValueError:
        return None
    return beat if math.isfinite(at_s) and at_s > 0 else None


@dataclass(frozen=True, slots=True)
class Span:
    """A rank was there from its first heartbeat to the last, without a gap."""

    job: str
    life: int
    rank: int
    node: str
    began_s: float
    ended_s: float


def spans(beats: Iterable[Beat], gap_s: float = GAP_S) -> list[Span]:
    """When each rank was there; one that fell silent for longer than the gap was gone meanwhile."""
    of: dict[tuple[str, int, int, str], list[float]] = {}
    for beat in beats:
        of.setdefault((beat.job, beat.life, beat.rank, beat.node), []).append(beat.at_s)
    found = []
    for (job, life, rank, node), times in of.items():
        times.sort()
        began = before = times[0]
        for at in times[1:]:
            if at - before > gap_s:
                found.append(Span(job, life, rank, node, began, before))
                began = at
            before = at
        found.append(Span(job, life, rank, node, began, before))
    return sorted(found, key=lambda one: (one.began_s, one.job, one.rank))


@dataclass(frozen=True, slots=True)
class Presence:
    """So many ranks were there at the same time."""

    ranks: tuple[Span, ...]
    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


def presences(ranks: Sequence[Span]) -> list[Presence]:
    """Who was there together, in order of time; times when nobody was are left out."""
    times = sorted({t for one in ranks for t in (one.began_s, one.ended_s)})
    found: list[Presence] = []
    for began, ended in pairwise(times):
        there = tuple(one for one in ranks if one.began_s <= began and ended <= one.ended_s)
        if there:
            found.append(Presence(there, began, ended))
    return found

"""Heartbeats of ranks: parsing, the times when ranks ran, and differences of clocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path

from pytest_mnode.gang.engine import Heartbeat, Observation
from pytest_mnode.gang.window import BLIND_S, KEY, Window
from pytest_mnode.spec.gang import GangCriterion

_WHATS = ("beat", "end", "sigterm")
GAP_S = 3.0
"""A rank without a heartbeat for this long is gone; ranks send one every 0.2 s."""


def read_heartbeats(text: str) -> tuple[list[Heartbeat], int]:
    """Heartbeats in complete lines, and the number of lines that are no heartbeats."""
    found = [_heartbeat(line) for line in text.splitlines()]
    return [beat for beat in found if beat is not None], found.count(None)


def _heartbeat(line: str) -> Heartbeat | None:
    words = line.split(" ")
    if len(words) != 6 or words[0] not in _WHATS or not all(words):
        return None
    what, job, restarts, rank, node, at = words
    try:
        beat = Heartbeat(job, int(restarts), int(rank), node, float(at), what)
    except ValueError:
        return None
    return beat if math.isfinite(beat.at_s) and beat.at_s > 0 else None


class HeartbeatFiles:
    """Heartbeat files in a directory, one per rank, read incrementally."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, int] = {}

    def read(self) -> tuple[tuple[Heartbeat, ...], int]:
        """Heartbeats in complete lines since the last call, and the number of other lines."""
        beats: list[Heartbeat] = []
        unreadable = 0
        try:
            paths = sorted(self._directory.glob("*.beats"))
        except OSError:
            return (), 1
        for path in paths:
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(path.name, 0))
                    data = file.read()
            except OSError:  # without its file system, the content of the file is unknown
                unreadable += 1
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path.name] = self._read.get(path.name, 0) + len(whole)
            some, wrong = read_heartbeats(whole.decode(errors="replace"))
            beats += some
            unreadable += wrong
        return tuple(beats), unreadable


RankKey = tuple[str, int, int, str]
"""Job, restarts, rank, node."""


def by_rank(beats: Iterable[Heartbeat]) -> dict[RankKey, list[Heartbeat]]:
    """The heartbeats of each rank in order of time."""
    found: dict[RankKey, list[Heartbeat]] = {}
    for beat in beats:
        found.setdefault((beat.job, beat.restarts, beat.rank, beat.node), []).append(beat)
    return {key: sorted(some, key=lambda beat: beat.at_s) for key, some in found.items()}


@dataclass(frozen=True, slots=True)
class RankSpan:
    """The time of a rank from its first to its last heartbeat, without a gap."""

    job: str
    restarts: int
    rank: int
    node: str
    began_s: float
    ended_s: float


def spans(beats: Iterable[Heartbeat], gap_s: float = GAP_S) -> list[RankSpan]:
    """Times when each rank ran, in order of time; a gap longer than `gap_s` ends a span."""
    found = []
    for key, some in by_rank(beats).items():
        began = some[0].at_s
        for before, beat in pairwise(some):
            if beat.at_s - before.at_s > gap_s:
                found.append(RankSpan(*key, began, before.at_s))
                began = beat.at_s
        found.append(RankSpan(*key, began, some[-1].at_s))
    return sorted(found, key=lambda one: (one.began_s, one.job, one.rank))


def distinct(ranks: Iterable[RankSpan]) -> int:
    return len({(one.job, one.rank) for one in ranks})


@dataclass(frozen=True, slots=True)
class Presence:
    """A time during which the same ranks ran."""

    ranks: tuple[RankSpan, ...]
    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


def presences(ranks: Sequence[RankSpan]) -> list[Presence]:
    """Times when the same ranks ran, in order; times without any rank are left out."""
    times = sorted({t for one in ranks for t in (one.began_s, one.ended_s)})
    found: list[Presence] = []
    for began, ended in pairwise(times):
        there = tuple(one for one in ranks if one.began_s <= began and ended <= one.ended_s)
        if there:
            found.append(Presence(there, began, ended))
    return found


def clocks_off(windows: Iterable[Window], promise: GangCriterion) -> dict[str, float]:
    """Nodes whose clock differs from the controller's by more than `clock_skew`, with the proven
    least difference in seconds: positive if the clock is ahead, negative if it is behind.

    A heartbeat that was read before its own time, or is older than its gang's submission, proves a
    difference whatever the scheduler did. If all heartbeats of a rank came late by about the same
    time, its clock is behind or its heartbeats are delayed, so it is unknown when that rank ran.
    """
    off: dict[str, float] = {}
    for window in windows:
        submitted = {job: gang.submitted_s for gang in window.gangs for job in gang.jobs}
        for observation, read_s in _when_read(window.observations):
            for beat in observation.beats:
                ahead = max(0.0, beat.at_s - read_s)
                by = ahead or min(0.0, beat.at_s - submitted.get(beat.job, beat.at_s))
                if abs(by) > promise.clock_skew_s:
                    off[beat.node] = max(off.get(beat.node, 0.0), by, key=abs)
        for node, behind_s in _behind(window.observations):
            if behind_s > promise.clock_skew_s:
                off[node] = max(off.get(node, 0.0), -behind_s, key=abs)
    return off


def _behind(observations: Sequence[Observation]) -> Iterator[tuple[str, float]]:
    """The node of each rank, and the least time by which all of its heartbeats came late.

    A heartbeat arrived after the answer of one observation and before the request of the next. A
    difference of clocks must explain all heartbeats of a rank. Those of a single observation prove
    nothing, because they may have been delayed together.
    """
    least: dict[RankKey, float] = {}
    most: dict[RankKey, float] = {}
    observations_of: dict[RankKey, set[float]] = {}
    before_s = -math.inf
    for observation, read_s in _when_read(observations):
        for beat in observation.beats:
            rank = (beat.job, beat.restarts, beat.rank, beat.node)
            least[rank] = max(least.get(rank, -math.inf), before_s - beat.at_s)
            most[rank] = min(most.get(rank, math.inf), read_s - beat.at_s)
            observations_of.setdefault(rank, set()).add(observation.requested_s)
        before_s = observation.answered_s
    for rank, behind_s in least.items():
        if behind_s <= most[rank] and len(observations_of[rank]) > 1:
            yield rank[3], behind_s


def _when_read(observations: Sequence[Observation]) -> Iterator[tuple[Observation, float]]:
    """Each observation with heartbeats, and the latest time at which they were read: the request of
    the next observation."""
    observations = [observation for observation in observations if not observation.reported]
    for observation, later in zip_longest(observations, observations[1:]):
        yield observation, observation.answered_s + BLIND_S if later is None else later.requested_s


def clock_note(off: Mapping[str, float], nodes: Iterable[str], promise: GangCriterion) -> str:
    """A note on those of these nodes whose clock is off; "" if none is."""
    late = ", or its heartbeats come late"
    some = [
        f"{node}'s clock is off by {off[node]:+.1f} s or more{late if off[node] < 0 else ''}"
        for node in sorted(set(nodes))
        if node in off
    ]
    return f"{'; '.join(some)} ({KEY}.clock_skew {promise.clock_skew_s:g} s)" if some else ""

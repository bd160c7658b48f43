"""Clocks of nodes that are proven to be off by more than is promised. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import inf

from pytest_mnode.gang.engine import Beat, Look
from pytest_mnode.gang.terms import KEY, Terms, Window
from pytest_mnode.gang.timeline import BLIND_S


def clocks_off(windows: Iterable[Window], terms: Terms) -> dict[str, float]:
    """Nodes whose clock differs by more than `clock_skew` from the controller's, and seconds by
    which it does at least: more than 0 where it is ahead, less where it is behind.

    A heartbeat that was read before its time, or is older than its gang's submission, proves it,
    whatever the scheduler did. Where all heartbeats of a rank came late by about the same, the
    clock is behind, or what brings them is slow: of when that rank ran nothing is known.
    """
    off: dict[str, float] = {}
    for window in windows:
        asked = {job: gang.asked_s for gang in window.gangs for job in gang.jobs}
        for beat, read_s in _read(window.looks):
            ahead = max(0.0, beat.at_s - read_s)
            by = ahead or min(0.0, beat.at_s - asked.get(beat.job, beat.at_s))
            if abs(by) > terms.clock_skew_s:
                off[beat.node] = max(off.get(beat.node, 0.0), by, key=abs)
        for node, behind_s in _behind(window.looks):
            if behind_s > terms.clock_skew_s:
                off[node] = max(off.get(node, 0.0), -behind_s, key=abs)
    return off


def _behind(looks: Sequence[Look]) -> Iterator[tuple[str, float]]:
    """Of each rank its node, and by how much all of its heartbeats came late at least.

    One was not there yet when the look before had been answered, and was when the next was asked
    for: that difference is one for all of them, or it is not the clock's. Those of one look alone
    say nothing: what brings them may have brought them together.
    """
    least: dict[tuple[str, int, int, str], float] = {}
    most: dict[tuple[str, int, int, str], float] = {}
    looks_of: dict[tuple[str, int, int, str], set[float]] = {}
    before_s = -inf
    for look, read_s in _when_read(looks):
        for beat in look.beats:
            rank = (beat.job, beat.life, beat.rank, beat.node)
            least[rank] = max(least.get(rank, -inf), before_s - beat.at_s)
            most[rank] = min(most.get(rank, inf), read_s - beat.at_s)
            looks_of.setdefault(rank, set()).add(look.asked_s)
        before_s = look.answered_s
    for rank, behind_s in least.items():
        if behind_s <= most[rank] and len(looks_of[rank]) > 1:
            yield rank[3], behind_s


def _read(looks: Sequence[Look]) -> Iterator[tuple[Beat, float]]:
    """Each heartbeat, and when it had been read at the latest."""
    for look, read_s in _when_read(looks):
        for beat in look.beats:
            yield beat, read_s


def _when_read(looks: Sequence[Look]) -> Iterator[tuple[Look, float]]:
    for look, later in zip_longest(looks, looks[1:]):
        # Files are read when the scheduler has answered, and before the next look.
        yield look, look.answered_s + BLIND_S if later is None else later.asked_s


def told(off: Mapping[str, float], nodes: Iterable[str], terms: Terms) -> str:
    """Which of these nodes' clocks are off, for a note; "" where none is."""
    late = ", or its heartbeats come late"
    some = [
        f"{node}'s clock is off by {off[node]:+.1f} s or more{late if off[node] < 0 else ''}"
        for node in sorted(set(nodes))
        if node in off
    ]
    return f"{'; '.join(some)} ({KEY}.clock_skew {terms.clock_skew_s:g} s)" if some else ""

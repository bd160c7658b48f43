"""Clocks of nodes that are proven to be off by more than is promised. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from pytest_mnode.gang.engine import Beat, Look
from pytest_mnode.gang.terms import KEY, Terms, Window
from pytest_mnode.gang.timeline import BLIND_S


def clocks_off(windows: Iterable[Window], terms: Terms) -> dict[str, float]:
    """Nodes whose clock differs by more than `clock_skew` from the controller's, and seconds by
    which it does at least: more than 0 where it is ahead, less where it is behind.

    A heartbeat that was read before its time, or is older than its gang's submission, proves it,
    whatever the scheduler did.
    """
    off: dict[str, float] = {}
    for window in windows:
        asked = {job: gang.asked_s for gang in window.gangs for job in gang.jobs}
        for beat, read_s in _read(window.looks):
            ahead = max(0.0, beat.at_s - read_s)
            by = ahead or min(0.0, beat.at_s - asked.get(beat.job, beat.at_s))
            if abs(by) > terms.clock_skew_s:
                off[beat.node] = max(off.get(beat.node, 0.0), by, key=abs)
    return off


def _read(looks: Sequence[Look]) -> Iterator[tuple[Beat, float]]:
    """Each heartbeat, and when it had been read at the latest."""
    for look, later in zip_longest(looks, looks[1:]):
        # Files are read when the scheduler has answered, and before the next look.
        read_s = look.answered_s + BLIND_S if later is None else later.asked_s
        for beat in look.beats:
            yield beat, read_s


def told(off: Mapping[str, float], nodes: Iterable[str], terms: Terms) -> str:
    """Which of these nodes' clocks are off, for a note; "" where none is."""
    some = [
        f"{node}'s clock is off by {off[node]:+.1f} s or more"
        for node in sorted(set(nodes))
        if node in off
    ]
    return f"{'; '.join(some)} ({KEY}.clock_skew {terms.clock_skew_s:g} s)" if some else ""

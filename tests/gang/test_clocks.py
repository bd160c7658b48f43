"""Clocks of nodes that are off, and ranks that share a node, which no clock explains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.gang.engine import Heartbeat
from tests.gang.windows import (
    ELSEWHERE,
    FAIL,
    NODES,
    RACE,
    RACED,
    UNKNOWN,
    WAITING,
    all_ran,
    course,
    filled,
    raced,
    small_at,
    watched,
)


@pytest.mark.parametrize("by", [-20.0, -3.0, -1.6])
def test_a_clock_that_is_behind_is_not_the_schedulers_fault(by: float) -> None:
    """Though no heartbeat is older than its gang, which was submitted long before."""
    given = (course("2", 136, 142), small_at(106, 107.5), all_ran("2", 136.3, 141.3), 145.0)
    assert filled(*given) == {}
    found = filled(*given, off={"n2": by})
    assert {verdict for verdict, _ in found.values()} == {UNKNOWN}, found
    assert f"n2's clock is off by {by + 0.3:+.0f}"[:-1] in found[WAITING][1]
    assert "or its heartbeats come late" in found[WAITING][1]
    assert "n0" not in found[WAITING][1]


def test_a_clock_that_is_behind_no_more_than_promised() -> None:
    given = (course("2", 136, 142), small_at(106, 107.5), all_ran("2", 136.3, 141.3), 145.0)
    assert filled(*given, off={"n2": -0.9}) == {}


@pytest.mark.parametrize("count", [1, 15])
def test_heartbeats_that_came_late_all_at_once_are_no_clock(count: int) -> None:
    """A rank of a gang that waits: what is heard of it comes in one look, long after."""
    early = [Heartbeat("2", 1, 0, "n0", 102.0 + 0.2 * n) for n in range(count)]
    looks = [
        replace(one, beats=(*one.beats, *early)) if 106 < one.asked_s <= 106.25 else one
        for one in watched(RACE, RACED, 118)
    ]
    assert raced(tuple(looks), 115.0)[WAITING][0] == FAIL


def test_all_ranks_on_one_node() -> None:
    one = [replace(beat, node="n0") for beat in RACED]
    found = raced(watched(RACE, one, 118), 115.0)
    assert found[ELSEWHERE][0] == FAIL
    assert "race 1: A: ranks 0, 1 and 2 on n0, one of 3 nodes" in found[ELSEWHERE][1]
    two = [replace(beat, node="n1") if beat.rank == 2 else beat for beat in RACED]
    found = raced(watched(RACE, two, 118), 115.0)
    assert found[ELSEWHERE][0] == FAIL
    assert "race 1: B: ranks 1 and 2 on n1, one of 3 nodes" in found[ELSEWHERE][1]
    assert len(NODES) == 3

"""Heartbeats: written by ranks, read, matched with observations, and compared with the clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.gang import heartbeat_rank
from pytest_mnode.gang.engine import Heartbeat
from pytest_mnode.gang.heartbeats import RankSpan, presences, read_heartbeats, spans
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
from tests.waiting import until

PLACE = {"JOB": "12", "LIFE": "1", "RANK": "3", "NODE": "node3"}


def beats_of(rank: int, *times: float) -> list[Heartbeat]:
    return [Heartbeat("1", 0, rank, f"node{rank}", at) for at in times]


def test_lines_are_heartbeats_or_are_counted() -> None:
    text = "beat 12 0 3 node3 1700000000.250\nend 12 0 3 node3 1700000000.500\n"
    first, last = Heartbeat("12", 0, 3, "node3", 1700000000.25), ("end", 1700000000.5)
    beats, unreadable = read_heartbeats(text)
    assert (beats[0], unreadable) == (first, 0)
    assert (beats[1].what, beats[1].at_s) == last


@pytest.mark.parametrize(
    "line",
    [
        "beat 12 0 3 node3",
        "beat 12 0 three node3 1.0",
        "beat 12 0 3 node3 soon",
        "beat 12 0 3 node3 nan",
        "beat 12 0 3 node3 -1.0",
        "hum 12 0 3 node3 1.0",
        "beat 12 0 3  1.0",
        "beat 12 0 3 node3 1.0 2.0",
        "\x00\x00",
    ],
)
def test_lines_that_are_no_heartbeat(line: str) -> None:
    assert read_heartbeats(line) == ([], 1)


def test_a_gap_between_heartbeats_is_an_absence() -> None:
    found = spans([*beats_of(0, 10.0, 10.2, 10.4, 20.0, 20.2), *beats_of(1, 10.1)], gap_s=3.0)
    assert [(s.rank, s.began_s, s.ended_s) for s in found] == [
        *((0, 10.0, 10.4), (1, 10.1, 10.1), (0, 20.0, 20.2))
    ]


def test_ranks_that_ran_together() -> None:
    ranks = [RankSpan("1", 0, 0, "a", 1.0, 5.0), RankSpan("1", 0, 1, "b", 2.0, 4.0)]
    there = [([s.rank for s in p.ranks], p.began_s, p.seconds) for p in presences(ranks)]
    assert there == [([0], 1.0, 1.0), ([0, 1], 2.0, 2.0), ([0], 4.0, 1.0)]
    apart = [RankSpan("1", 0, 0, "a", 1.0, 2.0), RankSpan("1", 0, 0, "a", 8.0, 9.0)]
    assert [(p.began_s, p.ended_s) for p in presences(apart)] == [(1.0, 2.0), (8.0, 9.0)]


def start(directory: Path, seconds: float) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-I", "-S", heartbeat_rank.__file__]
    return subprocess.Popen(
        [*program, str(directory), str(seconds), *PLACE], env={**os.environ, **PLACE}
    )


def test_a_rank_beats_and_ends_by_itself(tmp_path: Path) -> None:
    assert start(tmp_path, 0.5).wait(20) == 0
    beats, unreadable = read_heartbeats((tmp_path / "12.1.3.beats").read_text())
    assert unreadable == 0
    assert [b.what for b in beats][-1] == "end"
    assert len(beats) >= 3
    assert {(b.job, b.restarts, b.rank, b.node) for b in beats} == {("12", 1, 3, "node3")}
    assert beats[-1].at_s == pytest.approx(time.time(), abs=20)


def test_a_rank_reports_sigterm(tmp_path: Path) -> None:
    process, file = start(tmp_path, 60), tmp_path / "12.1.3.beats"
    until(lambda: file.exists() and file.read_text(), "it beats")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1
    assert file.read_text().splitlines()[-1].startswith("sigterm 12 1 3 node3 ")


def test_a_rank_without_its_directory_ends_at_once(tmp_path: Path) -> None:
    assert start(tmp_path / "gone", 60).wait(20) != 0
    process, file = start(tmp_path, 60), tmp_path / "12.1.3.beats"
    until(file.exists, "it beats")
    file.unlink()
    assert process.wait(20) == 0


@pytest.mark.parametrize("by", [-20.0, -3.0, -1.6])
def test_a_clock_that_is_behind_is_not_the_schedulers_fault(by: float) -> None:
    """Even if no heartbeat is older than its gang, which was submitted long before."""
    given = (course("2", 136, 142), small_at(106, 107.5), all_ran("2", 136.3, 141.3), 145.0)
    assert filled(*given) == {}
    found = filled(*given, off={"n2": by})
    assert {verdict for verdict, _ in found.values()} == {UNKNOWN}, found
    assert f"n2's clock is off by {by + 0.3:+.0f}"[:-1] in found[WAITING][1]
    assert "or its heartbeats come late" in found[WAITING][1]
    assert "n0" not in found[WAITING][1]


def test_a_clock_that_is_behind_within_the_promise() -> None:
    given = (course("2", 136, 142), small_at(106, 107.5), all_ran("2", 136.3, 141.3), 145.0)
    assert filled(*given, off={"n2": -0.9}) == {}


@pytest.mark.parametrize("count", [1, 15])
def test_heartbeats_that_arrive_late_together_do_not_show_a_wrong_clock(count: int) -> None:
    """All heartbeats of a rank arrive in one observation, long after they were sent."""
    early = [Heartbeat("2", 1, 0, "n0", 102.0 + 0.2 * n) for n in range(count)]
    observations = [
        replace(one, beats=(*one.beats, *early)) if 106 < one.requested_s <= 106.25 else one
        for one in watched(RACE, RACED, 118)
    ]
    assert raced(tuple(observations), 115.0)[WAITING][0] == FAIL


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

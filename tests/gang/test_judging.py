"""Rounds made by hand: ranks that nobody heard, clocks that are off, other users, and turns."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.gang.engine import Heartbeat
from tests.gang.windows import (
    AFTER,
    ALONE,
    FAIL,
    NEVER,
    NEXT,
    NOT_BACK,
    RACE,
    RACED,
    UNHEARD,
    UNKNOWN,
    WAITING,
    Shown,
    all_ran,
    both,
    course,
    filled,
    over,
    raced,
    ran,
    small_at,
    waits,
    watched,
)


def test_a_race_as_it_should_be() -> None:
    assert raced(watched(RACE, RACED, 118), 115.0) == {}


@pytest.mark.parametrize(
    ("said", "expected"), [("COMPLETED", UNKNOWN), ("FAILED (NonZeroExitCode)", FAIL)]
)
def test_gangs_that_are_over_without_a_heartbeat(said: str, expected: str) -> None:
    shown = both(course("1", 101, 101.6, said), course("2", 102, 102.6, said))
    found = raced(watched(shown, [], 106), 103.0)
    assert found[UNHEARD][0] == expected
    assert "race 1: A: 0 of 3 ranks heard, 0 of them to their end" in found[UNHEARD][1]
    assert (said in found[UNHEARD][1]) == (expected == FAIL)
    assert found[ALONE][0] == UNKNOWN


def test_a_rank_that_did_not_run_to_its_end() -> None:
    beats = [b for b in RACED if (b.job, b.rank, b.what) != ("2", 1, "end")]
    found = raced(watched(RACE, beats, 118), 115.0)
    assert found == {UNHEARD: (UNKNOWN, " | race 1: B: 3 of 3 ranks heard, 2 of them to their end")}


def test_a_gang_that_clearing_up_ended_owes_no_end() -> None:
    shown = both(course("1", 101, 107), course("2", 108, 110.3, "CANCELLED"))
    beats = [b for b in RACED if b.job == "1" or b.at_s < 110.2]
    assert raced(watched(shown, beats, 118), 110.2) == {}


def test_ranks_one_after_another() -> None:
    shown = both(course("1", 101, 117), course("2", 118, 134))
    beats = [
        beat
        for job, began in (("1", 101.3), ("2", 118.3))
        for rank in range(3)
        for beat in ran(job, rank, began + 5.1 * rank, began + 5.1 * rank + 5)
    ]
    found = raced(watched(shown, beats, 138), 135.0)
    assert found[UNHEARD][0] == FAIL
    assert "race 1: A: its 3 ranks never ran at once" in found[UNHEARD][1]


@pytest.mark.parametrize(("by", "said"), [(30.0, "+29."), (-3.0, "-3.0 s or more")])
def test_a_clock_that_is_off_is_not_the_schedulers_fault(by: float, said: str) -> None:
    found = raced(watched(RACE, RACED, 118, off={"n2": by}), 115.0)
    assert {verdict for verdict, _ in found.values()} == {UNKNOWN}, found
    assert {ALONE, UNHEARD} <= found.keys() & {WAITING, AFTER, ALONE, UNHEARD}
    assert f"n2's clock is off by {said}" in found[ALONE][1]


def test_ranks_of_other_nodes_are_blamed_all_the_same() -> None:
    early = [Heartbeat("2", 0, 0, "n0", 103.0 + 0.2 * n) for n in range(5)]
    found = raced(watched(RACE, [*RACED, *early], 118, off={"n2": 30.0}), 115.0)
    assert found[WAITING] == (
        FAIL,
        "race 1: B: rank 0 on n0, 5 heartbeats while it was waiting | ",
    )


def test_nodes_that_somebody_else_took() -> None:
    shown = both(
        course("1", 101, 107),
        lambda t: {"2": waits("2") if t < 185 else over("2", "CANCELLED")},
    )
    looks = watched(shown, all_ran("1", 101.3, 106.3), 190)
    alone = raced(looks, 184.0, not_free=("n2",))
    assert [alone[name][0] for name in (NEVER, NEXT, NOT_BACK)] == [FAIL, FAIL, FAIL]
    who = ("n2: job 17 of bob",)
    found = raced(looks, 184.0, taken=who, others=who)
    assert [found[name][0] for name in (NEVER, NEXT, NOT_BACK)] == [UNKNOWN] * 3
    assert all("n2: job 17 of bob" in found[name][1] for name in (NEVER, NEXT, NOT_BACK))
    # A node that nobody else has is missed all the same.
    assert raced(looks, 184.0, not_free=("n1",), taken=who)[NOT_BACK][0] == FAIL


def verdicts_of(*given: Any) -> dict[str, str]:
    return {name: verdict for name, (verdict, _) in filled(*given).items()}


def test_room_is_there_when_the_filler_is_gone_where_the_small_job_waited_too() -> None:
    late = course("2", 209, 215)
    beats = all_ran("2", 209.3, 214.3)
    assert verdicts_of(late, small_at(215.5, 217), beats, 218.0) == {NEXT: FAIL}
    # One that ran before it took room until it was over.
    assert verdicts_of(late, small_at(106, 208), beats, 218.0) == {}
    soon = course("2", 136, 142)
    assert verdicts_of(soon, small_at(142.5, 144), all_ran("2", 136.3, 141.3), 145.0) == {}


def test_neither_ever_starts_though_there_is_room() -> None:
    def never(job: str) -> Shown:
        return lambda t: {job: waits(job) if t < 211 else over(job, "CANCELLED")}

    assert verdicts_of(never("2"), never("3"), [], 211.0) == {NEVER: FAIL, NEXT: FAIL}

"""Verdicts on composed rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.gang.engine import Heartbeat, JobRecord
from pytest_mnode.gang.judge_rounds import Round, filled_turn
from pytest_mnode.gang.judging import judged_rounds, judged_size, parts_held
from pytest_mnode.gang.window import Gang, Window
from tests.gang.simulated import Scheduler
from tests.gang.simulated import ran as run
from tests.gang.windows import (
    AFTER,
    ALONE,
    BLOCKED,
    FAIL,
    NEVER,
    NEXT,
    NODES,
    NOT_BACK,
    PROMISE,
    RACE,
    RACED,
    UNHEARD,
    UNKNOWN,
    WAITING,
    A,
    B,
    Shown,
    all_ran,
    both,
    course,
    faults,
    filled,
    holds,
    judged_race,
    over,
    raced,
    ran,
    small_at,
    waits,
    watched,
)


def test_a_correct_race_passes() -> None:
    assert raced(watched(RACE, RACED, 118), 115.0) == {}


@pytest.mark.parametrize(
    ("text", "expected"), [("COMPLETED", UNKNOWN), ("FAILED (NonZeroExitCode)", FAIL)]
)
def test_gangs_that_ended_without_a_heartbeat(text: str, expected: str) -> None:
    shown = both(course("1", 101, 101.6, text), course("2", 102, 102.6, text))
    found = raced(watched(shown, [], 106), 103.0)
    assert found[UNHEARD][0] == expected
    assert "race 1: A: 0 of 3 ranks sent heartbeats, 0 of them to completion" in found[UNHEARD][1]
    assert (text in found[UNHEARD][1]) == (expected == FAIL)
    assert found[ALONE][0] == UNKNOWN


def test_a_rank_that_did_not_run_to_its_end() -> None:
    beats = [b for b in RACED if (b.job, b.rank, b.what) != ("2", 1, "end")]
    found = raced(watched(RACE, beats, 118), 115.0)
    assert found == {
        UNHEARD: (UNKNOWN, " | race 1: B: 3 of 3 ranks sent heartbeats, 2 of them to completion")
    }


def test_a_gang_that_is_seen_whole_may_have_lost_heartbeats() -> None:
    beats = [beat for beat in RACED if (beat.job, beat.rank) != ("2", 1)]
    assert raced(watched(RACE, beats, 118), 115.0)[ALONE][0] == UNKNOWN


def test_a_gang_ended_by_the_cleanup_needs_no_end() -> None:
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
    assert "race 1: A: its 3 ranks never ran concurrently" in found[UNHEARD][1]


@pytest.mark.parametrize(("by", "text"), [(30.0, "+29."), (-3.0, "-3.0 s or more")])
def test_a_clock_that_is_off_is_not_the_schedulers_fault(by: float, text: str) -> None:
    found = raced(watched(RACE, RACED, 118, off={"n2": by}), 115.0)
    assert {verdict for verdict, _ in found.values()} == {UNKNOWN}, found
    assert {ALONE, UNHEARD} <= found.keys() & {WAITING, AFTER, ALONE, UNHEARD}
    assert f"n2's clock is off by {text}" in found[ALONE][1]


def test_ranks_on_other_nodes_are_still_blamed() -> None:
    early = [Heartbeat("2", 0, 0, "n0", 103.0 + 0.2 * n) for n in range(5)]
    found = raced(watched(RACE, [*RACED, *early], 118, off={"n2": 30.0}), 115.0)
    who = "race 1: B: rank 0 on n0, 5 heartbeats while it was waiting | "
    assert found[WAITING] == (FAIL, who)


def test_nodes_taken_by_others() -> None:
    shown = both(
        course("1", 101, 107), lambda t: {"2": waits("2") if t < 185 else over("2", "CANCELLED")}
    )
    observations = watched(shown, all_ran("1", 101.3, 106.3), 190)
    alone = raced(observations, 184.0, not_free=("n2",))
    assert [alone[name][0] for name in (NEVER, NEXT, NOT_BACK)] == [FAIL, FAIL, FAIL]
    who = ("n2: job 17 of bob",)
    found = raced(observations, 184.0, taken=who, others=who)
    assert [found[name][0] for name in (NEVER, NEXT, NOT_BACK)] == [UNKNOWN] * 3
    assert all("n2: job 17 of bob" in found[name][1] for name in (NEVER, NEXT, NOT_BACK))
    # A node that no other user has is still missed.
    assert raced(observations, 184.0, not_free=("n1",), taken=who)[NOT_BACK][0] == FAIL


def verdicts_of(*given: Any) -> dict[str, str]:
    return {name: verdict for name, (verdict, _) in filled(*given).items()}


def test_room_is_free_once_the_filler_ends_even_if_the_small_job_waited() -> None:
    late = course("2", 209, 215)
    beats = all_ran("2", 209.3, 214.3)
    assert verdicts_of(late, small_at(215.5, 217), beats, 218.0) == {NEXT: FAIL}
    # A small job that ran before took room until it ended.
    assert verdicts_of(late, small_at(106, 208), beats, 218.0) == {}
    soon = course("2", 136, 142)
    assert verdicts_of(soon, small_at(142.5, 144), all_ran("2", 136.3, 141.3), 145.0) == {}


def test_neither_gang_starts_although_there_is_room() -> None:
    def never(job: str) -> Shown:
        return lambda t: {job: waits(job) if t < 211 else over(job, "CANCELLED")}

    assert verdicts_of(never("2"), never("3"), [], 211.0) == {NEVER: FAIL, NEXT: FAIL}


def bound(job: str, began: float, whole: float) -> Shown:
    """Two of three nodes at first."""

    def at(t: float) -> dict[str, JobRecord]:
        if t >= whole + 2:
            return {job: over(job)}
        held = NODES if t >= whole else NODES[:2]
        return {job: holds(job, *held) if t >= began else waits(job)}

    return at


def test_the_longest_partial_states_are_blamed_first_and_short_ones_never() -> None:
    gangs = tuple(Gang(f"G{n}", 3, (str(n),), 5.0, 100.0) for n in range(7))
    starts = [(101.0 + 10 * n, 101.5 + 10 * n) for n in range(5)]
    shown = both(*[bound(str(n), *at) for n, at in enumerate([*starts, (151, 155), (161, 168)])])
    window = Window("w", gangs, watched(shown, [], 180), cleared_s=178.0)
    found = parts_held(window, PROMISE.model_copy(update={"settle_s": 2.0}))
    assert found.value == pytest.approx(6.7, abs=0.3)
    assert found.culprit is not None
    assert [part.split()[1] for part in found.culprit.split("; ")] == ["G6", "G5"]
    # If none is allowed, each is to blame.
    every = parts_held(window, PROMISE).culprit
    assert every is not None
    assert every.startswith("w: G6 held 2 of 3")
    assert every.endswith("and 3 more")


def test_the_first_of_several_gangs_that_were_never_seen_whole_is_named() -> None:
    def unseen(job: str, ended: float) -> Shown:
        return lambda t: {job: waits(job) if t < ended else over(job)}

    gangs = Gang("filler 1", 3, ("1",), 500.0, 100.0), Gang("B", 3, ("2",), 5.0, 100.2)
    beats = [Heartbeat("1", 0, 0, "n0", 103.9), Heartbeat("2", 0, 0, "n0", 135.9)]
    observations = watched(both(unseen("1", 104), unseen("2", 136)), beats, 150)
    window = Window("filled 1", gangs, observations, cleared_s=148.0)
    turn = filled_turn(window, "B", ["filler 1"], ["filler 1"])
    found = faults(judged_rounds([Round(window, turn)], PROMISE))
    assert found[NEVER] == (
        UNKNOWN,
        " | filled 1: filler 1 was never seen whole, but its ranks ran",
    )


def fails_unseen(job: str) -> Shown:
    failed = over(job, "FAILED (NonZeroExitCode)")
    return lambda t: {job: waits(job, "Priority") if t < 101 else failed}


def test_a_gang_that_failed_between_two_observations() -> None:
    found = raced(watched(both(fails_unseen("1"), fails_unseen("2")), [], 180), 178.0)
    assert found[NEVER][0] == FAIL
    assert "0 of 3 nodes at most, FAILED (NonZeroExitCode)" in found[NEVER][1]
    large, small = Gang("too large", 5, ("9",), 5.0, 100.0), Gang("small", 1, ("3",), 1.0, 100.2)
    shown = both(lambda _: {"9": waits("9")}, fails_unseen("2"), fails_unseen("3"))
    observations = watched(shown, [], 200)
    window = Window("large", (large, B, small), observations, cleared_s=190.0)
    blocked = faults(judged_size(window, PROMISE))[BLOCKED]
    assert "large: B: FAILED (NonZeroExitCode)" in blocked[1]


def test_a_rank_that_outlives_a_gang_that_was_never_seen_whole() -> None:
    gone: Shown = lambda t: {"1": waits("1") if t < 101 else over("1")}  # noqa: E731
    beats = [*ran("1", 0, 101, 125), *all_ran("2", 108.3, 113.3)]
    found = raced(watched(both(gone, course("2", 108, 114)), beats, 130), 127.0)
    assert found[AFTER][0] == FAIL
    assert "race 1: A: rank 0 on n0, " in found[AFTER][1]
    assert found[AFTER][1].count("while it was over") == 1
    assert WAITING not in found


@pytest.mark.parametrize(
    ("heard", "ended", "state", "expected"),
    [
        (True, 101, "COMPLETED", "it started and ended between two observations: COMPLETED"),
        (False, 101, "COMPLETED", "it started and ended between two observations: COMPLETED"),
        (False, 115, "CANCELLED", "it did not start in this round"),
    ],
)
def test_a_small_job_that_was_never_seen_running(
    heard: bool, ended: float, state: str, expected: str
) -> None:
    small = Gang("small", 1, ("3",), 1.0, 100.2)
    shown = both(RACE, lambda t: {"3": waits("3") if t < ended else over("3", state)})
    beats = [replace(b, job="3") for b in ran("1", 0, 101.0, 101.2)] if heard else []
    measurements = judged_race(watched(shown, [*RACED, *beats], 118), 115.0, gangs=(A, B, small))
    [note] = [f.note for f in measurements if f.name == "race 1: small: time to its start"]
    assert note == expected


class Reasons(Scheduler):
    """A scheduler that gives one reason first, and then another."""

    def _records(self) -> dict[str, JobRecord]:
        found = super()._records()
        why = "PENDING (Priority)" if self.observations < 8 else "PENDING (Resources)"
        waiting = {job.id for job in self.jobs if job.waits}
        return {job: replace(r, status=why) if job in waiting else r for job, r in found.items()}


def test_every_reason_of_a_state_is_recorded() -> None:
    done = run("filled", Reasons(), rounds=1)
    [note] = [f.note for f in done.measurements if f.name == "filled 1: B: waiting"]
    assert note.startswith("PENDING (Priority) 1."), note
    assert " s, PENDING (Resources) 3." in note
    assert note.partition("; ")[2].startswith("from +")

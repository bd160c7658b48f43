"""Words of a report: who is to blame comes first, and a state is told with all that was said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.gang.engine import JobRecord
from pytest_mnode.gang.judge_holding import parts_held
from pytest_mnode.gang.judging import judged_size
from pytest_mnode.gang.timeline import Gang
from pytest_mnode.gang.window import CLEARED, Window
from tests.gang.simulated import Scheduler
from tests.gang.simulated import ran as run
from tests.gang.windows import (
    AFTER,
    BLOCKED,
    FAIL,
    NEVER,
    NODES,
    PROMISE,
    WAITING,
    A,
    B,
    Shown,
    all_ran,
    both,
    course,
    faults,
    holds,
    judged_race,
    over,
    raced,
    ran,
    waits,
    watched,
)


def bound(job: str, began: float, whole: float) -> Shown:
    """Two of three nodes at first."""

    def at(t: float) -> dict[str, JobRecord]:
        if t >= whole + 2:
            return {job: over(job)}
        held = NODES if t >= whole else NODES[:2]
        return {job: holds(job, *held) if t >= began else waits(job)}

    return at


def test_who_took_too_long_comes_first_and_those_who_did_not_are_not_blamed() -> None:
    gangs = tuple(Gang(f"G{n}", 3, (str(n),), 5.0, 100.0) for n in range(7))
    starts = [(101.0 + 10 * n, 101.5 + 10 * n) for n in range(5)]
    shown = both(*[bound(str(n), *at) for n, at in enumerate([*starts, (151, 155), (161, 168)])])
    window = Window("w", gangs, watched(shown, [], 180), notes=((178.0, CLEARED),))
    found = parts_held(window, PROMISE.model_copy(update={"settle_s": 2.0}))
    assert found.value == pytest.approx(6.7, abs=0.3)
    assert found.culprit is not None
    assert [part.split()[1] for part in found.culprit.split("; ")] == ["G6", "G5"]
    # Where none is allowed, each is to blame.
    every = parts_held(window, PROMISE).culprit
    assert every is not None
    assert every.startswith("w: G6 held 2 of 3")
    assert every.endswith("and 3 more")


def fails_unseen(job: str) -> Shown:
    failed = over(job, "FAILED (NonZeroExitCode)")
    return lambda t: {job: waits(job, "Priority") if t < 101 else failed}


def test_a_gang_that_failed_between_two_looks_is_told_so() -> None:
    found = raced(watched(both(fails_unseen("1"), fails_unseen("2")), [], 180), 178.0)
    assert found[NEVER][0] == FAIL
    assert "0 of 3 nodes at most, FAILED (NonZeroExitCode)" in found[NEVER][1]
    large, small = Gang("too large", 5, ("9",), 5.0, 100.0), Gang("small", 1, ("3",), 1.0, 100.2)
    shown = both(lambda _: {"9": waits("9")}, fails_unseen("2"), fails_unseen("3"))
    looks = watched(shown, [], 200)
    window = Window("large", (large, B, small), looks, notes=((190.0, CLEARED),))
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


@pytest.mark.parametrize("heard", [True, False])
def test_a_small_job_that_came_and_went_between_two_looks(heard: bool) -> None:
    small = Gang("small", 1, ("3",), 1.0, 100.2)
    shown = both(
        course("1", 101, 107),
        course("2", 108, 114),
        lambda t: {"3": waits("3") if t < 101 else over("3")},
    )
    beats = [*all_ran("1", 101.3, 106.3), *all_ran("2", 108.3, 113.3)]
    beats += [replace(b, job="3") for b in ran("1", 0, 101.0, 101.2)] if heard else []
    measurements = judged_race(watched(shown, beats, 118), 115.0, gangs=(A, B, small))
    [note] = [f.note for f in measurements if f.name == "race 1: small: time to its start"]
    assert note == "it came and went between two looks: COMPLETED"


def test_a_small_job_that_did_not_start() -> None:
    small = Gang("small", 1, ("3",), 1.0, 100.2)
    shown = both(
        course("1", 101, 107),
        course("2", 108, 114),
        lambda t: {"3": waits("3") if t < 115.0 else over("3", "CANCELLED")},
    )
    beats = [*all_ran("1", 101.3, 106.3), *all_ran("2", 108.3, 113.3)]
    measurements = judged_race(watched(shown, beats, 118), 115.0, gangs=(A, B, small))
    [note] = [f.note for f in measurements if f.name == "race 1: small: time to its start"]
    assert note == "it did not start in this round"


class Reasons(Scheduler):
    """It gives one reason first, and then another."""

    def _records(self) -> dict[str, JobRecord]:
        found = super()._records()
        why = "PENDING (Priority)" if self.looks < 8 else "PENDING (Resources)"
        waiting = {job.id for job in self.jobs if job.waits}
        return {job: replace(r, status=why) if job in waiting else r for job, r in found.items()}


def test_every_reason_of_a_state_is_told() -> None:
    done = run("filled", Reasons(), rounds=1)
    [note] = [f.note for f in done.measurements if f.name == "filled 1: B: waiting"]
    assert note.startswith("PENDING (Priority) 1."), note
    assert " s, PENDING (Resources) 3." in note
    assert note.partition("; ")[2].startswith("from +")

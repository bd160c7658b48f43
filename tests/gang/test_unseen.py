"""Unobserved times: before the scheduler's first answer, after its last, and between two."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from pytest_mnode.gang.engine import GangRequest, Observation
from pytest_mnode.gang.watch import Watch
from pytest_mnode.gang.window import blind_gaps, longest_unseen_s
from tests.gang.simulated import Scheduler, ran
from tests.gang.windows import (
    BLOCKED,
    ELSEWHERE,
    FAIL,
    NEVER,
    NEXT,
    PARTS,
    RACE,
    RACED,
    TWICE,
    UNKNOWN,
    WAITING,
    Shown,
    all_ran,
    both,
    course,
    over,
    raced,
    verdicts,
    waits,
    watched,
)


class Dies(Scheduler):
    """A scheduler that answers this many times, and never again."""

    answers = 3

    def observe(self) -> Observation:
        observation = super().observe()
        if self.observations <= self.answers:
            return observation
        return replace(observation, records=None, why="squeue: Unable to contact slurm controller")


@pytest.mark.parametrize("answers", [0, 1, 2, 3, 6, 10])
@pytest.mark.parametrize("how", ["filled", "race", "oversize"])
def test_a_scheduler_that_stops_answering(how: str, answers: int) -> None:
    scheduler = Dies()
    scheduler.answers = answers
    done = ran(how, scheduler, rounds=1)
    found = verdicts(done)
    assert FAIL not in found.values(), (found, done.text())
    assert {PARTS: UNKNOWN, TWICE: UNKNOWN}.items() <= found.items(), found


def silent(
    observations: tuple[Observation, ...], began: float, ended: float
) -> tuple[Observation, ...]:
    why = "squeue: no answer"
    return tuple(
        replace(one, records=None, why=why) if began <= one.requested_s < ended else one
        for one in observations
    )


@pytest.mark.parametrize("since", [107.7, 109.0, 112.0])
def test_times_after_the_last_answer_are_unknown(since: float) -> None:
    observations = silent(watched(RACE, RACED, 118), since, 999)
    found = raced(observations, 115.0)
    assert {verdict for verdict, _ in found.values()} == {UNKNOWN}, found
    assert {PARTS, TWICE} <= found.keys()
    assert "gave no answer for" in found[PARTS][1]
    assert (WAITING in found) == (since < 113.0)
    assert (ELSEWHERE in found) == (since < 108.0)  # B was never seen with nodes


def test_times_before_the_first_answer_are_unknown() -> None:
    late = both(course("1", 120, 126), course("2", 127, 133))
    beats = [*all_ran("1", 120.3, 125.3), *all_ran("2", 127.3, 132.3)]
    observations = watched(late, beats, 138)
    assert raced(observations, 135.0) == {}
    later = tuple(one for one in observations if one.requested_s > 119)
    for some in (silent(observations, 0, 119), later):
        found = raced(some, 135.0)
        assert [(name, found[name][0]) for name in sorted(found)] == [
            (PARTS, UNKNOWN),
            (TWICE, UNKNOWN),
        ]
        assert "gave no answer for 19." in found[PARTS][1]


def test_gaps_without_an_answer() -> None:
    first, second = Observation(10.0, 10.1, {}), Observation(11.0, 11.1, {})
    observations = [first, second, Observation(19.0, 20.0, None)]
    assert longest_unseen_s(observations, 2.0) == pytest.approx(9.0)
    assert longest_unseen_s(observations, 0.5) == pytest.approx(9.6)
    assert blind_gaps(observations, 9.0) == [(11.0, float("inf"))]
    assert blind_gaps(observations[:2], 0.5) == [(0.5, 10.1)]
    assert blind_gaps(observations[:2], 9.0) == []
    # However short the gap: a job that ran in it was not seen.
    assert blind_gaps([*observations[:2], Observation(11.2, 11.3, None)], 9.0) == [
        (11.0, float("inf"))
    ]


def test_a_gang_that_waited_until_the_last_answer() -> None:
    """It is unknown whether it waited longer."""

    def never(job: str) -> Shown:
        return lambda t: {job: waits(job) if t < 290 else over(job, "CANCELLED")}

    observations = watched(both(course("1", 101, 107), never("2")), all_ran("1", 101.3, 106.3), 295)
    found = raced(observations, 290.0)
    assert (found[NEVER][0], found[NEXT][0]) == (FAIL, FAIL)
    found = raced(silent(observations, 110, 999), 290.0)
    assert (found[NEVER][0], found[NEXT][0]) == (UNKNOWN, UNKNOWN)
    assert BLOCKED not in found


class Slow(Scheduler):
    """sbatch is slow."""

    def submit(self, ask: GangRequest) -> tuple[str, ...]:
        jobs = super().submit(ask)
        self.now += 3.0
        return jobs


def test_the_cluster_is_observed_between_submissions() -> None:
    def submitted(scheduler: Scheduler) -> Watch:
        watch = Watch(scheduler, "race 1", scheduler, scheduler.names, 1.0)
        for name in ("A", "B", "C"):
            watch.submit(GangRequest(name, 2, 3.0, 60.0))
        return watch

    watch = submitted(Slow())
    watch.observe()
    window = watch.window()
    assert len(window.observations) == 4
    assert (longest_unseen_s(window.observations, window.began_s) or 9.0) < 5.0
    assert not submitted(Scheduler()).observations


def test_a_slow_answer_is_no_gap_if_events_were_reported_meanwhile() -> None:
    slow = Observation(11.0, 19.0, {})
    reported = replace(slow, requested_s=15.0, answered_s=15.0, reported=True, complete=True)
    first, last = Observation(10.0, 10.1, {}), Observation(20.0, 20.1, {})
    complete = [first, reported, replace(slow, complete=True)]
    assert blind_gaps([*complete, replace(last, complete=True)], 10.0) == []
    assert blind_gaps([*complete, last], 10.0) == [(11.0, 20.1)]
    assert blind_gaps([*complete[1:], replace(last, complete=True)], 10.0) == []
    assert blind_gaps([slow, replace(last, complete=True)], 10.0) == [(10.0, 19.0)]
    assert blind_gaps(complete, 10.0) == [(11.0, 19.0)]  # events after the last answer
    assert blind_gaps([first, slow, replace(last, complete=True)], 10.0) == [(10.0, 19.0)]


def test_a_short_action_needs_no_observation() -> None:
    scheduler = Scheduler()
    watch = Watch(scheduler, "race 1", scheduler, scheduler.names, 1.0)
    watch.during(lambda: time.sleep(0.02))
    assert scheduler.observations == 0

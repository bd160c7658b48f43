"""Throughput, efficiency, and their uncertainty."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_mnode.criteria.scaling.causes import FABRIC, REST, Cause
from pytest_mnode.criteria.scaling.efficiency import reference_node, settled, throughputs
from pytest_mnode.criteria.scaling.judge import ScalingResult
from pytest_mnode.criteria.scaling.timings import GroupSteps, JobTimings
from tests.criteria.scaling import made

BOUND = 0.95


def test_a_job_without_losses_has_an_efficiency_of_one() -> None:
    rows = throughputs(made.timings(made.plan(4)))
    assert [row.count for row in rows] == [1, 2, 4]
    assert [row.efficiency for row in rows] == pytest.approx([1, 1, 1])
    assert rows[2].samples_s == pytest.approx(4 * rows[0].samples_s)
    assert rows[2].tokens_s == pytest.approx(16 * rows[2].samples_s)
    assert all(row.uncertainty == 0 for row in rows)


def test_efficiency_is_ideal_time_over_measured_time() -> None:
    job = made.timings(made.plan(4), needed_s=lambda count: 0.0 if count == 1 else 0.0205)
    row = throughputs(job)[-1]
    assert (row.ideal_s, row.step_s) == pytest.approx((0.205, 0.2255))
    assert row.efficiency == pytest.approx(0.205 / 0.2255)
    assert row.lost_s == pytest.approx(0.0205)


def test_strong_scaling_is_measured_against_a_share_of_one_node() -> None:
    def own(node: str, count: int) -> dict[str, float]:
        return {"compute": 0.8 / count, "input": 0.0, "optimiser": 0.0, "rest": 0.0}

    plan = made.plan(4, kind="strong")
    rows = throughputs(made.timings(plan, own, lambda count: 0.0))
    assert [row.efficiency for row in rows] == pytest.approx([1, 1, 1])
    assert [row.share for row in rows] == [1, 0.5, 0.25]


def test_varying_steps_make_the_efficiency_uncertain() -> None:
    quiet = made.exposed_later(
        made.timings(made.plan(4)), lambda round_, step: 0.0005 * (round_ % 3)
    )
    rows = throughputs(quiet)
    assert all(row.low <= row.efficiency <= row.high for row in rows)
    assert settled(quiet, made.promise())
    wild = made.exposed_later(made.timings(made.plan(4)), lambda round_, step: 0.005 * round_)
    assert throughputs(wild)[-1].uncertainty > 0.02
    assert not settled(wild, made.promise())
    surely = {"at_least_efficiency": 0.5, "explained_from": 0.5}
    assert not settled(wild, made.promise(**surely)), "reached, and not known well enough"
    assert settled(wild, made.promise(**surely, at_most_uncertainty=0.5))
    slow = made.changed(wild, lambda step, number, round_: step._replace(wall_s=2 * step.wall_s))
    assert settled(slow, made.promise()), "surely below its bound, however uncertain"


@pytest.mark.parametrize(
    ("lost_s", "rounds", "enough"),
    [(0.0, 2, True), (0.004, 2, True), (0.02, 2, False), (0.02, 3, True), (0.1, 2, False)],
)
def test_two_rounds_are_enough_for_a_pass_and_not_for_a_fail(
    lost_s: float, rounds: int, enough: bool
) -> None:
    plan = made.plan(4, rounds=rounds)
    job = made.timings(plan, needed_s=lambda count: lost_s * (count > 1))
    assert settled(job, made.promise()) is enough


def test_one_node_counts_by_its_median_and_two_by_the_faster() -> None:
    one_slow = made.slow_on("node0", compute=0.3)
    assert reference_node(made.timings(made.plan(2), one_slow)) == "node1"
    assert reference_node(made.timings(made.plan(4), one_slow)) != "node0"
    two = throughputs(made.timings(made.plan(2), one_slow))[-1]
    assert two.efficiency == pytest.approx((0.205 + 0.002) / (0.305 + 0.002))


def test_a_slow_node_in_half_of_the_groups_is_seen() -> None:
    rows = throughputs(made.timings(made.plan(4), made.slow_on("node2", compute=0.3)))
    assert rows[1].efficiency == pytest.approx(rows[2].efficiency)
    assert rows[1].efficiency < 0.7


def test_disturbances_of_fewer_than_half_of_the_turns_do_not_change_the_mean() -> None:
    job = made.timings(made.plan(4), jitter=lambda round_, step: 3.0 * (round_ == 1 and step < 3))
    [*_, row] = throughputs(job)
    assert row.mean is not None
    assert [row.efficiency, row.mean.efficiency] == pytest.approx([1, 1])
    assert row.judged_by(0.02) == row


def test_rounds_go_on_while_the_mean_is_uncertain() -> None:
    job = made.exposed_later(
        made.timings(made.plan(4)), lambda round_, step: 0.1 * (step < 1 + round_)
    )
    row = throughputs(job)[-1]
    assert (row.reaches(BOUND), row.judged_by(0.0).reaches(BOUND)) == (True, None)
    assert not settled(job, made.promise())
    assert settled(job, made.promise(parts_within=0.5))


def noisy_job(chance: np.random.Generator, shape: JobTimings, efficiency: float) -> JobTimings:
    """A job on two nodes whose turns differ by 1 % and whose steps differ by 2 %."""

    def of(one: GroupSteps) -> GroupSteps:
        turn = (1.0 if one.count == 1 else 1 / efficiency) * (1 + 0.01 * chance.normal())
        times = (turn * (1 + 0.02 * chance.normal()) for _ in one.steps[0])
        [first, *_] = one.steps
        timed = tuple(step._replace(wall_s=t) for step, t in zip(first, times, strict=True))
        return replace(one, steps=(timed,) * len(one.steps))

    return replace(shape, trained=tuple(map(of, shape.trained)))


@pytest.mark.parametrize("rounds", [3, 5, 10])
def test_95_of_100_jobs_have_the_true_efficiency_in_their_interval(rounds: int) -> None:
    """The judged efficiency is a median, and is in its interval too."""
    chance, jobs = np.random.default_rng(rounds), 250
    shape = made.timings(made.plan(2, rounds=rounds, steps=3))
    rows = [throughputs(noisy_job(chance, shape, 0.95))[-1] for _ in range(jobs)]
    covered = sum(row.low <= 0.95 <= row.high for row in rows)
    assert 0.91 < covered / jobs < 0.99
    assert all(row.low <= row.efficiency <= row.high for row in rows)
    failed = sum(row.reaches(0.95) is False for row in rows)
    assert failed / jobs < 0.03, "0.01 is said of a cluster that just keeps its promise"
    passed = sum(row.reaches(0.95) is True for row in rows)
    assert passed / jobs < 0.06, "one side of what is said to be 95 %"


@pytest.mark.parametrize("rounds", [3, 6])
def test_a_loss_at_the_detection_limit_is_found_by_99_of_100_jobs(rounds: int) -> None:
    chance = np.random.default_rng(rounds)
    shape = made.timings(made.plan(2, rounds=rounds, steps=3))
    found: list[bool] = []
    while len(found) < 250:
        limit = throughputs(noisy_job(chance, shape, 1.0))[-1].detection(BOUND, made.promise())
        if limit is not None:  # else it is below its bound
            lossy = noisy_job(chance, shape, 1.0 - limit.share)
            found.append(throughputs(lossy)[-1].efficiency < BOUND)
    assert sum(found) / len(found) >= 0.985


def test_an_efficiency_states_its_detection_limit() -> None:
    def job(rounds: int, by_turn: float) -> JobTimings:
        def later(turn: GroupSteps) -> GroupSteps:
            more_s = by_turn * (turn.round * turn.count % 3)
            longer = [[s._replace(wall_s=s.wall_s + more_s) for s in one] for one in turn.steps]
            return replace(turn, steps=tuple(map(tuple, longer)))

        quiet = made.timings(made.plan(4, rounds=rounds), needed_s=lambda count: 0.0)
        return replace(quiet, trained=tuple(map(later, quiet.trained)))

    real, shared = (made.promise(compute=c, at_most_uncertainty=0.05) for c in (None, "200 ms"))
    alone, *_, quiet = throughputs(job(3, 0.0))
    assert quiet.by_round == pytest.approx((1, 1, 1))
    limit = quiet.detection(BOUND, real)
    assert limit is not None
    assert limit.text == "5 % less"
    assert alone.detection(BOUND, real) is None
    noisy = job(3, 0.004)
    row = throughputs(noisy)[1]
    limit = row.detection(BOUND, real)
    assert limit is not None
    assert limit.doubt.startswith("too noisy: medians of 3 repeats differ by up to")
    assert row.reaches(BOUND)
    assert not settled(noisy, real), "more rounds measure more of the noise"
    assert settled(job(8, 0.002), real)
    assert settled(noisy, shared), "other nodes cause the noise of this machine"
    for promise, verdict in ((real, "inconclusive"), (shared, "pass")):
        found = made.judged(noisy, compute=None if promise is real else "200 ms")
        measured = made.measured(found)["efficiency, 2 nodes"]
        assert measured.value == pytest.approx(row.efficiency)
        assert str(measured.verdict) == verdict
        assert measured.detection is not None
        assert measured.detection.share == limit.share


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(False, FABRIC)], True),
        ([(True, FABRIC), (False, REST)], False),
        ([(None, FABRIC)], False),
        ([(False, REST, FABRIC), (False, FABRIC)], True),
        ([(False,)], False),
        ([], False),
    ],
)
def test_links_are_searched_where_the_fabric_costs_most(
    counts: list[tuple[Any, ...]], expected: bool
) -> None:
    given: Any = tuple(
        SimpleNamespace(holds=holds, causes=tuple(Cause(kind, 1.0, "") for kind in kinds))
        for holds, *kinds in counts
    )
    none: Any = None
    assert ScalingResult(none, none, none, given, ()).falls_short_by_fabric == expected

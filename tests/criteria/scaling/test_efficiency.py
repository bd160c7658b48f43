"""Throughput, efficiency, and how well they are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.criteria.scaling.efficiency import reference_node, settled, throughputs
from pytest_mnode.criteria.scaling.timings import JobTimings, Step
from tests.criteria.scaling import made


def test_a_job_without_losses_has_an_efficiency_of_one() -> None:
    rows = throughputs(made.timings(made.plan(4)))
    assert [row.count for row in rows] == [1, 2, 4]
    assert [row.efficiency for row in rows] == pytest.approx([1, 1, 1])
    assert rows[2].samples_s == pytest.approx(4 * rows[0].samples_s)
    assert rows[2].tokens_s == pytest.approx(16 * rows[2].samples_s)
    assert all(row.uncertainty == 0 for row in rows)


def test_efficiency_is_the_ideal_time_of_the_measured() -> None:
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


def test_one_step_that_was_disturbed_changes_nothing() -> None:
    job = made.timings(
        made.plan(4), jitter=lambda round_, step: 1.0 if (round_, step) == (1, 3) else 0.0
    )
    assert [row.efficiency for row in throughputs(job)] == pytest.approx([1, 1, 1])


def test_steps_that_differ_make_the_answer_uncertain() -> None:
    quiet = made.timings(made.plan(4), jitter=lambda round_, step: 0.001 * (step % 3))
    rows = throughputs(quiet)
    assert all(row.low <= row.efficiency <= row.high for row in rows)
    assert settled(quiet, made.promise())
    wild = made.timings(
        made.plan(4), jitter=lambda round_, step: 0.03 * ((7 * step + 3 * round_) % 5)
    )
    assert throughputs(wild)[-1].uncertainty > 0.02
    assert not settled(wild, made.promise())
    assert settled(
        wild, made.promise(at_least_efficiency=0.5, explained_from=0.5)
    )  # on one side of that in any case
    assert throughputs(wild) == throughputs(wild)  # the same numbers whenever it is asked


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


def test_one_node_is_the_median_and_of_two_the_faster() -> None:
    def one_slow(node: str, count: int) -> dict[str, float]:
        return made.HEALTHY | ({"compute": 0.3} if node == "node0" else {})

    assert reference_node(made.timings(made.plan(2), one_slow)) == "node1"
    assert reference_node(made.timings(made.plan(4), one_slow)) != "node0"
    two = throughputs(made.timings(made.plan(2), one_slow))[-1]
    assert two.efficiency == pytest.approx((0.205 + 0.002) / (0.305 + 0.002))


def test_half_of_the_groups_with_a_slow_node_show() -> None:
    def one_slow(node: str, count: int) -> dict[str, float]:
        return made.HEALTHY | ({"compute": 0.3} if node == "node2" else {})

    rows = throughputs(made.timings(made.plan(4), one_slow))
    assert rows[1].efficiency == pytest.approx(rows[2].efficiency)
    assert rows[1].efficiency < 0.7


def test_nothing_measured_is_no_efficiency() -> None:
    job = made.timings(made.plan(2))
    without_one = JobTimings(1, "gloo", "cpu", 1, 4, (), job.over(2), ())
    assert throughputs(without_one) == ()
    assert not settled(without_one, made.promise())


@pytest.mark.parametrize(("every", "of_ten"), [(3, 4), (4, 3), (5, 2)])
def test_steps_that_the_median_does_not_see_show_in_the_mean(every: int, of_ten: int) -> None:
    job = made.timings(made.plan(4))
    late = 0.4

    def stall(step: Step, number: int, node: str) -> Step:
        more = late if number % every == 0 else 0.0
        return replace(step, wall_s=step.wall_s + more, input=step.input + more)

    row = throughputs(made.changed(job, stall))[-1]
    assert row.efficiency == pytest.approx(1)
    mean = row.by_mean()
    assert (mean.step_s, mean.ideal_s) == pytest.approx((0.207 + of_ten * late / 10, 0.207))
    assert mean.efficiency == pytest.approx(0.207 / (0.207 + of_ten * late / 10))
    assert mean.samples_s == pytest.approx(row.samples_s * row.step_s / mean.step_s)
    assert mean.tokens_s == pytest.approx(row.tokens_s * row.step_s / mean.step_s)
    assert mean.low <= mean.efficiency <= mean.high
    assert row.hides(0.02)
    assert row.judged_by(0.02) == mean
    assert not mean.hides(0.02)


def test_what_disturbs_fewer_than_half_of_the_turns_is_not_the_mean_either() -> None:
    job = made.timings(made.plan(4), jitter=lambda round_, step: 3.0 * (round_ == 1 and step < 3))
    [*_, row] = throughputs(job)
    assert row.by_mean().efficiency == pytest.approx(1)
    assert row.judged_by(0.02) == row


def test_rounds_go_on_while_the_mean_that_counts_is_not_known() -> None:
    def stall(step: Step, number: int, node: str) -> Step:
        more = 0.1 if number % 5 == 0 else 0.0
        return replace(step, wall_s=step.wall_s + more, input=step.input + more)

    job = made.changed(made.timings(made.plan(4)), stall)
    assert throughputs(job)[-1].known(0.02, 0.95)
    assert not settled(job, made.promise())
    assert settled(job, made.promise(parts_within=0.5))

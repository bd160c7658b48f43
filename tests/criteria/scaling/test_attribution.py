"""Attribution of step times and losses: parts that add up, and ranks that others wait for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pytest_mnode.criteria.scaling.attribution import Attribution, attribute
from pytest_mnode.criteria.scaling.efficiency import throughputs
from pytest_mnode.criteria.scaling.judge import CountResult, judge
from pytest_mnode.criteria.scaling.timings import PARTS, JobTimings, Step
from pytest_mnode.logs.kineto import Traced
from tests.criteria.scaling import made


def of(job: JobTimings) -> Attribution:
    return attribute(job, throughputs(job)[-1])


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 1), (3, 2), (8, 2)])
@pytest.mark.parametrize("parts", [{}, {"compute": 0.3}, {"input": 0.09}, {"optimiser": 0.05}])
def test_parts_add_up_to_the_step_and_to_the_loss(
    nodes: int, per_node: int, parts: dict[str, float]
) -> None:
    job = made.timings(
        made.plan(nodes, per_node), made.slow_on("node2", **parts), lambda count: 0.004 * count
    )
    found = of(job)
    assert sum(found.typical.mean.parts) == pytest.approx(found.typical.mean.wall_s)
    assert sum(found.lost) == pytest.approx(found.lost_s)
    assert sum(found.lost_on_path) + found.uneven_s == pytest.approx(found.lost_s)
    assert found.worst_missed.missed == pytest.approx(0, abs=1e-9)
    for rank in found.ranks:
        assert sum(rank.step.parts) == pytest.approx(rank.step.wall_s)


def test_waiting_for_the_slowest_is_separated_from_collective_time() -> None:
    slow = made.slow_on("node2", compute=0.3)
    found = of(made.timings(made.plan(4), slow, made.exposed_by(0.01)))
    lost = dict(zip(PARTS, found.lost, strict=True))
    assert lost["exposed"] == pytest.approx(0.01)
    assert lost["waiting"] == pytest.approx(0.1 * 3 / 4)  # three of four wait 100 ms
    assert lost["compute"] == pytest.approx(0.1 / 4)
    waits = {rank.node: (rank.step.waiting, rank.slowest_in) for rank in found.ranks}
    assert waits["node2"] == pytest.approx((0.0, 1.0))
    assert waits["node0"] == pytest.approx((0.1, 0.0))
    assert all(rank.step.exposed == pytest.approx(0.01) for rank in found.ranks)
    on_path = dict(zip(PARTS, found.lost_on_path, strict=True))
    assert on_path == pytest.approx({**dict.fromkeys(PARTS, 0), "compute": 0.1, "exposed": 0.01})


def test_a_rank_late_after_a_collective_delays_the_next_step() -> None:
    """A rank's optimiser is slow; the others wait for it in the collectives of the next step."""
    slow = made.slow_on("node2", optimiser=0.053)
    found = of(made.timings(made.plan(4), slow, lambda count: 0.0))
    on_path = dict(zip(PARTS, found.lost_on_path, strict=True))
    assert on_path["optimiser"] == pytest.approx(0.05)
    assert on_path["compute"] == pytest.approx(0)


def test_unattributed_time_is_reported() -> None:
    found = of(made.timings(made.plan(2), missed_s=0.01))
    assert found.worst_missed.missed == pytest.approx(0.01 / 0.217, rel=1e-3)


def judged(job: JobTimings) -> CountResult:
    return judge(job, made.spec(), made.promise()).counts[-1]


@pytest.mark.parametrize(
    ("late_s", "of_six", "lost_s"),
    [
        (0.028, {1, 3, 5}, 0.014),
        (0.028, {0, 2, 4}, 0.014),
        (0.2, {1, 3, 5}, 0.1),
        (0.028, {1, 2, 4, 5}, 0.028),
        (0.2, {1, 2, 4, 5}, 0.2),
        (0.016, {3}, 0.0),  # the mean explains less than parts_within
        (0.2, {0, 3}, 0.08),  # the median alone would explain nothing in four of ten steps
    ],
)
def test_the_judged_loss_is_the_attributed_one(
    late_s: float, of_six: set[int], lost_s: float
) -> None:
    """Where the median shows less loss than the mean, the mean is judged."""
    job = made.timings(made.plan(2))
    one = judged(made.stalled(job, late_s, lambda number: number % 6 in of_six, "exposed"))
    assert one.row.lost_s == pytest.approx(lost_s)
    assert made.not_attributed(one) < 0.005
    lost = dict(zip(PARTS, one.parts.lost, strict=True))
    assert lost["exposed"] == pytest.approx(one.row.lost_s, abs=0.002)


@pytest.mark.parametrize(("nodes", "seed"), [(2, 0), (2, 1), (3, 2), (4, 3), (8, 4), (8, 5)])
def test_honest_noise_is_attributed(nodes: int, seed: int) -> None:
    """A long tail, as of a machine with other things to do, on few steps."""
    chance = random.Random(seed)

    def of(step: Step, number: int, round_: int) -> Step:
        more = chance.expovariate(1 / 0.02) + (0.1 if chance.random() < 0.1 else 0.0)
        return step._replace(wall_s=step.wall_s + more, compute=step.compute + more)

    plan = made.plan(nodes, steps=3)
    one = judged(made.changed(made.timings(plan), of))
    assert made.not_attributed(one) < 0.02
    assert one.row.lost_s > 0.01


def test_an_attribution_of_another_loss_fails() -> None:
    one = judged(made.timings(made.plan(2), made.slow_on("node1", compute=0.28)))
    assert made.not_attributed(one) < 1e-9
    typical = one.parts.typical
    mean = typical.mean._replace(waiting=typical.mean.waiting + 0.014)
    parts = replace(one.parts, typical=replace(typical, mean=mean))
    assert made.not_attributed(replace(one, parts=parts)) == pytest.approx(0.014 / one.row.step_s)


def test_hidden_communication_is_a_share_of_the_transfer() -> None:
    assert of(made.timings(made.plan(2), hidden=0.03)).hidden_fraction == pytest.approx(0.03)
    alone = made.timings(made.plan(2))
    assert attribute(alone, throughputs(alone)[0]).hidden_fraction is None


def test_the_rank_that_waits_least_tells_what_is_hidden() -> None:
    job = made.timings(made.plan(2))
    waits, slowest = Traced(0, 0.9, 0.1, 0.0), Traced(1, 0.1, 0.3, 0.0)

    def traced(*ranks: Traced | None) -> float | None:
        of_both = [replace(one, traced=ranks) for one in job.over(2)]
        return of(replace(job, trained=(*job.over(1), *of_both))).hidden_fraction

    assert traced(waits, slowest) == pytest.approx(0.75)
    assert traced(waits, None) is None
    assert traced() is None

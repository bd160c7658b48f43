"""The judges' own measurements answer for their criteria, in the criterion's unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pytest_mnode.certificate import CaseResult
from pytest_mnode.checks.groups.judge import CollectiveResult, Layout, judge_collectives
from pytest_mnode.checks.judged import At
from pytest_mnode.criteria.devices import judge_rates
from pytest_mnode.criteria.fabric import judge_busbw
from pytest_mnode.criteria.launching.rendezvous import RankTimes, judged_times
from pytest_mnode.criteria.launching.starting import judged_start
from pytest_mnode.criteria.restart.history import history_of
from pytest_mnode.criteria.restart.judging import judge
from pytest_mnode.criteria.scaling.judge import judge_efficiency
from pytest_mnode.measurement import HeadlineMark, Measurement
from pytest_mnode.measuring.rank_rates import Comparison, RankRate
from pytest_mnode.spec.devices import CopyPromise, MatmulPromise
from pytest_mnode.spec.launch import RendezvousPromise, StartPromise
from tests.certificate.conftest import certify
from tests.criteria.launching.made import started
from tests.criteria.restart.made import KILL, KILLED, TERMS, WHOLE, resumed
from tests.criteria.scaling import made
from tests.gang.windows import RACE, RACED, judged_race, watched
from tests.measuring.sweeps import KIB, MIB, judged, row

LAYOUT = Layout.of(dp=2, tp=2)
MATMUL, COPY = (
    MatmulPromise(at_least_fraction=0.8),
    CopyPromise.model_validate({"at_least_fraction": 0.8}),
)
START = StartPromise.model_validate({"within": "20 s"})
MEET = RendezvousPromise.model_validate({"ranks": 2, "within": "5 s"})


def fabric() -> list[Measurement]:
    every = judge_busbw(judged([row(64 * KIB, 0.5), row(MIB, 0.956)]))
    return [one for one in every if one.passed]  # nobody counted bytes


def devices() -> list[Measurement]:
    rates = (
        Comparison("matmul float32", "GFLOP/s", MATMUL, None, _rows(52, 50.96), ""),
        Comparison("memory copy", "GB/s", COPY, None, _rows(10, 9.5), ""),
    )
    return [one for found in rates for one in judge_rates(found)]


def _rows(usual: float, slowest: float) -> tuple[RankRate, ...]:
    rates = [usual] * 7 + [slowest]
    return tuple(RankRate(f"rank {i} on node{i}", rate, "") for i, rate in enumerate(rates))


def groups() -> list[Measurement]:
    expected = {name: LAYOUT.groups(name) for name in LAYOUT.names}
    results = [
        (At(rank, "node0"), [CollectiveResult(name, "all_reduce", 0) for name in expected])
        for rank in range(4)
    ]
    return [judge_collectives("mesh", results, {}, expected) for _ in range(2)]


def launch() -> list[Measurement]:
    times = [RankTimes(rank, "node0", 0.01, 1.25) for rank in range(2)]
    jobs = [judged_start(started(), START, "criteria.launch.torchrun") for _ in range(3)]
    return [*jobs[0], *jobs[1], *jobs[2], *judged_times(times, MEET, "init")]


def rendezvous() -> list[Measurement]:
    return launch()[-2:]


def restart() -> list[Measurement]:
    return judge(history_of(WHOLE), history_of(KILLED + resumed()), KILL, TERMS)


def scaling() -> list[Measurement]:
    plan = made.plan(4)
    return judge_efficiency(made.judged(made.timings(plan)))


def gang() -> list[Measurement]:
    every = judged_race(watched(RACE, RACED, 118), 115.0)
    return [one for one in every if one.passed]


@pytest.mark.parametrize(
    ("judges", "text"),
    [
        (fabric, "all-reduce 23.9 MB/s of 25 (95.6 % of the line)"),
        (devices, "slowest rank 51 GFLOP/s of 52 (98 % of the median) in matmul float32"),
        (groups, "8 of 8 groups with right collectives"),
        (launch, "3 of 3 jobs started right"),
        (rendezvous, "1.25 s until 2 ranks met"),
        (restart, "0 steps lost and 15.5 s to the first new step"),
        (scaling, "efficiency 1 on 4 nodes"),
        (gang, "2 of 2 gangs started whole"),
    ],
)
def test_each_criterion_answers_in_its_unit(
    judges: Callable[[], Sequence[Measurement]], text: str
) -> None:
    test = f"acceptance/test_{judges.__name__}.py::test_it"
    case = CaseResult(test, "?", "passed", measurements=tuple(judges()))
    [criterion] = certify(case).criteria
    assert criterion.verdict == "pass"
    assert criterion.headline.text == text


def marks(measurements: Sequence[Measurement]) -> list[HeadlineMark]:
    return [one.headline for one in measurements if one.headline]


def test_groups_with_a_wrong_rank_or_without_one_are_not_counted() -> None:
    expected = {name: LAYOUT.groups(name) for name in LAYOUT.names}
    results = [
        (At(rank, "node0"), [CollectiveResult(name, "all_reduce", int(rank == 1 and name == "tp"))])
        for rank in range(4)
        for name in expected
        if (rank, name) != (3, "dp")
    ]
    [mark] = marks([judge_collectives("mesh", results, {}, expected)])
    assert (mark.right, mark.of) == (2, 4)


def test_a_job_that_started_wrong_is_not_counted() -> None:
    [mark] = marks(judged_start(started([]), START, "criteria.launch.torchrun"))
    assert (mark.right, mark.of) == (0, 1)


def test_counts_of_rounds_add_up() -> None:
    rounds = [HeadlineMark(after="gangs", of=2, right=right) for right in (2, 1)]
    assert HeadlineMark.summed([rounds[0], None, rounds[1]]) == HeadlineMark(
        after="gangs", of=4, right=3
    )
    assert HeadlineMark.summed([None]) is None

"""The cost of communication, compared with what the fabric allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.criteria.scaling.network import baseline_over
from pytest_mnode.criteria.scaling.timings import AloneTime, JobTimings
from pytest_mnode.jobs.observer import TRACED_STEPS
from pytest_mnode.logs.kineto import Call, Traced
from pytest_mnode.measurement import Verdict
from tests.criteria.scaling import made

PLAN = made.plan(2)


def exposed(seconds: float, hidden: float = 0.9, nic: str = "fab0") -> JobTimings:
    return made.timings(PLAN, needed_s=made.exposed_by(seconds), hidden=hidden, nic=nic)


def test_communication_explains_only_the_time_that_the_fabric_needs() -> None:
    judged, efficiency = made.judged_last(exposed(0.018), "communication")
    assert 0.9 < judged.row.efficiency < 0.95
    assert efficiency.verdict is Verdict.FAIL
    seconds = {cause.kind: cause.seconds for cause in judged.causes}
    assert judged.baseline is not None
    allowed_s = judged.baseline.last_s
    assert seconds["communication"] == pytest.approx(allowed_s)
    assert seconds["contention"] == pytest.approx(0.018 - allowed_s)
    assert "16 ms more than the fabric allows at 95% of its model and 95% of line rate" in str(
        efficiency.culprit
    )
    excused = made.judged_last(exposed(0.018), "communication", "contention")[1]
    assert excused.verdict is Verdict.PASS


def test_an_unmeasured_fabric_explains_nothing() -> None:
    unknown = replace(exposed(0.018), alone=())
    for allowed in ([], ["communication", "contention", "overlap", "fabric"]):
        judged, efficiency = made.judged_last(unknown, *allowed)
        assert efficiency.verdict is Verdict.INCONCLUSIVE
        assert "what the fabric allows over 2 nodes was not measured" in efficiency.note
        assert judged.explained < 0.01
    for seconds, verdict in ((0.05, Verdict.FAIL), (0.005, Verdict.PASS)):
        unknown = replace(exposed(seconds), alone=())
        assert made.judged_last(unknown)[1].verdict is verdict
    beside_it = replace(exposed(0.018, nic="mgmt0"), alone=())
    assert made.judged_last(beside_it)[1].verdict is Verdict.FAIL


def test_one_bucket_cannot_be_hidden_and_is_not_missing_overlap() -> None:
    """All gradients are sent at once, with no computing left to hide them."""
    job = exposed(0.015, hidden=0.0)
    job = replace(job, alone=tuple(replace(one, last_s=one.all_s) for one in job.alone))
    judged, efficiency = made.judged_last(job, "communication")
    assert judged.baseline is not None
    assert judged.baseline.last_s > 0.05
    assert efficiency.verdict is Verdict.PASS
    assert {cause.kind for cause in judged.causes if cause.seconds > 1e-6} == {"communication"}


def test_short_computing_can_hide_little_communication() -> None:
    """Of 100 ms of transfer, 10 ms of compute can hide 10 ms, and hide nearly all of them."""
    job = made.changed(
        exposed(0.2, hidden=0.09), lambda step, number, round_: step._replace(backward_s=0.01)
    )
    kinds = {cause.kind for cause in made.judged_last(job)[0].causes}
    assert "overlap" not in kinds
    assert "contention" in kinds


def test_collectives_of_other_groups_are_no_baseline() -> None:
    other = AloneTime(("node0", "node1", "node2"), 0.1, 0.1, 0.1)
    judged, _ = made.judged_last(replace(exposed(0.018), alone=(other,)))
    assert judged.baseline is None


def test_gathers_and_scatters_are_timed_as_the_job_calls_them() -> None:
    """gloo scatters by an all-reduce, which moves twice the bytes. The loss is no gradient."""
    calls = (Call("all_gather", 4096), Call("reduce_scatter", 4096), Call("all_reduce", 4))
    job = exposed(0.018)
    traced = Traced(0, 0.1, 0.1, 0.1, calls * TRACED_STEPS)
    job = replace(job, trained=tuple(replace(one, traced=(traced,)) for one in job.trained))
    assert (job.calls, job.last) == (calls, calls[1])
    one, two = (
        baseline_over(replace(job, backend=backend), 2, made.spec()) for backend in ("nccl", "gloo")
    )
    assert one is not None
    assert two is not None
    assert two.of_model * two.all_s > one.of_model * one.all_s + 2048 / (200e6 / 8)
    gathers = replace(traced, calls=calls[:1] * TRACED_STEPS)
    gathering = replace(job, trained=tuple(replace(one, traced=(gathers,)) for one in job.trained))
    assert gathering.last == calls[0]
    unknown = replace(job, trained=tuple(replace(one, traced=(None,)) for one in job.trained))
    assert unknown.calls == (unknown.last,) == (Call("all_reduce", made.GRADIENTS),)


def test_buckets_too_small_for_the_line_do_not_hide_a_slow_fabric() -> None:
    """Their time is that of steps, whatever the rate; all gradients at once show it."""
    job = exposed(0.05)
    job = replace(job, alone=tuple(replace(one, whole_s=2 * one.whole_s) for one in job.alone))
    judged, efficiency = made.judged_last(job, "communication", "contention")
    assert judged.causes[0].kind == "fabric"
    assert efficiency.verdict is Verdict.FAIL

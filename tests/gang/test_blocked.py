"""Jobs that wait for something other than nodes."""

from __future__ import annotations

import pytest

from pytest_mnode.gang.engine import JobRecord, Phase
from pytest_mnode.gang.judging import judged_size
from pytest_mnode.gang.slurm import record_of
from pytest_mnode.gang.window import CLEARED, Gang, Window
from pytest_mnode.launchers.slurm import JobState
from tests.gang.windows import (
    BLOCKED,
    FAIL,
    NEVER,
    NEXT,
    NODES,
    NOT_TRIED,
    OTHERS,
    PROMISE,
    RACED,
    UNKNOWN,
    A,
    B,
    Shown,
    all_ran,
    both,
    course,
    faults,
    holds,
    over,
    raced,
    waits,
    watched,
)

LIMIT = "QOSMaxJobsPerUserLimit"


@pytest.mark.parametrize(
    ("blocked", "reasons"),
    [
        (True, [LIMIT, "AssocGrpNodeLimit", "AssociationJobLimit", "PartitionTimeLimit"]),
        (
            True,
            ["Licenses", "Dependency", "DependencyNeverSatisfied", "BeginTime", "PartitionDown"],
        ),
        (True, ["MaxNodePerAccount", "MaxGRESPerAccount", "MaxCpuRunMinsPerUser", "Reservation"]),
        (True, ["JobHeldUser", "JobHeldAdmin", "launch_failed_requeued_held"]),
        (True, ["job_requeued_in_held_state", "user_env_retrieval_failed_requeued_held"]),
        (False, ["ReqNodeNotAvail, UnavailableNodes:n1", "NodeDown", "MaxPoweredUpNodes"]),
        (False, ["Resources", "Priority", None]),
    ],
)
def test_reasons_that_are_not_nodes(blocked: bool, reasons: list[str | None]) -> None:
    for reason in reasons:
        assert record_of(JobState(7, "x", "PENDING", reason=reason)).blocked is blocked, reason


def test_only_a_pending_job_is_blocked() -> None:
    assert not record_of(JobState(7, "x", "TIMEOUT", reason="TimeLimit")).blocked


def blocked(
    job: str, began: float, ended: float, *, nodes_too: bool = False, considered: float = 0.0
) -> Shown:
    """considered: when the scheduler first gives a reason."""

    def at(t: float) -> dict[str, JobRecord]:
        if t < considered:
            return {job: JobRecord(job, Phase.WAITING, (), "PENDING")}
        if t >= ended:
            return {job: over(job)}
        if t >= began:
            return {job: holds(job, *NODES)}
        return {job: waits(job) if nodes_too and t < 105 else waits(job, LIMIT, blocked=True)}

    return at


@pytest.mark.parametrize("considered", [0.0, 103.0])
def test_a_gang_blocked_by_a_limit_does_not_wait_for_nodes(considered: float) -> None:
    waits_for_it = blocked("2", 108, 114, considered=considered)
    observations = watched(both(course("1", 101, 107), waits_for_it), RACED, 118)
    found = raced(observations, 115.0)
    assert found == {
        NOT_TRIED: (
            UNKNOWN,
            f" | race 1: B was blocked by something other than nodes: PENDING ({LIMIT})",
        )
    }
    observations = watched(
        both(course("1", 101, 107), blocked("2", 108, 114, nodes_too=True)), RACED, 118
    )
    assert raced(observations, 115.0) == {}


@pytest.mark.parametrize("considered", [0.0, 100.9])
def test_a_blocked_job_is_not_the_schedulers_fault(considered: float) -> None:
    jobs = (blocked(job, 290, 290, considered=considered) for job in "12")
    observations = watched(both(*jobs), [], 295)
    found = raced(observations, 290.0)
    assert (found[NEVER][0], found[NEXT][0]) == (UNKNOWN, UNKNOWN)
    assert f"PENDING ({LIMIT})" in found[NEVER][1]
    waited = watched(
        both(course("1", 101, 107), blocked("2", 190, 196)),
        [*all_ran("1", 101.3, 106.3), *all_ran("2", 190.3, 195.3)],
        200,
    )
    found = raced(waited, 197.0)
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        NOT_TRIED: UNKNOWN,
        NEXT: UNKNOWN,
    }


@pytest.mark.parametrize(("blocked", "expected"), [(True, UNKNOWN), (False, FAIL)])
def test_a_blocked_job_beside_a_gang_that_is_too_large(blocked: bool, expected: str) -> None:
    large, small = Gang("too large", 5, ("9",), 5.0, 100.0), Gang("small", 1, ("3",), 1.0, 100.2)

    def shown(t: float) -> dict[str, JobRecord]:
        if t >= 190:
            return {job: over(job, "CANCELLED") for job in ("9", "2", "3")}
        return {"9": waits("9"), "2": waits("2", blocked=blocked), "3": waits("3", blocked=blocked)}

    observations = watched(shown, [], 195)
    window = Window("too large", (large, B, small), observations, notes=((190.0, CLEARED),))
    found = faults(judged_size(window, PROMISE))
    assert (found[BLOCKED][0], found[OTHERS][0]) == (expected, expected)
    assert A.size == B.size

"""Verdicts on a gang whose node died."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.gang.engine import Heartbeat, JobRecord, Phase
from pytest_mnode.gang.judge_rounds import Lost
from pytest_mnode.gang.judging import judged_lost, judged_size
from pytest_mnode.gang.slurm import record_of
from pytest_mnode.gang.window import Gang, Window
from pytest_mnode.launchers.slurm import JobState
from pytest_mnode.spec.gang import GangCriterion
from tests.gang.simulated import Job, Scheduler
from tests.gang.simulated import ran as run
from tests.gang.windows import (
    AGAIN,
    ALONE,
    BLOCKED,
    FAIL,
    FATE,
    NEVER,
    NEXT,
    NODES,
    NOT_BACK,
    NOT_TRIED,
    OFF,
    OLD,
    OTHERS,
    PROMISE,
    RACED,
    UNHEARD,
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
    ran,
    verdicts,
    waits,
    watched,
    words,
)

REQUEUED = GangCriterion.model_validate(
    {"node_loss": "requeued", "lost_within": "60 s", "together": "4 s", "runs": "5 s"}
)


def lost(
    beats: list[Heartbeat],
    again: Shown | None = None,
    off: dict[str, float] | None = None,
    silent: tuple[float, float] = (0.0, 0.0),
) -> dict[str, tuple[str, str]]:
    """n2 dies at 110 s; the gang is requeued, and is whole in the records from 130 to 200 s.

    silent: when the scheduler does not answer.
    """
    gang = Gang("B", 3, ("1",), 240.0, 100.0)

    def shown(t: float) -> dict[str, JobRecord]:
        if t < 125:
            return course("1", 101, 125)(t)
        if t < 130:
            return {"1": waits("1", "BeginTime", 1)}
        if again is not None:
            return again(t)
        return {"1": holds("1", *NODES, restarts=1) if t < 200 else over("1", "CANCELLED", 1)}

    before = [b for r in range(3) for b in ran("1", r, 101.5, 110 if r == 2 else 124.5)]
    observations = watched(shown, [b for b in before if b.what == "beat"] + beats, 204, off)
    observations = tuple(
        replace(one, records=None) if silent[0] < one.requested_s < silent[1] else one
        for one in observations
    )
    window = Window("loss", (gang,), observations, cleared_s=200.0)
    return faults(judged_lost(Lost(window, "n2", 110.0), REQUEUED))


def test_a_gang_that_is_requeued_runs_again_with_every_rank() -> None:
    assert lost(all_ran("1", 130.5, 199, 1)) == {}


def test_a_scheduler_that_is_silent_after_the_loss_has_not_kept_the_gang() -> None:
    """It may have ended at once, and have run again at once."""
    beats = all_ran("1", 130.5, 199, 1)
    assert {OFF, AGAIN}.isdisjoint(lost(beats, silent=(120.0, 165.0)))
    found = lost(beats, silent=(112.0, 175.0))
    assert (found[OFF][0], found[AGAIN][0]) == (UNKNOWN, UNKNOWN)
    assert "between 14.3 and 65." in found[OFF][1]  # so long were ranks heard
    assert "between 0.0 and 63." in found[AGAIN][1]
    found = lost(beats, silent=(126.0, 205.0))  # it was last seen waiting
    assert (found[FATE][0], found[AGAIN][0]) == (UNKNOWN, UNKNOWN)


@pytest.mark.parametrize("ranks", [0, 1, 2])
def test_a_start_that_is_whole_only_in_the_records(ranks: int) -> None:
    found = lost([b for r in range(ranks) for b in ran("1", r, 130.5, 199, 1)])
    assert [found[name][0] for name in (FATE, AGAIN, ALONE)] == [UNKNOWN] * 3
    assert f"requeued, but {ranks} of 3 ranks sent heartbeats" in found[FATE][1]


def test_ranks_of_the_next_start_begin_together() -> None:
    beats = [b for r in range(3) for b in ran("1", r, 180.5 if r == 2 else 130.5, 199, 1)]
    found = lost(beats)
    assert found[ALONE][0] == FAIL
    assert "loss: B: 2 of 3 ranks (0 on n0, 1 on n1) for 50.0 s" in found[ALONE][1]


def test_a_start_that_fails_at_once() -> None:
    def again(t: float) -> dict[str, JobRecord]:
        dead = over("1", "FAILED (NonZeroExitCode)", 1)
        return {"1": holds("1", *NODES, restarts=1) if t < 130.6 else dead}

    found = lost([], again)
    assert found[FATE][0] == FAIL
    assert "requeued and then over, FAILED (NonZeroExitCode)" in found[FATE][1]
    assert found[AGAIN][0] == UNKNOWN
    assert found[UNHEARD][0] == FAIL


def test_ranks_that_keep_running_and_ranks_with_a_wrong_clock() -> None:
    again = all_ran("1", 130.5, 199, 1)
    found = lost([*again, Heartbeat("1", 0, 0, "n0", 140.0)])
    assert found[OLD] == (FAIL, "loss: B: rank 0 on n0 | ")
    found = lost(again, off={"n0": 30.0})
    assert found[OLD][0] == UNKNOWN
    assert "n0's clock is off by +29." in found[OLD][1]


def test_a_gang_that_waits_for_nodes_of_others() -> None:
    gang = Gang("B", 3, ("1",), 240.0, 100.0)

    def shown(t: float) -> dict[str, JobRecord]:
        return course("1", 101, 125)(t) if t < 125 else {"1": waits("1", restarts=1)}

    beats = [b for b in all_ran("1", 101.5, 109.5) if b.what == "beat"]
    window = Window("loss", (gang,), watched(shown, beats, 204), cleared_s=200.0)
    promise = GangCriterion.model_validate({"node_loss": "either", "lost_within": "60 s"})

    def fate(window: Window) -> list[str]:
        found = faults(judged_lost(Lost(window, "n2", 110.0), promise))
        return [found[name][0] for name in (FATE, AGAIN)]

    assert fate(window) == [FAIL, FAIL]
    assert fate(replace(window, others=("n1: job 17 of bob",))) == [UNKNOWN, UNKNOWN]


def started_twice(t: float) -> dict[str, JobRecord]:
    """A first start that a prolog ends, then one that stays, although a node is dead."""
    if t < 105:
        first = JobRecord("1", Phase.HOLDING, NODES, "CONFIGURING", 0)
        return {"1": waits("1") if t < 101 else first}
    if t < 120:
        return {"1": waits("1", "BeginTime", 1)}
    return {"1": holds("1", *NODES, restarts=1) if t < 300 else over("1", "CANCELLED", 1)}


def test_the_start_that_ran_is_the_one_that_lost_its_node() -> None:
    gang = Gang("B", 3, ("1",), 2400.0, 100.0)

    def found(shown: Shown, beats: list[Heartbeat]) -> dict[str, tuple[str, str]]:
        observations = watched(shown, [b for b in beats if b.what == "beat"], 304)
        window = Window("loss", (gang,), observations, cleared_s=300.0)
        return faults(judged_lost(Lost(window, "n2", 150.0), REQUEUED))

    old = [b for r in range(3) for b in ran("1", r, 120.5, 150 if r == 2 else 299.5, 1)]
    deaf = found(started_twice, old)
    assert (deaf[OFF][0], deaf[FATE][0]) == (FAIL, FAIL)
    assert "loss: B: still whole 150.0 s" in deaf[OFF][1]

    def right(t: float) -> dict[str, JobRecord]:
        if t < 170:
            return started_twice(t)
        if t < 180:
            return {"1": waits("1", "BeginTime", 2)}
        return {"1": holds("1", *NODES, restarts=2) if t < 300 else over("1", "CANCELLED", 2)}

    old = [b for r in range(3) for b in ran("1", r, 120.5, 150 if r == 2 else 169.5, 1)]
    # The first start had no ranks: its correctness is unknown, everything else is correct.
    noted = found(right, [*old, *all_ran("1", 180.5, 299.5, 2)])
    assert set(noted) == {ALONE, UNHEARD}
    assert {verdict for verdict, _ in noted.values()} == {UNKNOWN}


class Flaky(Scheduler):
    """The first start of a gang fails after 0.6 s; later the death of a node is not noticed."""

    def _age(self, job: Job) -> None:
        early = job.restarts == 0 and job.request.nodes > 1 and job.began_s is not None
        if early and self.now - (job.began_s or 0.0) > 0.6:
            job.nodes, job.began_s, job.restarts = (), None, 1
            job.why = "PENDING (BeginTime)"
            return
        off, self.off = self.off, {}
        super()._age(job)
        self.off = off

    def _beat(self, job: Job) -> None:
        if job.restarts or job.request.nodes == 1:
            super()._beat(job)


@pytest.mark.parametrize("promised", ["requeued", "either", "cancelled"])
def test_a_scheduler_that_starts_twice_and_misses_the_loss(promised: str) -> None:
    done = run("loss", Flaky(), node_loss=promised, lost_within="30 s", runs="15 s")
    found = verdicts(done)
    assert (found[OFF], found[FATE]) == (FAIL, FAIL), done.text()
    assert AGAIN not in found


class NoPowerOn(Scheduler):
    def power(self, what: str, node: str) -> None:
        if what == "on":
            raise ClusterError("bmc on: no answer in 60 s")
        super().power(what, node)


def test_a_gang_that_waits_for_a_node_without_power() -> None:
    scheduler = NoPowerOn(("node0", "node1", "node2"))
    done = run("loss", scheduler, nodes=3, node_loss="requeued", lost_within="30 s")
    found = verdicts(done)
    assert (found[FATE], found[AGAIN]) == (UNKNOWN, UNKNOWN), done.text()
    assert "bmc on: no answer in 60 s" in words(done, FATE)
    assert OFF not in found
    assert found[NOT_BACK] == UNKNOWN


class Leaves(Scheduler):
    """A gang that ends by itself after its first heartbeat."""

    def _dies(self, job: Job) -> float | None:
        return 1.0 if job.request.nodes > 1 else None

    def _beat(self, job: Job) -> None:
        if not job.waits and not job.over:
            self.beats += [Heartbeat(job.id, 0, r, n, self.now) for r, n in enumerate(job.nodes)]


def test_a_gang_that_ended_by_itself_loses_no_node() -> None:
    done = run("loss", Leaves(), node_loss="either", lost_within="30 s")
    assert verdicts(done)[FATE] == UNKNOWN
    assert "the gang did not run" in words(done, FATE)


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
    window = Window("too large", (large, B, small), observations, cleared_s=190.0)
    found = faults(judged_size(window, PROMISE))
    assert (found[BLOCKED][0], found[OTHERS][0]) == (expected, expected)
    assert A.size == B.size

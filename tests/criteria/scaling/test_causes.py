"""Causes in words, and verdicts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_mnode.criteria.scaling import table
from pytest_mnode.criteria.scaling.causes import Cause, explained
from pytest_mnode.criteria.scaling.judge import (
    ScalingResult,
    judge,
    judge_efficiency,
    judge_parts,
)
from pytest_mnode.criteria.scaling.network import judge_network
from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.criteria.scaling.timings import JobTimings, Step
from pytest_mnode.measurement import Measurement, Verdict
from tests.criteria.scaling import made


def judged(plan: Plan, job: JobTimings, **changes: object) -> ScalingResult:
    return judge(job, plan, made.spec(), made.promise(**changes))


def measured(found: ScalingResult) -> dict[str, Measurement]:
    network = judge_network(found.traffic, found.spec, found.promise)
    every = (*judge_efficiency(found), *judge_parts(found), *network)
    return {one.name: one for one in every}


def last(found: ScalingResult) -> Measurement:
    return measured(found)[f"efficiency, {found.plan.counts[-1]} nodes"]


def on(who: str, **parts: float) -> made.Own:
    def own(node: str, count: int) -> dict[str, float]:
        return made.HEALTHY | (parts if node == who else {})

    return own


def exposed(seconds: float) -> dict[str, object]:
    return {"needed_s": lambda count: seconds if count > 1 else 0.0}


@pytest.mark.parametrize("per_node", [1, 2])
@pytest.mark.parametrize("nodes", [2, 3, 4, 16])
def test_a_healthy_job_passes_in_all(nodes: int, per_node: int) -> None:
    plan = made.plan(nodes, per_node)
    found = judged(plan, made.timings(plan))
    verdicts = {name: one.verdict for name, one in measured(found).items() if one.expected}
    assert set(verdicts.values()) == {Verdict.PASS}, verdicts
    assert f"efficiency, {nodes} nodes" in verdicts


@pytest.mark.parametrize(
    ("job", "culprit"),
    [
        ({"own": on("node3", compute=0.28)}, "node3 computes 1.4× slower: 280 ms, others 200 ms"),
        ({"own": on("node2", input=0.06)}, "node2 waits 60 ms a step for input, others 1.0 ms"),
        ({"own": on("node1", optimiser=0.06)}, "node1 takes 60 ms a step longer to optimise"),
        (
            {**exposed(0.038), "line": 0.47},
            "all-reduce exposed 38 ms a step: fabric at 47% of line rate; 90% of communication",
        ),
        (
            {**exposed(0.09), "hidden": 0.03},
            "collectives are not overlapped: 3% of communication is hidden, 90 ms a step exposed",
        ),
        ({**exposed(0.3), "nic": "mgmt0"}, "traffic on mgmt0 (480 MB), not fab0: collectives "),
        (
            {**exposed(0.05)},
            "collectives exposed 50 ms a step; 90% of communication is hidden; 47 ms more than the "
            "fabric allows at 95% of line rate",
        ),
    ],
)
def test_the_largest_cause_comes_first(job: dict[str, object], culprit: str) -> None:
    plan = made.plan(4)
    found = last(judged(plan, made.timings(plan, **job)))  # type: ignore[arg-type]
    assert found.verdict is Verdict.FAIL
    assert found.culprit is not None
    assert found.culprit.startswith(culprit), found.culprit


def test_one_rank_of_several_on_a_node_is_named_by_its_number() -> None:
    plan = made.plan(2, per_node=2)
    job = made.timings(plan)
    slower = []
    for one in job.trained:
        steps = list(one.steps)
        for index, rank in enumerate(one.ranks):
            for number, step in enumerate(steps[index]):
                more = {"compute": 0.3} if rank == 3 else {}
                gap = 0.1 if 3 in one.ranks and rank != 3 else 0.0
                wall_s = step.wall_s + (0.1 if 3 in one.ranks else 0.0)
                changed = replace(step, wall_s=wall_s, exposed=step.exposed + gap, **more)
                steps[index] = (*steps[index][:number], changed, *steps[index][number + 1 :])
        slower.append(replace(one, steps=tuple(steps)))
    found = last(judged(plan, replace(job, trained=tuple(slower))))
    assert found.culprit is not None
    assert found.culprit.startswith("rank 3 on node1 computes 1.5× slower: 300 ms"), found.culprit


def test_a_different_rank_each_step_is_nobody() -> None:
    plan = made.plan(4)
    job = made.timings(plan)
    uneven = []
    for one in job.trained:
        steps = [list(of_rank) for of_rank in one.steps]
        for number in range(len(steps[0])):
            late = number % len(one.ranks)
            for index, of_rank in enumerate(steps):
                step = of_rank[number]
                mine = 0.04 if index == late and one.count > 1 else 0.0
                wait = 0.04 - mine if one.count > 1 else 0.0
                of_rank[number] = replace(
                    step,
                    wall_s=step.wall_s + mine + wait,
                    compute=step.compute + mine,
                    exposed=step.exposed + wait,
                )
        uneven.append(replace(one, steps=tuple(map(tuple, steps))))
    found = last(judged(plan, replace(job, trained=tuple(uneven))))
    assert found.culprit is not None
    assert found.culprit.startswith("ranks compute unevenly: "), found.culprit


def test_between_the_bounds_allowed_causes_must_explain_the_loss() -> None:
    plan = made.plan(4)
    job = made.timings(plan, **exposed(0.015))  # type: ignore[arg-type]
    assert last(judged(plan, job)).verdict is Verdict.FAIL
    passed = last(judged(plan, job, allowed_causes=["communication", "contention"]))
    assert passed.verdict is Verdict.PASS
    assert passed.expected is not None
    assert passed.expected.limit == 0.9
    assert "explained_from 0.9, as 100% of the loss is due to allowed_causes" in passed.source
    other = last(judged(plan, job, allowed_causes=["input", "straggler"]))
    assert other.verdict is Verdict.FAIL
    assert "0% of the loss is due to allowed_causes" in other.source


def test_below_the_lower_bound_no_cause_is_an_excuse() -> None:
    plan = made.plan(4)
    job = made.timings(plan, **exposed(0.05))  # type: ignore[arg-type]
    assert last(judged(plan, job, allowed_causes=["communication"])).verdict is Verdict.FAIL


def test_what_one_part_gains_does_not_pay_for_another() -> None:
    causes = (
        Cause("communication", 0.02, ""),
        Cause("straggler", 0.02, ""),
        Cause("rest", -0.02, ""),
    )
    assert explained(causes, ["communication"], 0.02) == pytest.approx(0.5)
    assert explained((), [], 0.0) == 1.0


def test_too_little_or_too_uneven_is_no_answer() -> None:
    plan = made.plan(4)
    job = made.timings(plan)
    few = judge(job, made.plan(4, rounds=5), made.spec(), made.promise(rounds=5))
    assert last(few).verdict is Verdict.INCONCLUSIVE
    assert "3 rounds of 5 were measured" in last(few).note
    wild = made.timings(plan, jitter=lambda round_, step: 0.02 * ((7 * step + 3 * round_) % 5))
    assert last(judged(plan, wild)).verdict is Verdict.INCONCLUSIVE
    assert "steps differ too much" in last(judged(plan, wild)).note
    nothing = replace(job, trained=())
    assert last(judged(plan, nothing)).verdict is Verdict.INCONCLUSIVE


def test_a_starved_machine_is_no_answer_unless_somebody_is_to_blame() -> None:
    plan = made.plan(4)

    def starved(job: JobTimings) -> JobTimings:
        seconds = [replace(t, cpu_wait_s=tuple(1.0 for _ in t.ranks)) for t in job.trained]
        return replace(job, trained=tuple(seconds))

    diffuse = starved(made.timings(plan, **exposed(0.03)))  # type: ignore[arg-type]
    assert last(judged(plan, diffuse)).verdict is Verdict.INCONCLUSIVE
    assert "nodes share this machine's processors" in last(judged(plan, diffuse)).note
    slow = starved(made.timings(plan, on("node3", compute=0.28)))
    assert last(judged(plan, slow)).verdict is Verdict.FAIL


def test_bytes_that_no_counter_shows_prove_nothing() -> None:
    plan = made.plan(4)
    job = made.timings(plan)
    unseen = [replace(t, sent_bytes=tuple({"fab0": 100} for _ in t.nodes)) for t in job.trained]
    found = measured(judged(plan, replace(job, trained=tuple(unseen))))
    unseen_at_all = found["sent past the fabric during the steps"]
    assert unseen_at_all.verdict is Verdict.INCONCLUSIVE
    assert unseen_at_all.note.startswith("no counter shows the ")
    off_fabric = measured(judged(plan, made.timings(plan, nic="mgmt0")))
    network = off_fabric["sent past the fabric during the steps"]
    assert network.verdict is Verdict.FAIL
    assert network.culprit == "all nodes sent over mgmt0 instead of fab0"


def test_parts_that_miss_the_step_fail() -> None:
    plan = made.plan(4)
    found = measured(judged(plan, made.timings(plan, missed_s=0.01)))
    one = found["parts beside the step time, 4 nodes"]
    assert one.verdict is Verdict.FAIL
    assert one.culprit is not None
    assert one.culprit.startswith("rank ")


def test_the_table_shows_what_was_emulated_and_who_waited() -> None:
    plan = made.plan(4)
    text = table(judged(plan, made.timings(plan, on("node3", compute=0.28))))
    assert "emulated: forward and backward take 200 ms, as declared" in text
    assert "4 nodes lose " in text
    assert "node3 computes 1.4× slower" in text
    located = judged(plan, made.timings(plan, line=0.4, **exposed(0.1)))  # type: ignore[arg-type]
    assert located.falls_short_by_fabric
    with_who = replace(located, slow_links="node2 fab0 (50 Mbit/s)")
    assert "node2 fab0 (50 Mbit/s)" in str(last(with_who).culprit)
    assert "slow links: node2 fab0 (50 Mbit/s)" in table(with_who)


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_a_straggler_has_all_that_it_costs(nodes: int) -> None:
    plan = made.plan(nodes)
    found = judged(plan, made.timings(plan, on("node1", compute=0.28))).counts[-1]
    assert (found.causes[0].kind, found.causes[0].culprit) == ("straggler", "node1")
    assert found.causes[0].seconds == pytest.approx(0.08)
    assert sum(cause.seconds for cause in found.causes) == pytest.approx(found.parts.lost_s)


def local_rank_0(more_s: float) -> Callable[[int, int], float]:
    """It computes so much longer on every node, also where that node trains alone."""
    return lambda rank, count: more_s if rank % 8 == 0 else 0.0


@pytest.mark.parametrize("more_s", [0.016, 0.08])
@pytest.mark.parametrize(("allowed", "share"), [("straggler", 0.0), ("communication", 1.0)])
def test_what_is_uneven_inside_one_node_too_is_no_cause(
    more_s: float, allowed: str, share: float
) -> None:
    plan = made.plan(4, 8)
    job = made.later(made.timings(plan, **exposed(0.0165), line=0.15), local_rank_0(more_s))  # type: ignore[arg-type]
    found = judged(plan, job, allowed_causes=[allowed], fabric_fraction=0.1).counts[-1]
    assert found.explained == pytest.approx(share, abs=0.02), found.causes
    assert [c.culprit for c in found.causes if c.kind == "straggler"] == []
    assert sum(c.seconds for c in found.causes) == pytest.approx(found.parts.lost_s)
    assert min(c.seconds for c in found.causes) > -0.001


@pytest.mark.parametrize(
    ("nodes", "jitter", "least"), [(4, 0.03, 0.94), (4, 0.06, 0.9), (8, 0.04, 0.92)]
)
def test_ranks_that_differ_by_chance_explain_no_more_than_they_cost(
    nodes: int, jitter: float, least: float
) -> None:
    plan = made.plan(nodes, 8)
    job = made.uneven(made.timings(plan, **exposed(0.0165), line=0.15), 0.2 * jitter)  # type: ignore[arg-type]
    found = judged(plan, job, allowed_causes=["communication"], fabric_fraction=0.1).counts[-1]
    assert found.explained > least, found.causes


def test_a_straggler_beside_what_is_uneven_in_every_node_has_its_own_part() -> None:
    plan = made.plan(4, 8)

    def by(rank: int, count: int) -> float:
        return (0.016 if rank % 8 == 0 else 0.0) + (0.08 if rank == 13 else 0.0)

    found = judged(plan, made.later(made.timings(plan), by)).counts[-1]
    assert (found.causes[0].kind, found.causes[0].culprit) == ("straggler", "rank 13 on node1")
    assert found.causes[0].seconds == pytest.approx(0.064)
    assert all(cause.seconds == pytest.approx(0, abs=1e-3) for cause in found.causes[1:])


def test_skew_names_the_rank_that_is_the_slowest_most_often() -> None:
    plan, chance = made.plan(4, 8), random.Random(3)

    def by(rank: int, count: int) -> float:
        often = rank == 24 and count > 1 and chance.random() < 0.7
        return 0.03 if often else chance.uniform(0, 1e-4)

    found = judged(plan, made.later(made.timings(plan), by)).counts[-1]
    assert found.causes[0].kind == "skew"
    assert found.causes[0].text.startswith(
        "ranks compute unevenly: the slowest of a step, most often rank 24 on node3, takes 30"
    )


@pytest.mark.parametrize("part", ["rest", "input", "optimiser"])
def test_one_rank_that_takes_longer_for_anything_is_named(part: str) -> None:
    plan = made.plan(4, 8)
    job = made.later(made.timings(plan), lambda rank, count: 0.04 if rank == 13 else 0.0, part)
    found = judged(plan, job).counts[-1]
    assert found.causes[0].kind == part
    assert found.causes[0].culprit == "rank 13 on node1"
    assert found.causes[0].seconds == pytest.approx(0.04)


def test_a_rest_that_all_ranks_have_is_nobodys() -> None:
    plan = made.plan(4, 8)
    job = made.later(made.timings(plan), lambda rank, count: 0.04 if count > 1 else 0.0, "rest")
    found = judged(plan, job).counts[-1]
    assert (found.causes[0].kind, found.causes[0].culprit) == ("rest", None)
    assert found.causes[0].text == "unattributed: 40 ms a step, the bookkeeping of ranks"


@pytest.mark.parametrize("part", ["input", "compute", "optimiser", "rest", "exposed"])
@pytest.mark.parametrize("every", [3, 4])
def test_stalls_in_a_part_of_the_steps_fail_by_the_part_that_stalls(part: str, every: int) -> None:
    plan = made.plan(4)

    def stall(step: Step, number: int, node: str) -> Step:
        more = 0.4 if number % every == 0 else 0.0
        return replace(step, wall_s=step.wall_s + more, **{part: getattr(step, part) + more})

    found = judged(plan, made.changed(made.timings(plan), stall))
    one = last(found)
    assert one.verdict is Verdict.FAIL
    assert one.value is not None
    assert one.value == pytest.approx(0.207 / (0.207 + 0.04 * -(-10 // every)))
    assert "median 207.0 ms, mean " in one.note
    assert "judged by the mean of each turn's steps, because the median hides slow ones" in one.note
    kinds = {"exposed": "contention"}
    assert found.counts[-1].causes[0].kind == kinds.get(part, part)
    assert measured(found)["loss not attributed, 4 nodes"].verdict is Verdict.PASS
    assert measured(found)["throughput, 4 nodes"].value == pytest.approx(
        found.counts[0].row.samples_s * 4 * one.value
    )


def test_two_stalls_of_ten_steps_are_left_open_by_what_stalls() -> None:
    plan = made.plan(4)

    def stall(step: Step, number: int, node: str) -> Step:
        more = 0.4 if number % 5 == 0 else 0.0
        return replace(step, wall_s=step.wall_s + more, input=step.input + more)

    one = last(judged(plan, made.changed(made.timings(plan), stall)))
    assert one.verdict is Verdict.INCONCLUSIVE
    assert "steps differ too much; 95 % between" in one.note
    assert one.culprit == "input takes 81 ms a step, on one node 1.0 ms"
    rows = table(judged(plan, made.changed(made.timings(plan), stall))).splitlines()
    assert any(row.split()[:3] == ["4", "207.0", "287.0"] for row in rows)


def test_stalls_of_one_node_name_it() -> None:
    plan = made.plan(4, 2)
    job = made.timings(plan)
    number = iter(range(10**6))

    def by(rank: int, count: int) -> float:
        step = next(number) // (2 * count) % 10
        return 0.4 if count > 1 and rank // 2 == 2 and step % 4 == 0 else 0.0

    found = judged(plan, made.later(job, by, "input")).counts[-1]
    assert found.causes[0].kind == "input"
    assert found.causes[0].culprit == "node2"
    assert found.holds is False

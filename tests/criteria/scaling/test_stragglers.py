"""Who is slower than the others: all of them, be they half of the nodes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_mnode.criteria.scaling.judge import CountResult, judge, judge_efficiency
from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.criteria.scaling.timings import JobTimings
from pytest_mnode.measurement import Measurement, Verdict
from tests.criteria.scaling import made


def on(slow: Sequence[str], **parts: float) -> made.Own:
    def own(node: str, count: int) -> dict[str, float]:
        return made.HEALTHY | (parts if node in slow else {})

    return own


def last(plan: Plan, job: JobTimings, *allowed: str) -> tuple[CountResult, Measurement]:
    found = judge(job, plan, made.spec(), made.promise(allowed_causes=list(allowed)))
    name = f"efficiency, {plan.counts[-1]} nodes"
    return found.counts[-1], next(one for one in judge_efficiency(found) if one.name == name)


@pytest.mark.parametrize(
    ("nodes", "slow", "names"),
    [
        (2, ["node1"], "node1 computes 1.4× slower: 280 ms, others 200 ms"),
        (4, ["node2", "node3"], "node2 and node3 compute up to 1.4× slower: 280 ms, others 200 ms"),
        (
            8,
            ["node4", "node5", "node6", "node7"],
            "node4, node5, node6 and node7 compute up to 1.4× slower: 280 ms, others 200 ms",
        ),
        (8, ["node4", "node5"], "node4 and node5 compute up to 1.4× slower: "),
    ],
)
@pytest.mark.parametrize("per_node", [1, 2])
@pytest.mark.parametrize("noise_s", [0.0, 0.004])
def test_all_that_are_slow_are_named(
    nodes: int, slow: Sequence[str], names: str, per_node: int, noise_s: float
) -> None:
    plan = made.plan(nodes, per_node)
    job = made.uneven(made.timings(plan, on(slow, compute=0.28)), noise_s)
    judged, efficiency = last(plan, job, "skew", "compute")
    assert efficiency.verdict is Verdict.FAIL
    assert efficiency.culprit is not None
    words = names if not noise_s else names.partition(":")[0]
    assert efficiency.culprit.startswith(words), efficiency.culprit
    assert judged.causes[0].kind == "straggler"
    assert judged.causes[0].seconds == pytest.approx(0.08, abs=noise_s + 1e-9)


def test_slow_nodes_are_no_skew_that_a_spec_may_allow() -> None:
    plan = made.plan(8)
    slow = ["node4", "node5", "node6"]
    job = made.uneven(made.timings(plan, on(slow, compute=0.214)), 0.004)
    judged, efficiency = last(plan, job, "skew")
    assert 0.9 < judged.row.efficiency < 0.95
    assert efficiency.verdict is Verdict.FAIL
    straggler = judged.causes[0]
    assert (straggler.kind, straggler.culprit) == ("straggler", "node4, node5 and node6")
    skew = sum(cause.seconds for cause in judged.causes if cause.kind == "skew")
    assert 0 < skew < 0.004


def test_what_is_uneven_by_chance_stays_skew() -> None:
    plan = made.plan(4)
    judged, efficiency = last(plan, made.uneven(made.timings(plan), 0.04), "skew")
    assert judged.causes[0].kind == "skew"
    assert efficiency.culprit is None  # it is allowed, so that nobody is to blame


@pytest.mark.parametrize("seed", range(8))
def test_chance_in_few_steps_names_nobody(seed: int) -> None:
    plan = made.plan(4, steps=3)
    judged, _ = last(plan, made.uneven(made.timings(plan), 0.03, seed))
    assert "straggler" not in {cause.kind for cause in judged.causes}


def test_half_of_the_nodes_wait_for_input() -> None:
    plan = made.plan(4)
    judged, efficiency = last(plan, made.timings(plan, on(["node2", "node3"], input=0.06)))
    assert efficiency.culprit is not None
    assert efficiency.culprit.startswith(
        "node2 and node3 wait up to 60 ms a step for input, others 1.0 ms"
    )
    assert judged.causes[0].culprit == "node2 and node3"


def test_what_all_nodes_do_names_none() -> None:
    plan = made.plan(4)

    def own(node: str, count: int) -> dict[str, float]:
        return made.HEALTHY | ({"input": 0.06, "compute": 0.24} if count > 1 else {})

    judged, _ = last(plan, made.timings(plan, own))
    assert {cause.kind: cause.culprit for cause in judged.causes[:2]} == {
        "input": "all nodes",
        "compute": "all nodes",
    }

"""Completeness of a job's measurements: all numbers of nodes, on the promised devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.criteria.scaling.timings import GroupSteps, JobTimings
from pytest_mnode.errors import EnvironmentContractError
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec
from tests.criteria.scaling import made


def measured(plan: Plan, job: JobTimings, spec: Spec | None = None) -> dict[str, Measurement]:
    return made.measured(made.judged(plan, job, on=spec))


def with_accelerators(per_node: int) -> Spec:
    spec = made.spec()
    there = spec.accelerators.model_copy(update={"per_node": per_node})
    return spec.model_copy(update={"accelerators": there})


@pytest.mark.parametrize(
    ("keep", "missing_steps", "why"),
    [
        (lambda one: one.count != 4, [4], "no steps were timed over 4 nodes"),
        (lambda one: one.count == 1, [2, 4], "no steps were timed over 2 nodes"),
        (lambda one: one.count != 1, [2, 4], "no steps were timed over 1 node"),
        (lambda one: one.count != 2 or one.round != 1, [2], "2 rounds of 3 were measured"),
        (lambda one: one.count != 1 or one.round != 1, [2, 4], "over 1 node 2 rounds of 3"),
        (
            lambda one: (one.round, *one.nodes) != (1, "node1", "node2"),
            [2],
            "round 2 lacks node1+node2",
        ),
        (lambda one: False, [2, 4], "no steps were timed over "),
    ],
)
def test_unmeasured_numbers_of_nodes_do_not_pass(
    keep: Callable[[GroupSteps], bool], missing_steps: list[int], why: str
) -> None:
    plan = made.plan(4)
    job = made.timings(plan)
    result = made.judged(plan, replace(job, trained=tuple(filter(keep, job.trained))))
    found, measured_counts = made.measured(result), {one.row.count for one in result.counts}
    for count in plan.counts[1:]:
        efficiency = found[f"efficiency, {count} nodes"]
        wanted = Verdict.INCONCLUSIVE if count in missing_steps else Verdict.PASS
        assert efficiency.verdict is wanted, efficiency
        assert found[f"step time that differs from its parts, {count} nodes"].verdict is (
            Verdict.PASS if count in measured_counts else Verdict.INCONCLUSIVE
        )
    assert why in found[f"efficiency, {missing_steps[0]} nodes"].note


@pytest.mark.parametrize("steps", [0, 2])
def test_a_turn_with_too_few_steps_is_inconclusive(steps: int) -> None:
    plan = made.plan(4)
    job = made.timings(plan)
    short = tuple(of_rank[:steps] for of_rank in job.over(4)[0].steps)
    trained = [replace(one, steps=short) if one.count == 4 else one for one in job.trained]
    job = replace(job, trained=tuple(trained))
    efficiency = measured(plan, job)["efficiency, 4 nodes"]
    assert efficiency.verdict is Verdict.INCONCLUSIVE
    assert f"{steps} steps of 10 were timed over node0+node1+node2+node3" in efficiency.note


@pytest.mark.parametrize(
    ("per_node", "device", "why"),
    [
        (8, "cpu", "trained on cpu, spec has 8 accelerators per node"),
        (0, "cuda", "trained on cuda, spec has no accelerators"),
    ],
)
def test_training_on_another_device_is_inconclusive(per_node: int, device: str, why: str) -> None:
    plan = made.plan(2)
    job = replace(made.timings(plan), device=device)
    efficiency = measured(plan, job, with_accelerators(per_node))["efficiency, 2 nodes"]
    assert efficiency.verdict is Verdict.INCONCLUSIVE
    assert why in efficiency.note
    job = replace(job, device="cuda" if per_node else "cpu")
    efficiency = measured(plan, job, with_accelerators(per_node))["efficiency, 2 nodes"]
    assert efficiency.verdict is Verdict.PASS


@pytest.mark.parametrize(("per_node", "device"), [(8, "accelerator"), (0, "cpu")])
def test_ranks_get_the_device_to_train_on(per_node: int, device: str) -> None:
    plan = Plan(("node0", "node1"), 1, per_node, made.promise())
    assert plan.training["device"] == device


def test_ranks_refuse_to_train_on_cpus_in_place_of_accelerators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    from pytest_mnode.criteria.scaling.program import train

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    world = World(0, 2, 0, 1, "node0", ("node0", "node1"))
    plan = Plan(("node0", "node1"), 1, 8, made.promise())
    with pytest.raises(EnvironmentContractError, match="shows no accelerator"):
        train(plan, world)

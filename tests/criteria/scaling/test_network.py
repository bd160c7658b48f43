"""Which NICs carried the bytes of the steps, on every node, however many it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.criteria.scaling.timings import GroupSteps, JobTimings
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Spec
from tests.criteria.scaling import made


def network(plan: Plan, job: JobTimings, spec: Spec) -> Measurement:
    found = made.measured(made.judged(job, on=spec))
    return found["off-fabric traffic during the steps"]


def sent(job: JobTimings, of: Callable[[str, int], Mapping[str, int] | None]) -> JobTimings:
    """The job with bytes sent by NIC, from node and number of nodes; None: unchanged."""

    def changed(one: GroupSteps) -> GroupSteps:
        pairs = zip(one.nodes, one.sent_bytes, strict=True)
        return replace(one, sent_bytes=tuple(of(node, one.count) or was for node, was in pairs))

    return replace(job, trained=tuple(changed(t) if t.count > 1 else t for t in job.trained))


def rails(number: int) -> Spec:
    spec = made.spec()
    names = tuple(f"mlx5_{i}" for i in range(number))
    fabric = spec.fabric.model_copy(update={"nics_per_node": number, "interfaces": names})
    return spec.model_copy(update={"fabric": fabric})


WHOLE = made.GRADIENTS * 2 * made.promise().steps


@pytest.mark.parametrize(
    ("who", "counts", "share", "culprit"),
    [
        ("node7", {"fab0": 900, "mgmt0": WHOLE}, 1.0, "node7 sent over mgmt0 instead of fab0"),
        ("node", {"fab0": 900, "mgmt0": WHOLE}, 1.0, "all nodes sent over mgmt0 instead of fab0"),
        (
            "node7",
            {"fab0": WHOLE, "mgmt0": WHOLE // 4},
            0.2,
            "node7 sent 20% over other NICs than fab0",
        ),
    ],
)
def test_nodes_that_bypass_the_fabric_are_named(
    who: str, counts: dict[str, int], share: float, culprit: str
) -> None:
    plan = made.plan(16)
    job = sent(made.timings(plan), lambda node, count: counts if who in node else None)
    one = network(plan, job, made.spec())
    assert (one.verdict, one.culprit) == (Verdict.FAIL, culprit)
    assert one.value == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(("nodes", "number"), [(2, 8), (16, 4)])
def test_several_nics_that_share_the_gradients_pass(nodes: int, number: int) -> None:
    plan = made.plan(nodes)

    def each(node: str, count: int) -> Mapping[str, int]:
        ring = 2 * (count - 1) / count * made.GRADIENTS * plan.promise.steps
        return {"eth0": 900, **{f"mlx5_{i}:1": round(1.05 * ring / number) for i in range(number)}}

    one = network(plan, sent(made.timings(plan), each), rails(number))
    assert one.verdict is Verdict.PASS, one


@pytest.mark.parametrize(("who", "words"), [("node2", " of node2 shows"), ("node", " shows")])
def test_nodes_whose_counters_show_no_traffic_are_inconclusive(who: str, words: str) -> None:
    plan = made.plan(4)
    job = sent(made.timings(plan), lambda node, count: {"fab0": 9} if who in node else None)
    one = network(plan, job, made.spec())
    assert one.verdict is Verdict.INCONCLUSIVE
    assert one.note.startswith(f"no counter{words} the ")


@pytest.mark.parametrize(
    ("fabric", "lower_devices", "counted"),
    [
        ("bond0", {"bond0": ("eth2", "eth3")}, {"bond0": 1.0, "eth2": 0.5, "eth3": 0.51}),
        ("eth0.100", {"eth0.100": ("eth0",)}, {"eth0.100": 1.0, "eth0": 1.01}),
        ("ib0", {"mlx5_0": ("ib0",)}, {"ib0": 1.0, "mlx5_0:1": 1.01}),
    ],
)
def test_a_fabric_of_several_interfaces_is_counted_once(
    fabric: str, lower_devices: Mapping[str, tuple[str, ...]], counted: Mapping[str, float]
) -> None:
    plan, spec = made.plan(4), made.spec()
    named = spec.fabric.model_copy(update={"interfaces": (fabric,)})
    spec = spec.model_copy(update={"fabric": named})
    over = {name: round(part * WHOLE) for name, part in counted.items()}
    job = sent(made.timings(plan), lambda node, count: {"mgmt0": 900, **over})
    trained = [replace(t, lower_devices=tuple(lower_devices for _ in t.nodes)) for t in job.trained]
    job = replace(job, trained=tuple(trained))
    one = network(plan, job, spec)
    assert one.verdict is Verdict.PASS, one
    assert one.value == pytest.approx(0, abs=0.011)
    off_fabric = {"mgmt0": WHOLE, **dict.fromkeys(over, 900)}
    job = sent(job, lambda node, count: off_fabric if node == "node2" else None)
    one = network(plan, job, spec)
    culprit = f"node2 sent over mgmt0 instead of {fabric}"
    assert (one.verdict, one.culprit) == (Verdict.FAIL, culprit)


@pytest.mark.parametrize(
    ("kind", "gradients", "idle", "carrying"),
    [
        ("infiniband", 1 << 30, 0, 8),
        ("infiniband", 1 << 30, 2, 6),  # failover: the others carry their traffic
        ("efa", 1 << 30, 2, 6),
        ("efa", 1 << 20, 2, None),  # so few bytes need not take all NICs
        ("ethernet", 1 << 30, 2, None),
    ],
)
def test_each_nic_carries_its_share_of_the_gradients(
    kind: str, gradients: int, idle: int, carrying: int | None
) -> None:
    plan, spec = made.plan(4), rails(8)
    fabric = spec.fabric.model_copy(update={"kind": kind})
    spec = spec.model_copy(update={"fabric": fabric})
    job = replace(made.timings(plan), gradient_bytes=gradients)

    def each(node: str, count: int) -> Mapping[str, int]:
        dead = idle if node == "node2" else 0
        whole = 2 * gradients * plan.promise.steps
        counts = [0] * dead + [whole // (8 - dead)] * (8 - dead)
        return {f"mlx5_{i}": sent_bytes for i, sent_bytes in enumerate(counts)}

    found = made.measured(made.judged(sent(job, each), on=spec))
    nics = found.get("NICs that carried their share during the steps, of the node with fewest")
    assert (nics and nics.value) == carrying
    if nics and idle:
        assert nics.verdict is Verdict.FAIL
        assert nics.culprit
        assert nics.culprit.nodes == {"node2"}
        assert {*nics.culprit.parts.devices} == {("node2", "mlx5_0"), ("node2", "mlx5_1")}

"""Judges of sweeps: bounds of the plateau, bytes carried by NICs, missing values, and traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.criteria.fabric import curves, judge_busbw, judge_slow_links
from pytest_mnode.criteria.nics_used import judge_nics
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.algorithms import Algorithm, algorithms_of
from pytest_mnode.measuring.busbw import AlgorithmSweep, Busbw
from pytest_mnode.measuring.collectives import COLLECTIVES
from pytest_mnode.measuring.locating.diagnosis import Diagnosis
from pytest_mnode.measuring.locating.locate import Effort, SlowLinks
from pytest_mnode.measuring.sweep import Row, Sweep, Unmeasured
from pytest_mnode.measuring.traffic import SentByNode
from pytest_mnode.spec import load_spec
from pytest_mnode.spec.alpha_beta import Algorithm as Moves
from pytest_mnode.spec.alpha_beta import CollectiveModel, Nvls, Platform
from pytest_mnode.spec.bandwidth import Collective, bus_factor
from tests.measuring.sweeps import (
    DEFAULT,
    GLOO_RING,
    KIB,
    MIB,
    PINNED,
    SPEC,
    WORLD,
    judged,
    recorded,
    row,
)
from tests.spec.test_schema import CLUSTERS


def test_the_plateau_is_judged_with_its_formula() -> None:
    found = recorded(judged([row(64 * KIB, 0.5), row(MIB, 0.9)]))
    assert {name: m.verdict for name, m in found.items()} == {
        "all_reduce 64 KiB #wrong": Verdict.PASS,
        "all_reduce 64 KiB busbw": None,
        "all_reduce 1 MiB #wrong": Verdict.PASS,
        "all_reduce 1 MiB busbw": Verdict.PASS,
        "all_reduce 1 MiB busbw against the ceiling of the NICs": Verdict.PASS,
    }
    busbw = found["all_reduce 1 MiB busbw"]
    assert busbw.source.startswith("ring by the model: 0.02488 GB/s with fabric.line_rate 200 Mbit")
    assert busbw.source.endswith(
        "× at_least_fraction 0.8; busbw = size/time × 2(n-1)/n (nccl-tests, PERFORMANCE.md)"
    )
    each = "mean of 3 communicators, each the median of 3 × 3 calls"
    assert busbw.note.startswith(f"90.0% of the line, 90.4% of the model, {each}, p99 ")
    assert busbw.note.endswith("; gloo's all_reduce is a ring")
    assert busbw.interval == pytest.approx((0.0225, 0.0225))
    assert busbw.detection is not None
    assert busbw.detection.share == pytest.approx(1 - 0.8 / 0.9, abs=0.005)


@pytest.mark.parametrize(
    ("shares", "verdict", "beside"),
    [
        ((0.9, 0.9, 0.9), Verdict.PASS, Verdict.PASS),
        ((0.86, 0.9, 0.94), Verdict.INCONCLUSIVE, Verdict.PASS),
        ((0.75, 0.78, 0.8), Verdict.INCONCLUSIVE, Verdict.PASS),
        ((0.5, 0.51, 0.5), Verdict.FAIL, Verdict.PASS),
        ((1.0, 1.08, 1.16), Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE),  # not surely impossible
        ((0.9, 1.0, 1.1), Verdict.INCONCLUSIVE, Verdict.PASS),  # nor is the mean
        ((1.2, 1.2, 1.2), Verdict.PASS, Verdict.FAIL),
    ],
)
def test_communicators_that_differ_decide_nothing_near_a_bound(
    shares: tuple[float, ...], verdict: Verdict, beside: Verdict
) -> None:
    """By the share of the line on each communicator; the bound is 0.8, and 1.05 beside it."""
    found = judged([row(MIB, *shares)], culprit="node2 fab0")
    busbw = recorded(found)["all_reduce 1 MiB busbw"]
    assert busbw.verdict is verdict
    assert recorded(found)[f"{busbw.name} against the ceiling of the NICs"].verdict is beside
    assert found.sweeps[0].falls_short is (max(shares) <= 0.8)
    assert found.sweeps[0].decided is (verdict is not Verdict.INCONCLUSIVE)
    assert (busbw.culprit == "node2 fab0") is (verdict is not Verdict.PASS)
    assert (busbw.detection is None) is (verdict is Verdict.FAIL)


def test_the_note_tells_noise_of_communicators_from_that_of_repeats() -> None:
    [one] = judged([row(MIB, 0.86, 0.9, 0.94)]).sweeps[0].sweep.rows
    note = recorded(judged([one]))["all_reduce 1 MiB busbw"].note
    assert ", repeats vary by 0.00% and communicators by 4.45%; " in note


def test_below_the_bound_names_the_culprit() -> None:
    found = judged([row(64 * KIB, 0.9), row(MIB, 0.5)], culprit="node2 fab0")
    assert found.sweeps[0].falls_short
    busbw = recorded(found)["all_reduce 1 MiB busbw"]
    assert (busbw.verdict, busbw.culprit) == (Verdict.FAIL, "node2 fab0")
    assert not judged([row(64 * KIB, 0.1), row(MIB, 0.81)]).sweeps[0].falls_short


def test_wrong_values_fail_at_any_rate_and_any_size() -> None:
    found = recorded(judged([row(64 * KIB, 0.9, wrong=1), row(MIB, 0.9)]))
    assert found["all_reduce 64 KiB #wrong"].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("algorithm", "of_the_line", "verdict"),
    [
        (PINNED, 1.04, Verdict.PASS),
        (PINNED, 1.06, Verdict.FAIL),
        (PINNED, 1.875, Verdict.FAIL),
        (GLOO_RING, 1.06, Verdict.FAIL),
        (DEFAULT, 1.04, Verdict.PASS),
        (DEFAULT, 1.875, Verdict.FAIL),  # one rank a node: nothing to reduce inside
    ],
)
def test_a_ring_faster_than_its_nics_fails(
    algorithm: Algorithm, of_the_line: float, verdict: Verdict
) -> None:
    found = recorded(judged([row(MIB, of_the_line)], algorithm))
    beside = [m for name, m in found.items() if name.endswith("against the ceiling of the NICs")]
    assert [m.verdict for m in beside] == [verdict]
    promised = next(m for name, m in found.items() if "busbw" in name)
    assert promised.verdict is Verdict.PASS
    for measurement in beside:
        named = "fabric.line_rate" in str(measurement.culprit)
        assert named is (verdict is Verdict.FAIL)  # a passed measurement has no culprit


def test_ring_and_default_algorithm_are_both_recorded() -> None:
    found = {
        **recorded(judged([row(MIB, 0.9)], PINNED)),
        **recorded(judged([row(MIB, 1.5)], DEFAULT)),
    }
    assert set(found) == {
        "all_reduce 1 MiB #wrong, ring pinned",
        "all_reduce 1 MiB busbw, ring pinned",
        "all_reduce 1 MiB busbw, ring pinned against the ceiling of the NICs",
        "all_reduce 1 MiB #wrong",
        "all_reduce 1 MiB busbw",
        "all_reduce 1 MiB busbw against the ceiling of the NICs",
    }


@pytest.mark.parametrize(
    ("size", "share", "most", "step_us", "verdict"),
    [
        # six steps and 61 µs of bytes
        (KIB, 0.17, None, 50.0, None),
        (KIB, 0.17, "60 us", 50.0, Verdict.PASS),
        (KIB, 0.05, "60 us", 194.6, Verdict.FAIL),
        (KIB, 1.1, "60 us", 0.0, Verdict.PASS),
        (64 * KIB, 0.9, "60 us", None, Verdict.INCONCLUSIVE),  # 3.9 ms of bytes
    ],
)
def test_the_steps_of_the_smallest_size_are_compared_with_the_models(
    size: int, share: float, most: str | None, step_us: float | None, verdict: Verdict | None
) -> None:
    [one] = judged([row(size, share), row(MIB, 0.9)]).sweeps
    promise = one.promise.model_copy(
        update={"step_at_most_s": most and float(most.split()[0]) * 1e-6}
    )
    found = replace(judged([]), sweeps=(replace(one, promise=promise),))
    [step] = [m for name, m in recorded(found).items() if name.endswith(" step")]
    assert step.value == (step_us and pytest.approx(step_us, rel=0.01))
    assert step.verdict is verdict


@pytest.mark.parametrize(("size_bytes", "verdict"), [(64 * KIB, None), (MIB, Verdict.INCONCLUSIVE)])
def test_unmeasured_sizes_are_inconclusive_on_the_plateau(
    size_bytes: int, verdict: Verdict | None
) -> None:
    left_out = Unmeasured(size_bytes, "needs 32 GiB on every rank")
    found = judged([], unmeasured=[left_out])
    assert not found.sweeps[0].falls_short
    [measurement] = recorded(found).values()
    assert (measurement.value, measurement.verdict) == (None, verdict)
    assert measurement.note == "needs 32 GiB on every rank"


def test_bytes_off_an_rdma_fabric_are_shown_and_not_judged() -> None:
    """Not every RDMA port counts bytes."""
    fabric = SPEC.fabric.model_copy(update={"kind": "roce"})
    sent = SentByNode("node0", {"fab0": 2, "mgmt0": 98}, 90)
    rdma = replace(_busbw(sent), spec=SPEC.model_copy(update={"fabric": fabric}))
    past = judge_busbw(rdma)[-1]
    assert past.value == pytest.approx(98.0)
    assert past.verdict is None


IB = SPEC.fabric.model_copy(
    update={"kind": "infiniband", "nics_per_node": 8, "interfaces": ("mlx5_*",)}
)
EVEN = {f"mlx5_{i}": 1000 for i in range(8)}


@pytest.mark.parametrize(
    ("sent", "carrying", "devices"),
    [
        (EVEN, 8, []),
        (EVEN | {"mlx5_3": 700, "ib3": 700}, 8, []),
        (EVEN | {"mlx5_3": 0}, 7, ["mlx5_3"]),
        # Failover: the other ports carry all of it, and busbw may hold.
        ({f"mlx5_{i}": 2000 if i < 4 else 3 for i in range(8)}, 4, ["mlx5_4", "mlx5_7"]),
        ({f"mlx5_{i}": 1143 for i in range(7)}, 7, []),  # the device is gone
        ({"mlx5_0": 3}, None, []),
    ],
)
def test_every_port_promised_carries_its_share(
    sent: dict[str, int], carrying: int | None, devices: list[str]
) -> None:
    lower = {f"mlx5_{i}": (f"ib{i}",) for i in range(8)}
    nodes = [SentByNode(f"node{i}", EVEN if i else sent, 7000, lower) for i in range(2)]
    found = replace(_busbw(*nodes), spec=SPEC.model_copy(update={"fabric": IB}))
    nics = judge_busbw(found)[-2]
    assert nics.name.startswith("NICs that carried")
    assert nics.value == carrying
    if carrying is not None and carrying < 8:
        assert nics.verdict is Verdict.FAIL
        assert nics.culprit is not None
        assert nics.culprit.nodes == {"node0"}
        assert {("node0", name) for name in devices} <= {*nics.culprit.parts.devices}


def test_a_quarter_of_the_nics_of_efa_is_found_by_their_count() -> None:
    """On two nodes of p5 the rest carries 0.75 of the line, near the bound of 0.8."""
    spec = load_spec(CLUSTERS / "p5.yaml").model_copy(update={"name": "p5"})
    names = [f"rdmap{i}s0" for i in range(32)]
    dead = {name: 0 if i < 8 else 1333 for i, name in enumerate(names)}
    whole = dict.fromkeys(names, 1000)
    nodes = [SentByNode("node0", dead, 32000), SentByNode("node1", whole, 32000)]
    [nics] = judge_nics(nodes, spec, 8)
    assert (nics.value, nics.verdict) == (24, Verdict.FAIL)
    assert nics.culprit is not None
    assert {*nics.culprit.parts.devices} == {("node0", name) for name in names[:8]}


def _busbw(*traffic: SentByNode) -> Busbw:
    sweeps = judged([row(MIB, 0.9)], PINNED).sweeps + judged([row(MIB, 1.5)], DEFAULT).sweeps
    return Busbw(SPEC, WORLD, "nccl", sweeps, traffic)


def test_each_algorithm_has_its_curve() -> None:
    assert [(c.algorithm, c.backend, len(c.points)) for c in curves(_busbw())] == [
        ("ring", "nccl", 1),
        ("default", "nccl", 1),
    ]


def test_a_curve_is_expected_to_reach_the_bound_of_its_largest_size() -> None:
    found = judged([row(64 * KIB, 0.9), row(MIB, 0.9)])
    promise = found.sweeps[0].promise.model_copy(update={"plateau_from_bytes": 64 * KIB})
    one = replace(found.sweeps[0], promise=promise)
    [curve] = curves(replace(found, sweeps=(one,)))
    assert curve.judged_bytes == (64 * KIB, MIB)
    assert curve.expected == one.bounds[MIB] != one.bounds[64 * KIB]


FOUND = SlowLinks(
    Diagnosis((), (), (), (1.0,)), None, "a → b", "", Effort(), paths=12, paths_measured=12, nodes=4
)


@pytest.mark.parametrize(
    ("changes", "verdicts", "share"),
    [
        ({}, "pass pass None pass", 0.5),
        ({"nodes": 16}, "pass pass None pass", 1 - 2 / 16),
        ({"nodes": 3}, "pass pass pass", None),
        ({"slowest": ""}, "inconclusive pass inconclusive", None),  # no pair could be tried
        ({"cut_off": "budget"}, "inconclusive pass None pass", 0.5),
        ({"unmeasured": "4 of n1"}, "pass inconclusive None pass", 0.5),
        ({"unmeasured": "4 of n1", "every_path": False}, "pass None None pass", 0.5),
        ({"paths_measured": 8}, "pass fail None pass", 0.5),
    ],
)
def test_a_search_of_slow_links_is_judged_as_far_as_it_went(
    changes: dict[str, Any], verdicts: str, share: float | None
) -> None:
    found = judge_slow_links(replace(FOUND, **changes))
    assert " ".join(str(one.verdict) for one in found) == verdicts
    assert found[0].culprit == changes.get("cut_off")
    shares = [one.detection.share for one in found if one.detection and "only" in one.name]
    assert shares == ([] if share is None else [pytest.approx(share)])


@pytest.mark.parametrize(
    ("traffic", "value", "verdict"),
    [
        ([{"fab0": 99, "lo": 1}, {"fab0": 98, "mgmt0": 2}], 2.0, Verdict.PASS),
        ([{"fab0": 99, "lo": 1}, {"fab0": 2, "mgmt0": 98}], 98.0, Verdict.FAIL),
        ([{"fab0": 99, "lo": 1}, {"fab0": 75, "mgmt0": 25}], 25.0, Verdict.FAIL),
        ([{"fab0": 99}, {"fab0": 2}], None, Verdict.INCONCLUSIVE),
        ([{"fab0": 100}, None], 0.0, Verdict.PASS),  # not the root of a broadcast
        ([None, None], None, Verdict.INCONCLUSIVE),
    ],
)
def test_ranks_that_send_must_use_the_fabric(
    traffic: list[dict[str, int] | None], value: float | None, verdict: Verdict
) -> None:
    nodes = [
        SentByNode(f"node{i}", sent or {"mgmt0": 3}, 90 if sent else 0)
        for i, sent in enumerate(traffic)
    ]
    past = judge_busbw(_busbw(*nodes))[-1]
    assert past.name.startswith("off-fabric traffic")
    assert (past.value, past.verdict) == (value and pytest.approx(value), verdict)
    if verdict is Verdict.FAIL:
        assert past.culprit is not None
        assert past.culprit.nodes == {"node1"}


@pytest.mark.parametrize(
    ("used", "busbw", "verdict"),
    [
        (True, 375.0, Verdict.FAIL),  # two of eight NICs are dead
        (None, 375.0, Verdict.INCONCLUSIVE),
        (False, 375.0, Verdict.PASS),
        (None, 467.0, Verdict.PASS),
        (None, 300.0, Verdict.FAIL),
    ],
)
def test_nvls_that_is_not_known_leaves_a_ring_and_a_doubt(
    used: bool | None, busbw: float, verdict: Verdict
) -> None:
    hopper = load_spec(CLUSTERS / "h100-ib.yaml")
    model = CollectiveModel(Platform.of(hopper), "all_reduce", 2, 8, "nccl", Nvls(used, "said so"))
    size = 8 << 30
    seconds = bus_factor("all_reduce", 16) * size / busbw / 1e9
    times = ((seconds,) * 3,) * 3
    swept = Row("all_reduce", 16, size, size, size // 4, 3, times, 0)
    assert hopper.criteria.fabric
    promise = hopper.criteria.fabric.all_reduce_busbw
    assert promise
    sweep = Sweep(COLLECTIVES["all_reduce"], 16, (swept,), ())
    one = AlgorithmSweep(DEFAULT, sweep, promise, model)
    found = replace(judged([]), spec=hopper, sweeps=(one,))
    [rate] = [m for m in judge_busbw(found) if m.name == "all_reduce 8 GiB busbw"]
    assert rate.verdict is verdict
    explained = used is False or verdict is Verdict.INCONCLUSIVE
    assert ("said so" in f"{rate.note} {rate.source}") is explained


@pytest.mark.parametrize(
    ("kind", "times", "verdict"),
    [
        ("infiniband", 1.0, Verdict.PASS),
        ("infiniband", 3.0, Verdict.PASS),
        ("infiniband", 6.0, Verdict.FAIL),
        ("roce", 6.0, Verdict.FAIL),
        ("cxi", 6.0, None),  # of which no steps are published
    ],
)
def test_steps_far_above_the_models_are_a_finding(
    kind: str, times: float, verdict: Verdict | None
) -> None:
    platform = Platform(kind, 400 * 10**9, 8, 8, "NVIDIA H100 80GB HBM3")
    model = CollectiveModel(platform, "all_reduce", 16, 8, "nccl")
    alpha_s, size = model.alpha_s(Moves.RING), MIB
    seconds = model.time_s(Moves.RING, size) + (times - 1) * alpha_s
    small = Row("all_reduce", 128, size, size, size // 4, 3, ((seconds,) * 3,) * 3, 0)
    sweep = Sweep(COLLECTIVES["all_reduce"], 128, (small,), ())
    [ring, _] = algorithms_of(Collective.ALL_REDUCE, "nccl", 8)
    swept = AlgorithmSweep(ring, sweep, judged([]).sweeps[0].promise, model)
    found = replace(judged([]), sweeps=(swept,))
    [step] = [m for m in judge_busbw(found) if m.name.endswith(" step, ring pinned")]
    assert step.verdict is verdict
    assert f"{times:g} × the model's" in step.note

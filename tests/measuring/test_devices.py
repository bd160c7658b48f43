"""Comparing ranks: what is recorded of their rates, and products that come out wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from pytest_mnode.criteria.devices import judge_products, judge_rates
from pytest_mnode.machine.nvml import Load, LoadSampler
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.measuring import devices
from pytest_mnode.measuring.rank_rates import Comparison, RankRate
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import CopyPromise, MatmulPromise

CPU = torch.device("cpu")


def recorded(*rates: float | None, floor: float | None = None) -> dict[str, Measurement]:
    rows = [
        RankRate(f"rank {i} on node{i}", r, "cold" if i == 1 else "") for i, r in enumerate(rates)
    ]
    promise = MatmulPromise(at_least_fraction=0.8, dtypes=("float32",))
    found = Comparison("matmul float32", "GFLOP/s", promise, floor, tuple(rows), "median of 3")
    return {m.name: m for m in judge_rates(found)}


def test_the_slow_rank_is_named_with_its_figure_the_median_and_the_cause() -> None:
    found = recorded(100, 40, 98, 101)["matmul float32, slowest rank"]
    assert found.verdict is Verdict.FAIL
    assert found.value == 40
    assert found.culprit == "rank 1 on node1 (40 GFLOP/s, median 100): cold"
    assert found.source == "at_least_fraction 0.8 × 100, the median of 4 ranks"


def test_healthy_ranks_pass_and_nobody_is_named() -> None:
    found = recorded(100, 97, 98, 101)
    assert found["matmul float32, slowest rank"].verdict is Verdict.PASS
    assert found["matmul float32, slowest rank"].culprit is None
    assert found["matmul float32, median of ranks"].value == 100


def test_where_most_are_slow_they_are_named_beside_the_fastest() -> None:
    found = recorded(30, 31, 100)["matmul float32, slowest rank"]
    assert found.verdict is Verdict.FAIL
    assert found.culprit == (
        "rank 0 on node0 (30 GFLOP/s, fastest 100); rank 1 on node1 (31 GFLOP/s, fastest 100): cold"
    )


@pytest.mark.parametrize(
    ("rates", "note"),
    [((100, None, 100), "rank 1 on node1: cold"), ((100,), "one rank has no other to be compared")],
)
def test_what_cannot_be_compared_is_inconclusive(
    rates: tuple[float | None, ...], note: str
) -> None:
    found = recorded(*rates)["matmul float32, slowest rank"]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert note in found.note


def test_a_floor_finds_them_all_slow() -> None:
    found = recorded(50, 51, 49, floor=60)
    assert found["matmul float32, slowest rank"].verdict is Verdict.PASS
    floor = found["matmul float32, slowest rank against its floor"]
    assert floor.verdict is Verdict.FAIL
    assert floor.culprit is not None
    assert floor.culprit.count("rank") == 3
    unknown = recorded(70, None, floor=60)["matmul float32, slowest rank against its floor"]
    assert unknown.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_right_products_are_right_in_every_dtype(dtype: str) -> None:
    assert devices.wrong_rows(192, dtype, CPU, seed=3) == 0


@pytest.fixture
def one_wrong_value(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """What is added to one value of every product."""
    right, wrong = torch.mm, [1.0]

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = right(a, b)
        product[7, 11] += wrong[0]
        return product

    monkeypatch.setattr(torch, "mm", mm)
    return iter([wrong])


@pytest.mark.parametrize("wrong", [1.0, -1.0, float("nan"), float("inf")])
def test_one_wrong_value_is_found(one_wrong_value: Iterator[list[float]], wrong: float) -> None:
    next(one_wrong_value)[0] = wrong
    assert devices.wrong_rows(192, "float32", CPU, seed=3) == 1


class Nvml:
    """A stand-in for NVML: a device that is held back only while it works."""

    def __init__(self, reasons: int, *, known: bool = True) -> None:
        self.reasons, self.known, self.works = reasons, known, False

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if not self.known:
            raise RuntimeError(uuid)
        return uuid

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons if self.works else 0x1

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return 1200 if self.works else 345


def loaded(nvml: Nvml) -> Load:
    """What is sampled of two repeats of a rank; between and after them the device idles."""

    def call() -> None:
        nvml.works = True
        time.sleep(0.1)
        nvml.works = False

    sampler = LoadSampler("5a", nvml)
    for _ in range(2):
        devices._repeat(devices.Work(1.0, call, CPU), 1, False, sampler)
        time.sleep(0.05)
    return sampler.load


@pytest.mark.parametrize(
    ("reasons", "share"),
    [
        (0x0, 0.0),
        (0x4, 0.0),  # at its power limit
        (0x1 | 0x2, 0.0),
        (0x8, 1.0),
        (0x20, 1.0),
        (0x4 | 0x40, 1.0),
        (0x80, 1.0),
        (0x10000, 1.0),  # not known yet
    ],
)
def test_a_gpu_is_sampled_while_it_works(reasons: int, share: float) -> None:
    load = loaded(Nvml(reasons))
    assert load.samples >= 2
    assert load.share_slowed == pytest.approx(share, abs=0.4)
    assert (load.sm_clock_mhz or 0) == 1200
    assert bool(load.slowed) is bool(share)


@pytest.mark.parametrize(
    ("load", "verdicts", "told"),
    [
        (Load(50, (), 1700, 0.0), ("pass", "pass"), None),
        (Load(50, (("HwThermalSlowdown", 2),), 1700, 0.04), ("pass", "pass"), None),
        (
            Load(50, (("HwThermalSlowdown", 20),), 1300, 0.4),
            ("fail", "fail"),
            "rank 1 on node1 (HwThermalSlowdown in 20 of 50 samples, at 1300 MHz)",
        ),
        (Load(0, (), None, None), ("inconclusive", "inconclusive"), None),
    ],
)
def test_a_gpu_that_is_held_back_under_load_is_named(
    load: Load, verdicts: tuple[str, str], told: str | None
) -> None:
    fine = Load(50, (), 1700, 0.0)
    rows = [RankRate(f"rank {i} on node{i}", 100, "", load=fine) for i in range(3)]
    rows[1] = RankRate("rank 1 on node1", 100, "", load=load)
    promise = MatmulPromise(at_least_fraction=0.8, at_least_sm_clock_mhz=1400)
    *_, slowed, clock = judge_rates(Comparison("matmul", "GFLOP/s", promise, None, tuple(rows), ""))
    assert (str(slowed.verdict), str(clock.verdict)) == verdicts
    assert slowed.culprit == told
    assert slowed.name == "matmul, samples under load with a clock held back"


@pytest.mark.parametrize(
    ("now", "full", "verdict", "culprit"),
    [
        (5, 5, "pass", None),
        (4, 5, "fail", "rank 1 on node1 (PCIe 4 of 5)"),
        (None, 5, "inconclusive", None),
        (5, None, "inconclusive", None),
    ],
)
def test_the_pcie_speed_of_a_gpu_is_judged_while_it_copies(
    now: int | None, full: int | None, verdict: str, culprit: str | None
) -> None:
    loads = [Load(9, (), 1700, 0.0, 5, 5), Load(9, (), 1700, 0.0, now, full)]
    rows = tuple(RankRate(f"rank {i} on node{i}", 50, "", load=x) for i, x in enumerate(loads))
    promise = CopyPromise.model_validate({"at_least_fraction": 0.8})
    *_, pcie = judge_rates(Comparison("host to device", "GB/s", promise, None, rows, ""))
    assert (str(pcie.verdict), pcie.culprit) == (verdict, culprit)


@pytest.mark.parametrize(
    ("alone", "at_once", "verdicts"),
    [
        ((55, 54), (55, 54), ("pass", "pass")),
        ((55, 54), (28, 27), ("fail", "pass")),  # two GPUs share a way to memory
        ((55, 26), (55, 54), ("pass", "fail")),
        ((55, None), (55, 54), ("pass", "inconclusive")),
    ],
)
def test_copies_at_once_and_alone_have_bounds_of_their_own(
    alone: tuple[float | None, ...], at_once: tuple[float, ...], verdicts: tuple[str, str]
) -> None:
    keys = {"at_least_fraction": 0.1, "at_least_gbytes_s": 40, "alone_at_least_gbytes_s": 50}
    rows = tuple(
        RankRate(f"rank {i} on n", at_once[i], "", None, rate) for i, rate in enumerate(alone)
    )
    how = "median of 3, all ranks at once"
    promise = CopyPromise.model_validate(keys)
    found = {m.name: m for m in judge_rates(Comparison("copy", "GB/s", promise, 40, rows, how))}
    floor = found["copy, slowest rank against its floor"]
    by_itself = found["copy alone, slowest rank against its floor"]
    assert (str(floor.verdict), str(by_itself.verdict)) == verdicts
    assert floor.source == f"what each rank is promised to reach, {how}"
    assert by_itself.source == "what each rank is promised to reach, one rank of a node at a time"


def test_a_rank_works_alone_in_its_own_turn_only(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(devices, "barrier", lambda *_: log.append("all"))
    monkeypatch.setattr(devices, "_calls", lambda *_, **__: 1)
    nodes = ("n0", "n1")
    world = World(rank=1, size=4, local_rank=1, local_size=2, node="n0", nodes=nodes)
    work = devices.Work(1.0, lambda: log.append("work"), CPU)
    promise = CopyPromise.model_validate({"at_least_fraction": 0.8, "repeats": 2})
    assert devices._alone(work, promise, world, CPU) > 0
    assert log == ["all", "all", "work", "work", "all"]


@pytest.mark.parametrize(
    ("rows", "value", "verdict", "culprit"),
    [
        ([0, 0], 0, Verdict.PASS, None),
        ([0, -1], None, Verdict.INCONCLUSIVE, None),
        ([3, 0], 3, Verdict.FAIL, "rank 0 on node0 (3)"),
        ([3, -1], 3, Verdict.FAIL, "rank 0 on node0 (3)"),  # wrong, whatever another rank could not
    ],
)
def test_wrong_products_fail_though_another_rank_could_not_compute(
    monkeypatch: pytest.MonkeyPatch,
    rows: list[int],
    value: int | None,
    verdict: Verdict,
    culprit: str | None,
) -> None:
    monkeypatch.setattr(devices, "by_rank", lambda *_: [[float(count)] for count in rows])
    world = World(0, 2, 0, 1, "node0", ("node0", "node1"))
    wrong = devices.wrong_products(64, "float32", world, CPU)
    [found] = judge_products("float32", 64, wrong)
    assert (found.value, found.verdict, found.culprit) == (value, verdict, culprit)

"""Ranks at work: wrong products, GPUs sampled under load, and turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from pytest_mnode.checks.devices.matmul import judge_products
from pytest_mnode.machine.load_readings import Sampler, load_of, nvml_reading
from pytest_mnode.machine.nvml import Load
from pytest_mnode.machine.waiting import Spent
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring import devices, results_of_ranks
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import CopyPromise

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_correct_products_pass_in_every_dtype(dtype: str) -> None:
    assert results_of_ranks.wrong_rows(192, dtype, CPU, seed=3) == 0


@pytest.fixture
def one_wrong_value(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Adds this to one value of every product."""
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
    assert results_of_ranks.wrong_rows(192, "float32", CPU, seed=3) == 1


class Nvml:
    """A stand-in for NVML: a device that is throttled only while it works."""

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
    """Samples of two repeats of a rank; the device idles between and after them."""

    def call() -> None:
        nvml.works = True
        time.sleep(0.1)
        nvml.works = False

    sampler, running = Sampler(lambda: nvml_reading(nvml, "handle"), 0.02), threading.active_count()
    for _ in range(2):
        devices.repeat_s(devices.Work(1.0, call, CPU), 1, False, sampler)
        time.sleep(0.05)
        assert threading.active_count() == running
    return load_of(sampler.samples)


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


def test_a_rank_works_alone_only_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(devices, "barrier", lambda *_: log.append("all"))
    monkeypatch.setattr(devices, "calls_to_fill", lambda *_, **__: 1)
    nodes = ("n0", "n1")
    world = World(rank=1, size=4, local_rank=1, local_size=2, node="n0", nodes=nodes)
    work = devices.Work(1.0, lambda: log.append("work"), CPU)
    promise = CopyPromise.model_validate({"at_least_fraction": 0.8, "repeats": 2})
    assert devices._alone(work, promise, world, CPU) > 0
    assert log == ["all", "all", "work", "work", "all"]


@pytest.mark.parametrize(
    ("fails", "other_fails", "why"),
    [
        (False, False, ""),
        (True, False, "out of memory"),
        (False, True, "not measured, because another rank could not be measured"),
        (True, True, "out of memory"),
    ],
)
def test_no_rank_is_measured_unless_all_can_be(
    monkeypatch: pytest.MonkeyPatch, fails: bool, other_fails: bool, why: str
) -> None:
    def call() -> None:
        if fails:
            raise RuntimeError("out of memory")

    def by_rank(values: list[float], _: object) -> list[list[float]]:
        return [values, [0.0 if other_fails else 1.0]]

    monkeypatch.setattr(devices, "by_rank", by_rank)
    monkeypatch.setattr(devices, "gathered", lambda row: (row,))
    monkeypatch.setattr(devices, "share_a_machine", lambda _: False)
    spent = Spent(wall_s=1.0, cpu_s=1.0, delayed_s=0.0, throttled_s=0.0, others_s=0.0)
    monkeypatch.setattr(devices, "_rounds", lambda *_, **__: ([7.0], spent))
    promise = CopyPromise.model_validate({"at_least_fraction": 0.8})
    task = devices.Task("copy", "GB/s", promise, None, lambda: devices.Work(1.0, call, CPU))
    world = World(0, 2, 0, 1, "n0", ("n0", "n1"))
    [row] = devices._compare(task, world, CPU).rows
    assert (row.rate, row.why) == (None if why else 7.0, why)


@pytest.mark.parametrize(
    ("rows", "value", "verdict", "culprit"),
    [
        ([0, 0], 0, Verdict.PASS, None),
        ([0, -1], None, Verdict.INCONCLUSIVE, None),
        ([3, 0], 3, Verdict.FAIL, "rank 0 on node0 (3)"),
        ([3, -1], 3, Verdict.FAIL, "rank 0 on node0 (3)"),  # wrong in any case
    ],
)
def test_wrong_products_fail_even_if_another_rank_could_not_compute(
    monkeypatch: pytest.MonkeyPatch,
    rows: list[int],
    value: int | None,
    verdict: Verdict,
    culprit: str | None,
) -> None:
    monkeypatch.setattr(results_of_ranks, "by_rank", lambda *_: [[float(count)] for count in rows])
    world = World(0, 2, 0, 1, "node0", ("node0", "node1"))
    wrong = results_of_ranks.wrong_products(64, "float32", world, CPU)
    [found] = judge_products("float32", 64, wrong)
    assert (found.value, found.verdict, found.culprit) == (value, verdict, culprit)

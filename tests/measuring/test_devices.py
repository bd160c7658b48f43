"""Ranks at work: wrong products, GPUs sampled under load, and turns."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from pytest_mnode.criteria.devices import judge_products
from pytest_mnode.machine.nvml import Load, LoadSampler
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


def test_a_rank_works_alone_only_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
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

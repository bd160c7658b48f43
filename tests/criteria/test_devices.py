"""Comparing ranks: the bound of the others, floors, clocks and PCIe links of GPUs under load."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.checks.devices.matmul import judge_products
from pytest_mnode.criteria.devices import comparisons, judge_rates
from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.nvml import Load
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.measuring.rank_rates import Comparison, RankRate
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.devices import CopyPromise, MatmulPromise

SLOWEST = "matmul, slowest rank"
FLOOR = "matmul, slowest rank against its floor"


def judged(
    *rows: RankRate, fraction: float = 0.8, floor: float | None = None, **more: Any
) -> dict[str, Measurement]:
    """Measurements of a matrix product on these ranks, by name."""
    promise = MatmulPromise(at_least_fraction=fraction, dtypes=("float32",), **more)
    found = judge_rates(Comparison("matmul", "GFLOP/s", promise, floor, rows, "median of 3"))
    return {m.name: m for m in found}


def recorded(*rates: float | None, **bounds: float) -> dict[str, Measurement]:
    """The same of ranks with these rates, of which rank 1 is cold."""
    cold = ["cold" if i == 1 else "" for i in range(len(rates))]
    rows = [RankRate(f"rank {i} on node{i}", rate, cold[i]) for i, rate in enumerate(rates)]
    return judged(*rows, **bounds)


FAST = (*[100.0] * 30, 150.0, 151.0)


@pytest.mark.parametrize(
    ("rates", "bounds", "verdict", "words"),
    [
        ((100, 97, 98, 101), {}, Verdict.PASS, ""),
        ((100, 40, 98, 101), {}, Verdict.FAIL, "rank 1 on node1 (40 GFLOP/s, median 100): cold"),
        (
            (30, 31, 100),  # most ranks are slow
            {},
            Verdict.FAIL,
            "rank 0 on node0 (30 GFLOP/s, fastest 100); "
            "rank 1 on node1 (31 GFLOP/s, fastest 100): cold",
        ),
        ((100, 94), {"fraction": 0.9}, Verdict.PASS, ""),
        (
            (100, 94),
            {"fraction": 0.95},
            Verdict.INCONCLUSIVE,
            "2 ranks cannot tell a slow rank from the spread of healthy ones; compare more ranks, "
            "or promise less and an absolute floor: rank 1 on node1 (94 GFLOP/s, median 100)",
        ),
        (
            (100, 80),
            {"fraction": 0.95},
            Verdict.FAIL,
            "rank 1 on node1 (80 GFLOP/s, median 100): cold",
        ),
        # One fast GPU turns no other red; of few, an absolute floor decides.
        ((*[100.0] * 127, 106.0), {"fraction": 0.95}, Verdict.PASS, ""),
        (
            FAST,
            {"fraction": 0.95},
            Verdict.INCONCLUSIVE,
            "an absolute floor decides: rank 31 on node31 (151 GFLOP/s, median 100); "
            "rank 30 on node30 (150 GFLOP/s, median 100)",
        ),
        (FAST, {"fraction": 0.95, "floor": 95}, Verdict.PASS, ""),
        (FAST, {"fraction": 0.95, "floor": 100}, Verdict.PASS, ""),
        (FAST, {"fraction": 0.95, "floor": 110}, Verdict.INCONCLUSIVE, "most ranks are slow, or"),
        # They cannot be compared.
        ((100, None, 100), {}, Verdict.INCONCLUSIVE, "rank 1 on node1: cold"),
        ((100,), {}, Verdict.INCONCLUSIVE, "a single rank has no other to be"),
    ],
)
def test_the_slowest_rank_is_compared_with_the_others(
    rates: tuple[float | None, ...], bounds: dict[str, float], verdict: Verdict, words: str
) -> None:
    found = recorded(*rates, **bounds)[SLOWEST]
    assert found.verdict is verdict
    if verdict is Verdict.FAIL:
        assert found.culprit == words
    else:
        assert found.culprit is None
        assert words in found.note


@pytest.mark.parametrize("rates", [(0.0,) * 8, (float("nan"),) + (500.0,) * 7])
def test_rates_that_are_no_numbers_above_0_are_inconclusive(rates: tuple[float, ...]) -> None:
    one = next(iter(recorded(*rates).values()))
    assert (str(one.verdict), one.note) == ("inconclusive", "no rates above 0 of all ranks")


def test_the_slowest_rank_has_its_value_and_the_source_of_its_bound() -> None:
    found = recorded(100, 40, 98, 101)
    assert found[SLOWEST].value == 40
    assert found[SLOWEST].source == "at_least_fraction 0.8 × 100, the median of 4 ranks"
    assert found["matmul, median of ranks"].value == 100


def noisy(*repeats: tuple[float, ...], shared: bool = False) -> Measurement:
    """Ranks that all reach 100, the median of these repeats."""
    rows = tuple(RankRate(f"rank {i}", 100, "", repeats=one) for i, one in enumerate(repeats))
    promise = MatmulPromise(at_least_fraction=0.8, dtypes=("float32",))
    return judge_rates(Comparison("matmul", "GFLOP/s", promise, None, rows, "how", shared))[0]


def test_the_noisiest_rank_sets_the_detection_limit() -> None:
    steady, restless = (99, 100, 101, 100, 100), (98, 100, 101, 100, 99)
    found = noisy(steady, restless)
    assert found.verdict is Verdict.PASS
    assert found.detection is not None
    assert found.detection.blur == pytest.approx(0.145)  # 14.5 × MAD 1 / 100
    assert found.detection.share == pytest.approx(1 - 80 / 114.5)
    assert noisy(steady, ()).detection is None, "the noise of one rank is unknown"


def test_noise_larger_than_the_margin_is_inconclusive() -> None:
    """Unless other programs cause the noise, because nodes share a machine."""
    wild = (90, 98, 100, 102, 110)
    found = noisy(wild, wild)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.detection is not None
    assert found.detection.doubt.startswith("too noisy: medians of 5 repeats differ by up to 29 %")
    assert noisy(wild, wild, shared=True).verdict is Verdict.PASS


def test_beside_a_slow_rank_one_that_may_be_slow_is_a_suspect() -> None:
    names = [Culprit(f"rank {i} on node{i}", f"node{i}") for i in range(4)]
    rows = [RankRate(n, r, "") for n, r in zip(names, (100, 92, 40, 100), strict=True)]
    found = judged(*rows, fraction=0.95)[SLOWEST]
    assert (found.value, found.verdict) == (40, Verdict.FAIL)
    culprit = found.culprit
    assert culprit is not None
    assert culprit == "rank 2 on node2 (40 GFLOP/s, median 100)"
    assert culprit.nodes == {"node2"}
    assert culprit.either == {frozenset(["node1"])}


def test_a_rate_that_nobody_asked_for_suspects_no_rank() -> None:
    rows = tuple(RankRate(f"rank {i}", 50, "", rate) for i, rate in enumerate((55, None)))
    promise = CopyPromise.model_validate({"at_least_fraction": 0.8})
    found = judge_rates(Comparison("copy", "GB/s", promise, None, rows, "how"))
    [alone] = [one for one in found if "alone" in one.name]
    assert (alone.value, alone.verdict, alone.culprit) == (None, None, None)


@pytest.mark.parametrize("floor", [None, 40.0])
def test_a_node_alone_is_judged_by_its_floor_or_not_at_all(floor: float | None) -> None:
    promise = CopyPromise.model_validate({"at_least_fraction": 0.8})
    row = RankRate("node0", 50, "")
    [found] = judge_rates(Comparison("copy", "GB/s", promise, floor, (row,), "how", of="node"))
    assert str(found.verdict) == ("inconclusive" if floor is None else "pass")
    assert ("model_at_least_fraction judges it" in found.note) is (floor is None)


def test_comparisons_of_a_spec_share_its_false_alarms() -> None:
    spec = profile_spec("rack")
    devices = spec.criteria.devices
    assert devices is not None
    assert comparisons(spec) == devices.comparisons > 1
    none = spec.criteria.model_copy(update={"devices": None})
    assert comparisons(spec.model_copy(update={"criteria": none})) == 1


def test_wrong_rows_of_all_ranks_add_up() -> None:
    [found] = judge_products("float32", 8, {"rank 0": 3, "rank 1": 0, "rank 2": 4})
    assert (found.value, found.culprit) == (7, "rank 0 (3), rank 2 (4)")


def test_an_absolute_floor_fails_equally_slow_ranks() -> None:
    found = recorded(50, 51, 49, floor=60)
    assert found[SLOWEST].verdict is Verdict.PASS
    assert found[FLOOR].verdict is Verdict.FAIL
    assert str(found[FLOOR].culprit).count("rank") == 3
    assert recorded(70, None, floor=60)[FLOOR].verdict is Verdict.INCONCLUSIVE
    found = recorded(50, None, floor=60)
    assert (found[FLOOR].value, found[FLOOR].verdict) == (50, Verdict.FAIL)
    assert str(recorded(*range(59, 39, -1), floor=60)[FLOOR].culprit).startswith("rank 19 ")


@pytest.mark.parametrize(
    ("load", "verdicts", "culprit"),
    [
        (Load(50, (), 1700, 0.0), ("pass", "pass"), None),
        (Load(50, (("HwThermalSlowdown", 2),), 1700, 0.04), ("pass", "pass"), None),
        (
            Load(50, (("HwThermalSlowdown", 20),), 1300, 0.4),
            ("fail", "fail"),
            "rank 1 on node1 (HwThermalSlowdown in 20 of 50 samples, at 1300 MHz)",
        ),
        (Load(0, (), None, None), ("inconclusive", "inconclusive"), "rank 1 on node1"),
    ],
)
def test_a_gpu_throttled_under_load_is_named(
    load: Load, verdicts: tuple[str, str], culprit: str | None
) -> None:
    fine = Load(50, (("HwThermalSlowdown", 2),), 1400, 0.05)  # at both bounds
    rows = [RankRate(f"rank {i} on node{i}", 100, "", load=fine) for i in range(3)]
    rows[1] = RankRate("rank 1 on node1", 100, "", load=load)
    *_, slowed, clock = judged(*rows, at_least_sm_clock_mhz=1400).values()
    assert (str(slowed.verdict), str(clock.verdict)) == verdicts
    assert slowed.culprit == culprit
    assert slowed.name == "matmul, samples under load with a throttled clock"


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
        ((55, 54), (28, 27), ("fail", "pass")),  # two GPUs share a path to memory
        ((55, 26), (55, 54), ("pass", "fail")),
        ((55, None), (55, 54), ("pass", "inconclusive")),
    ],
)
def test_simultaneous_and_single_copies_have_separate_bounds(
    alone: tuple[float | None, ...], at_once: tuple[float, ...], verdicts: tuple[str, str]
) -> None:
    keys = {"at_least_fraction": 0.1, "at_least_gbytes_s": 40, "alone_at_least_gbytes_s": 50}
    rows = tuple(RankRate(f"rank {i} on n", at_once[i], "", rate) for i, rate in enumerate(alone))
    how = "median of 3, all ranks at once"
    promise = CopyPromise.model_validate(keys)
    found = {m.name: m for m in judge_rates(Comparison("copy", "GB/s", promise, 40, rows, how))}
    floor = found["copy, slowest rank against its floor"]
    by_itself = found["copy alone, slowest rank against its floor"]
    assert (str(floor.verdict), str(by_itself.verdict)) == verdicts
    assert floor.source == f"promised rate of each rank, {how}"
    assert by_itself.source == "promised rate of each rank, one rank of a node at a time"

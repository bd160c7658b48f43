"""Intervals and detection limits hold at their stated level, on simulated clusters."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from itertools import count

import pytest

from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import (
    _FACTORS,
    _OF_THREE_ROUNDS,
    Detection,
    Estimate,
    estimate,
    noise_share,
    scale,
    smallest_loss,
    smallest_share_wrong,
    wants_more,
)
from pytest_mnode.measurement import Bound, Measurement, Verdict, at_least, at_most

RUNS = 3000
LEAST = 80.0
PLANNED, REPEATS = 3, 3


class Cluster:
    """Communicators that differ by `between` percent, and their repeats by `within` percent."""

    def __init__(self, between: float, within: float) -> None:
        self.random = random.Random(f"{between} {within}")
        self.between, self.within = between, within

    def communicator(self, value: float) -> list[float]:
        def noise(percent: float) -> float:
            return math.exp(percent / 100 * self.random.gauss(0, 1))

        of_it = value * noise(self.between)
        return [of_it * noise(self.within) for _ in range(REPEATS)]

    def measured(self, value: float, bound: Bound) -> Estimate:
        """As a sweep measures: more communicators until it is decided, or there are enough."""
        communicators: list[list[float]] = []
        for number in count(1):
            communicators.append(self.communicator(value))
            found = estimate(communicators)
            decided = found is not None and bound.decides(*found.interval) is not None
            if not wants_more(number, PLANNED, decided=decided):
                break
        assert found is not None
        return found

    def verdict(self, value: float, bound: Bound) -> Verdict:
        found = self.measured(value, bound)
        one = Measurement("busbw", found.value, "GB/s", bound, interval=found.interval)
        assert one.verdict is not None
        return one.verdict


CLUSTERS = [(4.0, 0.3), (0.3, 0.3), (1.0, 4.0)]


@pytest.mark.parametrize(("between", "within"), CLUSTERS)
@pytest.mark.parametrize("bound", [at_least(LEAST), at_most(LEAST)])
def test_a_value_at_its_bound_fails_or_passes_in_1_of_100_runs(
    between: float, within: float, bound: Bound
) -> None:
    """The worst case of a cluster that keeps its promise, and of one that does not."""
    cluster, runs = Cluster(between, within), 1000
    verdicts = [cluster.verdict(LEAST, bound) for _ in range(runs)]
    for wrong in (Verdict.FAIL, Verdict.PASS):
        assert verdicts.count(wrong) / runs <= 0.016, wrong


@pytest.mark.parametrize(
    ("between", "within", "value", "verdict", "share"),
    [
        (4.0, 0.3, 92.0, Verdict.PASS, 0.99),
        (4.0, 0.3, 70.0, Verdict.FAIL, 0.99),
        (0.3, 0.3, 82.0, Verdict.PASS, 0.99),
        (0.3, 0.3, 78.0, Verdict.FAIL, 0.99),
        (4.0, 0.3, 82.0, Verdict.INCONCLUSIVE, 0.5),
        (4.0, 0.3, 78.0, Verdict.INCONCLUSIVE, 0.5),
    ],
)
def test_a_clear_value_is_decided_and_a_close_one_is_not(
    between: float, within: float, value: float, verdict: Verdict, share: float
) -> None:
    cluster, runs = Cluster(between, within), 200
    verdicts = [cluster.verdict(value, at_least(LEAST)) for _ in range(runs)]
    assert verdicts.count(verdict) / runs >= share


@pytest.mark.parametrize(("between", "within"), CLUSTERS)
def test_a_loss_at_the_stated_limit_does_not_pass(between: float, within: float) -> None:
    """The limit that a healthy run states, and another run with a loss as large."""
    cluster, bound = Cluster(between, within), at_least(LEAST)
    found = []
    for _ in range(300):
        limit = cluster.measured(90.0, bound).detection(bound.accepted)
        assert limit is not None
        found.append(cluster.verdict(90.0 * (1 - limit.share), bound) is not Verdict.PASS)
    assert sum(found) / len(found) >= 0.99


def test_an_excess_at_the_stated_limit_does_not_pass() -> None:
    cluster, bound = Cluster(4.0, 0.3), at_most(LEAST)
    found = []
    for _ in range(200):
        limit = cluster.measured(70.0, bound).detection(bound.accepted)
        assert limit is not None
        assert limit.kind == "more"
        found.append(cluster.verdict(70.0 * (1 + limit.share), bound) is not Verdict.PASS)
    assert sum(found) / len(found) >= 0.985


def test_repeats_of_one_communicator_do_not_stand_for_communicators() -> None:
    """Nine repeats as nine independent values: their interval rarely has the true value."""
    cluster, covered = Cluster(4.0, 0.3), {True: 0, False: 0}
    for _ in range(300):
        communicators = [cluster.communicator(LEAST) for _ in range(PLANNED)]
        alone = [[value] for repeats in communicators for value in repeats]
        for nested, values in ((True, communicators), (False, alone)):
            found = estimate(values, 1)
            assert found is not None
            covered[nested] += found.low <= LEAST <= found.high
    assert covered[True] / 300 >= 0.96  # both ends, each with 99 %
    assert covered[False] / 300 <= 0.93


def test_the_parts_of_the_noise_are_told_apart() -> None:
    for between, within in ((4.0, 0.3), (0.3, 0.3), (1.0, 4.0)):
        cluster = Cluster(between, within)
        found = estimate([cluster.communicator(LEAST) for _ in range(400)])
        assert found is not None
        assert found.scatter == pytest.approx((within / 100, between / 100), rel=0.25)
    alike = estimate([[1.0, 1.1]] * 3)
    assert alike is not None
    assert alike.scatter[0] > 0.06
    assert alike.scatter[1] == 0.0  # repeats explain more than there is


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        # t for 2 degrees of freedom and a quarter of 1 %: 14.0890; stdev 0.01, √3.
        ([[1.0], [math.exp(0.01)], [math.exp(-0.01)]], math.exp(-0.081343), math.exp(0.081343)),
        ([[0.1, 1.0, 5.0], [1.0], [1.0, 1.0]], 1.0, 1.0),  # by the median of each
        ([[0.025]] * 3, 0.025, 0.025),
    ],
)
def test_the_interval_is_of_the_medians_of_communicators(
    values: Sequence[Sequence[float]], low: float, high: float
) -> None:
    found = estimate(values)
    assert found is not None
    assert found.interval == pytest.approx((low, high), rel=1e-4)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(math.sqrt(low * high))
    assert found.repeats == sum(map(len, values))


@pytest.mark.parametrize(
    ("bound", "kind", "share"),
    [
        (at_least(80), "less", 0.2),
        (at_least(100), "less", 0.0),
        (at_least(101), None, None),
        (at_least(0), None, None),
        (at_most(120), "more", 0.5),
        (at_most(80), "more", 0.0),
        (at_most(79), None, None),
    ],
)
def test_the_smallest_fault_is_from_the_far_end_of_the_interval_to_the_bound(
    bound: Bound, kind: str | None, share: float | None
) -> None:
    found = Estimate(90.0, 80.0, 100.0, ((90.0,), (90.0,))).detection(bound.accepted)
    assert (found and found.kind) == kind
    assert (found and found.share) == (share if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    "values", [[], [[1.0, 2.0]], [[1.0], [0.0]], [[1.0], [math.nan, 1.0, 2.0]]]
)
def test_what_says_nothing_about_its_noise_has_no_estimate(values: list[list[float]]) -> None:
    assert estimate(values) is None


@pytest.mark.parametrize(
    ("planned", "decided_at", "measured"),
    [(3, 1, 3), (3, 3, 3), (3, 4, 4), (3, 5, 6), (3, 7, 12), (3, 99, 12), (4, 5, 6), (4, 99, 16)],
)
def test_one_looks_a_few_times_and_then_stops(planned: int, decided_at: int, measured: int) -> None:
    number = next(n for n in count(1) if not wants_more(n, planned, decided=n >= decided_at))
    assert number == measured


def _normal(random_: random.Random) -> float:
    return random_.gauss(0, 1)


def _now_and_then_much_slower(random_: random.Random) -> float:
    return random_.gauss(0, 1) - (20 if random_.random() < 0.08 else 0)


def _exponential(random_: random.Random) -> float:
    return -random_.expovariate(1)


def _found(
    noise: Callable[[random.Random], float], percent: float, repeats: int, of_the_limit: float
) -> float:
    """Share of runs that find a loss of `times` times the limit stated by a healthy run."""
    random_ = random.Random(f"{noise.__name__} {percent} {repeats}")

    def run() -> list[float]:
        return [100 * (1 + percent / 100 * noise(random_)) for _ in range(repeats)]

    found: list[bool] = []
    while len(found) < RUNS:
        limit = smallest_loss(run(), LEAST)
        if limit is not None:
            slower = [value * (1 - of_the_limit * limit.share) for value in run()]
            found.append(statistics.median(slower) < LEAST)
    return sum(found) / RUNS


@pytest.mark.parametrize("repeats", [3, 5, 6, 10, 20])
@pytest.mark.parametrize("noise", [_normal, _now_and_then_much_slower, _exponential])
def test_a_loss_at_the_limit_is_found_by_99_of_100_runs(
    noise: Callable[[random.Random], float], repeats: int
) -> None:
    assert _found(noise, 1.0, repeats, 1.0) >= 0.985


@pytest.mark.parametrize("repeats", [5, 10, 20])
def test_a_loss_equal_to_the_margin_is_found_by_half_of_the_runs(repeats: int) -> None:
    """So the limit is not too high: only the noise is added to the margin."""
    random_ = random.Random(repeats)
    found = 0
    for _ in range(RUNS):
        slower = [LEAST * (1 + 0.01 * random_.gauss(0, 1)) for _ in range(repeats)]
        found += statistics.median(slower) < LEAST
    assert 0.45 < found / RUNS < 0.55
    assert _found(_normal, 1.0, repeats, 0.8) < 0.9


@pytest.mark.parametrize(
    ("repeats", "rounds", "factors"),
    [
        *((repeats, 1, _FACTORS) for repeats in (3, 4, 5, 6, 10)),
        *((repeats, 3, _OF_THREE_ROUNDS) for repeats in (3, 5, 12)),
    ],
)
def test_factors_match_random_draws(repeats: int, rounds: int, factors: dict[int, float]) -> None:
    """rounds: of the other run, whose best median counts."""
    random_ = random.Random(repeats)

    def draw() -> list[float]:
        return [random_.gauss(0, 1) for _ in range(repeats)]

    ratios = []
    for _ in range(10_000):
        one, others = draw(), [statistics.median(draw()) for _ in range(rounds)]
        ratios.append((max(others) - statistics.median(one)) / scale(one))
    assert sorted(ratios)[round(0.99 * len(ratios))] == pytest.approx(factors[repeats], rel=0.15)


def test_the_limit_is_margin_and_noise() -> None:
    still = smallest_loss([100.0] * 5, 80.0)
    assert still is not None
    assert still.share == pytest.approx(0.2)
    assert [still.blur, still.repeats] == [0, 5]
    assert still.text == "20 % less"
    noisy = smallest_loss([99.0, 100.0, 101.0, 100.0, 98.0], 80.0, 0.15)
    assert noisy is not None
    assert noisy.blur == pytest.approx(0.0987)  # 9.87 × MAD 1 / 100
    assert noisy.share == pytest.approx(1 - 0.8 / 1.0987)
    assert not noisy.too_noisy


@pytest.mark.parametrize(("repeats", "percent"), [(3, 0.5), (4, 1.0), (5, 0.5), (8, 1.5)])
def test_no_healthy_run_fails_and_few_are_too_noisy(repeats: int, percent: float) -> None:
    """Noise of a healthy cluster, 5 % above a bound with a margin of 8 %."""
    random_ = random.Random(repeats)
    verdicts = []
    for _ in range(RUNS):
        values = [100 * (1 + percent / 100 * random_.gauss(0, 1)) for _ in range(repeats)]
        detection = smallest_loss(values, 95.0, 0.08)
        middle = statistics.median(values)
        found = Measurement("busbw", middle, "GB/s", at_least(95.0), detection=detection)
        verdicts.append(found.verdict)
    assert verdicts.count(Verdict.FAIL) == 0
    assert verdicts.count(Verdict.INCONCLUSIVE) / RUNS < 0.02


def test_one_value_or_a_value_below_its_bound_has_no_detection_limit() -> None:
    assert noise_share([3.0]) is None
    assert smallest_loss([100.0], 80.0) is None
    assert smallest_loss([70.0, 70.0, 70.0], 80.0) is None


def test_one_disturbed_repeat_changes_the_limit_little() -> None:
    quiet, disturbed = [99.0, 100.0, 101.0, 100.5, 99.5], [99.0, 100.0, 101.0, 100.5, 10.0]
    limits = [smallest_loss(values, 80.0) for values in (quiet, disturbed)]
    assert all(limit is not None and limit.share < 0.28 for limit in limits)


@pytest.mark.parametrize(("calls", "one_in"), [(1, 1), (12, 3), (52, 11), (340, 74)])
def test_wrong_calls_are_found_unless_they_are_few(calls: int, one_in: int) -> None:
    found = smallest_share_wrong(calls)
    assert found is not None
    assert found.text == f"1 wrong call in {one_in}"
    assert (1 - found.share) ** calls == pytest.approx(0.01)
    assert smallest_share_wrong(0) is None


def test_a_value_too_noisy_for_its_bound_is_inconclusive() -> None:
    values = [90.0, 110.0, 100.0, 100.0, 101.0]
    detection = smallest_loss(values, 85.0, 0.05)
    assert detection is not None
    one = Measurement(
        "busbw", 100.0, "GB/s", at_least(85.0), detection=detection, culprit=Culprit("nobody")
    )
    assert one.verdict is Verdict.INCONCLUSIVE
    assert detection.doubt == (
        "too noisy: medians of 5 repeats differ by up to 9.87 %, and the bound tolerates a loss of "
        "5 %, so a loss of twice that could pass"
    )
    assert detection.doubt in str(one)
    calm = Detection("less", 0.2, 5, blur=0.04, tolerated=0.05)
    assert Measurement("busbw", 100.0, "GB/s", at_least(85.0), detection=calm).passed
    slow = Measurement("busbw", 84.0, "GB/s", at_least(85.0), detection=detection)
    assert slow.verdict is Verdict.FAIL  # noise is no excuse for a broken bound
    assert math.isfinite(calm.share)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_repeat_that_is_not_finite_gives_no_noise(value: float) -> None:
    for values in ([value, 100.0, 101.0], [100.0, 101.0, 99.0, 100.0, value]):
        assert noise_share(values) is None
        assert smallest_loss(values, 80.0, 0.1) is None
    with pytest.raises(ValueError, match="cannot be used; give None where"):
        Detection("less", 0.1, 5, value, 0.05)
    with pytest.raises(ValueError, match="cannot be used; give None where"):
        Detection("less", value, 5)


def test_zero_values_cause_no_division_by_zero() -> None:
    assert smallest_loss([0.0, 1.0, 2.0], 0.0, judged=0.0) is None
    with pytest.raises(ValueError, match="cannot be used"):
        Detection("wrong", 0.0, 0)


def test_only_the_best_of_three_rounds_is_quieter() -> None:
    values = [90.0, 110.0, 100.0, 100.0, 101.0]
    once, of_three = noise_share(values), noise_share(values, rounds_of_three=True)
    assert once == pytest.approx(0.0987, abs=0.0001)
    assert of_three is not None
    assert of_three != once
    assert noise_share(values, rounds_of_three=False) == once

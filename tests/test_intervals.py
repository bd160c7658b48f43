"""Intervals of few rounds: 95 of 100 have the true ratio; a disturbed round changes little."""

from __future__ import annotations

import math
import random

import pytest

from pytest_mnode.intervals import (
    Interval,
    interval_of,
    least_mean,
    most_mean,
    quantile_interval,
    t_quantile,
)

RUNS = 8000


@pytest.mark.parametrize("noise", [0.002, 0.05])
@pytest.mark.parametrize("rounds", [2, 3, 4, 5, 6, 8, 10, 12])
def test_95_of_100_intervals_have_the_true_ratio(rounds: int, noise: float) -> None:
    random_ = random.Random(f"{rounds} {noise}")
    covered = 0
    for _ in range(RUNS):
        found = interval_of([0.93 * math.exp(random_.gauss(0, noise)) for _ in range(rounds)])
        assert found is not None
        covered += 0.93 in found
    assert 0.93 < covered / RUNS < 0.97


@pytest.mark.parametrize("rounds", [3, 5, 10])
def test_rounds_that_differ_more_than_the_steps_in_them_are_covered(rounds: int) -> None:
    """A round's noise is common to its steps, which agree with each other."""
    random_ = random.Random(rounds)
    covered = 0
    for _ in range(RUNS):
        of_rounds = [random_.gauss(0, 0.02) + random_.gauss(0, 0.001) for _ in range(rounds)]
        found = interval_of([math.exp(one) for one in of_rounds])
        assert found is not None
        covered += 1.0 in found
    assert 0.93 < covered / RUNS < 0.97


@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    [
        # Tables of Student's t.
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 9, 2.2622),
        (0.995, 5, 4.0321),
        (0.9995, 30, 3.6460),
        (0.9, 4, 1.5332),
        (0.5, 7, 0.0),
        (0.975, 100_000, 1.9600),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, degrees: int, value: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(value, abs=6e-5)


@pytest.mark.parametrize(("probability", "degrees"), [(1.0, 3), (0.4, 3), (0.9, 0)])
def test_a_quantile_that_does_not_exist_is_refused(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        t_quantile(probability, degrees)


def test_the_interval_is_that_of_the_logarithms() -> None:
    found = interval_of([0.5, 1.0, 2.0])
    assert found is not None
    half = 4.3027 * math.log(2) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((math.exp(-half), math.exp(half)), rel=1e-4)
    wider = interval_of([0.5, 1.0, 2.0], 0.99)
    assert wider is not None
    assert (wider.low < found.low, wider.high > found.high, wider.confidence) == (True, True, 0.99)


def test_one_disturbed_round_of_six_changes_little() -> None:
    quiet = [0.99, 1.0, 1.01, 1.0, 0.99]
    calm, disturbed = interval_of([*quiet, 1.01]), interval_of([*quiet, 0.4])
    five = interval_of([*quiet[:4], 0.4])
    assert calm is not None
    assert disturbed is not None
    assert five is not None
    assert disturbed.half < 2 * calm.half < 0.05 < five.half


@pytest.mark.parametrize(
    "ratios", [[], [1.0], [1.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]]
)
def test_what_says_nothing_about_its_noise_has_no_interval(ratios: list[float]) -> None:
    assert interval_of(ratios) is None


def test_an_interval_has_its_ends_and_grows_to_what_it_includes() -> None:
    found = Interval(0.9, 1.1)
    assert all(value in found for value in (0.9, 1.0, 1.1))
    assert not any(value in found for value in (0.89, 1.11))
    assert found.half == pytest.approx(0.1)
    assert found.including(1.0) == found
    assert found.including(1.3) == Interval(0.9, 1.3)
    assert found.including(0.3) == Interval(0.3, 1.1)


@pytest.mark.parametrize(
    ("count", "chance", "most"),
    [
        # Half of the quantiles of chi-square with 2 (count + 1) degrees of freedom, by its tables.
        (0, 0.05, 2.9957),
        (1, 0.05, 4.7439),
        (2, 0.05, 6.2958),
        (10, 0.05, 16.9622),
        (0, 0.01, 4.6052),
        (3, 0.01, 10.0451),
        (100, 0.05, 118.0794),
    ],
)
def test_more_events_than_that_would_have_been_seen(count: int, chance: float, most: float) -> None:
    assert most_mean(count, chance) == pytest.approx(most, abs=1e-3)


def test_of_many_events_the_limits_agree_with_those_of_fewer() -> None:
    assert most_mean(9_999, 0.05) == pytest.approx(most_mean(10_000, 0.05), rel=1e-3)
    assert least_mean(40, 0.05) < 40 < most_mean(40, 0.05)


@pytest.mark.parametrize(
    ("count", "quantile", "confidence", "ends"),
    [
        (10, 0.5, 0.95, (2, 9)),  # as tables of the sign test have it
        (5, 0.5, 0.95, None),
        (458, 0.99, 0.98, None),  # 0.99^458 > 0.01
        (459, 0.99, 0.98, (449, 459)),
        (1000, 0.99, 0.98, (982, 998)),
    ],
)
def test_a_quantile_is_between_values_by_their_order(
    count: int, quantile: float, confidence: float, ends: tuple[int, int] | None
) -> None:
    found = quantile_interval([*range(count, 0, -1)], quantile, confidence)
    assert (found and (found.low, found.high)) == ends

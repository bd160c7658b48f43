"""The chance that a certificate accuses a healthy cluster, from its judgements."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from pytest_mnode.certificate import CaseResult, CriterionResult
from pytest_mnode.certificate.certificate import (
    FalseAlarms,
    Family,
    certificate_json,
    chance_of,
    false_alarms,
)
from pytest_mnode.certificate.headline import summary_lines
from pytest_mnode.certificate.page import page_text
from pytest_mnode.detection import Detection, noise_share, smallest_share_wrong
from pytest_mnode.intervals import interval_of
from pytest_mnode.measurement import Bound, Measurement, at_least, at_most, equals
from tests.certificate.conftest import RIGHT, certify


def noisy(value: float | None, bound: Bound | None, blur: float | None) -> Measurement:
    return Measurement("rate", value, "", bound, detection=Detection("less", 0.1, 5, blur))


def within(value: float, low: float, high: float, chance: float | None = None) -> Measurement:
    interval = low, high
    return Measurement("rate", value, "", at_least(95), interval=interval, false_alarm=chance)


def told(chance: float | None, value: float | None = 96.0) -> Measurement:
    return Measurement("rate", value, "", at_least(95), false_alarm=chance)


@pytest.mark.parametrize(
    ("one", "chance"),
    [
        (told(0.002), 0.002),
        (told(0.002, None), 0.002),  # too close to its bound
        (told(None), None),
        (Measurement("#wrong", 0, "", equals(0), detection=smallest_share_wrong(40)), None),
        (noisy(100, None, 0.01), None),  # recorded, not judged
        (noisy(None, at_least(95), 0.01), None),
        (noisy(100, at_least(95), None), None),
        (noisy(100, at_least(95), 0.05), 0.01),
        (noisy(100, at_least(90), 0.05), 0.01 / 4),
        (noisy(100, at_most(110), 0.01), 0.01 / 100),
        (noisy(100, at_least(99), 0.05), 0.01 * 25),
        (noisy(100, at_least(99.9), 0.05), 0.5),
        (noisy(100, at_least(101), 0.05), 0.5),  # one that just keeps it
        (noisy(100, at_least(95), 0.0), 0.0),
        (within(95, 93, 97), 0.01),
        (within(94, 93, 97), 0.01),
        (within(99, 97, 101), 0.01 / 9),
        (within(97, 96, 98, 0.005), 0.005 / 9),
        (within(97, 97, 97), 0.0),
    ],
)
def test_a_judgement_has_the_chance_of_its_noise(one: Measurement, chance: float | None) -> None:
    assert chance_of(one) == (None if chance is None else pytest.approx(chance))


@pytest.mark.parametrize("rounds", [3, 4, 8])
@pytest.mark.parametrize("margin", [0.0, 0.01, 0.04])
def test_no_more_intervals_are_beyond_the_bound_than_the_chance_says(
    rounds: int, margin: float
) -> None:
    """Pairs of runs of one cluster, at its bound or better."""
    random_ = random.Random(f"{rounds} {margin}")
    failed, said, runs = 0, 0.0, 6000
    for _ in range(runs):
        one, two = (
            interval_of([math.exp(random_.gauss(margin, 0.01)) for _ in range(rounds)], 0.98)
            for _ in range(2)
        )
        assert one is not None
        assert two is not None
        middle = math.sqrt(one.low * one.high)
        value = Measurement("rate", middle, "", at_least(1), interval=(one.low, one.high))
        chance = chance_of(value)
        assert chance is not None
        said += chance
        failed += two.high < 1
    assert failed <= said + 3 * said**0.5


@pytest.mark.parametrize("repeats", [3, 5, 10])
@pytest.mark.parametrize("margin", [1.0, 2.0, 4.0])
def test_no_more_runs_fail_than_the_chance_says(repeats: int, margin: float) -> None:
    """Pairs of runs of one cluster: what the first says of the second."""
    random_ = random.Random(f"{repeats} {margin}")
    failed, said, runs = 0, 0.0, 4000
    for _ in range(runs):
        one, two = ([random_.gauss(100, 1) for _ in range(repeats)] for _ in range(2))
        bound = at_least(100 - margin)
        chance = chance_of(noisy(statistics.median(one), bound, noise_share(one)))
        assert chance is not None
        said += chance
        failed += statistics.median(two) < bound.limit
    assert failed <= said


def case(criterion: str, *measured: Measurement, outcome: str = "passed") -> CaseResult:
    test = f"acceptance/test_{criterion}.py::test_it"
    return CaseResult(test, "Is it so?", outcome, measurements=measured)  # type: ignore[arg-type]


def test_chances_add_up_by_criterion_over_the_certificate() -> None:
    certificate = certify(
        case("mesh", RIGHT),
        case("devices", told(0.002), told(0.001), RIGHT),
        case("scaling", told(0.005), told(None)),
        case("gang", told(0.5), outcome="not promised"),
        promised=["mesh", "devices", "scaling"],
        not_promised={"gang": "no scheduler"},
    )
    found = certificate.false_alarms
    assert [one.criterion for one in found.families] == ["devices", "scaling"]
    assert [one.judgements for one in found.families] == [2, 1]
    assert [one.chance for one in found.families] == pytest.approx([0.003, 0.005])
    assert found.judgements == 3
    assert found.chance == pytest.approx(0.008)
    assert certificate_json(certificate)["false_alarms"]["chance"] == pytest.approx(0.008)
    words = (
        "a healthy cluster fails with a chance of 0.8 % at most, by 3 judgements that rest on "
        "noise (devices 0.3 % of 2, scaling 0.5 % of 1)"
    )
    assert f"false alarms: {words}" in summary_lines(certificate)
    assert words in page_text(certificate)


@pytest.mark.parametrize(("margin", "low", "high"), [(0.0, 1, 10), (0.02, 0.1, 10), (0.1, 0, 1e-3)])
def test_many_values_with_one_bound_show_their_noise_together(
    margin: float, low: float, high: float
) -> None:
    """Two runs of one cluster: what the first says of the second."""
    random_ = random.Random(f"{margin}")

    def run(values: int) -> list[Measurement]:
        draws = ([random_.gauss(margin, 0.01) for _ in range(3)] for _ in range(values))
        found = [interval_of([math.exp(one) for one in draw], 0.98) for draw in draws]
        ends = [(one.low, one.high) for one in found if one is not None]
        assert len(ends) == values
        return [
            Measurement("rate", math.sqrt(math.prod(of)), "", at_least(1), interval=of)
            for of in ends
        ]

    def said(found: list[Measurement]) -> float:
        whole = CriterionResult("fabric", True, None, (case("fabric", *found),))
        [family] = false_alarms([whole]).families
        assert family.judgements == len(found)
        return family.chance

    failed = sum(one.interval is not None and one.interval[1] < 1 for one in run(400))
    chances = said(run(400))
    assert failed <= 400 * chances + 3 * (400 * chances) ** 0.5
    assert min(low, 1) <= chances <= high
    assert chances < sum(chance_of(one) or 0 for one in run(400))
    # Too few to know their noise, and values of two bounds, are believed one by one.
    few = run(20)
    alone = sum(chance_of(one) or 0 for one in few)
    assert said(few) == pytest.approx(min(1.0, alone))


def test_a_chance_is_1_at_most_and_nothing_is_said_without_noise() -> None:
    many = CriterionResult("fabric", True, None, (case("fabric", *[told(0.5)] * 3),))
    assert false_alarms([many, many]).families == (Family("fabric", 3, 1.0),) * 2
    assert false_alarms([many, many]).chance == 1.0
    assert "a chance of 100 % at most" in false_alarms([many, many]).text
    nothing = certify(case("mesh", RIGHT), promised=["mesh"])
    assert nothing.false_alarms == FalseAlarms(())
    assert not any("false alarm" in line for line in summary_lines(nothing))
    tiny = FalseAlarms((Family("fabric", 9, 1e-9),))
    assert "a chance of less than 0.01 % at most" in tiny.text

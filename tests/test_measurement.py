"""The judgement of a value, and its text."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.certificate.results import measurements_from_json, measurements_to_json
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import (
    Bound,
    Measurement,
    Relation,
    Verdict,
    at_least,
    at_most,
    equals,
    last_digit,
)

NUMBERS = st.floats(min_value=-1e9, max_value=1e9)
BOUNDS = st.builds(Bound, st.sampled_from(Relation), NUMBERS, st.floats(min_value=0, max_value=1e6))


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        (at_least(10), 10, True),
        (at_least(10), math.nextafter(10, 0), False),
        (at_least(10, 1), 9, True),
        (at_least(10, 1), 8.999, False),
        (at_most(10), 10, True),
        (at_most(10), math.nextafter(10, 11), False),
        (at_most(10, 1), 11, True),
        (at_most(10, 1), 11.001, False),
        (equals(0), 0, True),
        (equals(0), 5e-324, False),
        (equals(10, 1), 9, True),
        (equals(10, 1), 11, True),
        (equals(1, 0.1), 1.1, True),
        (equals(10, 1), 11.001, False),
        (equals(10, 1), 8.999, False),
        (at_least(0.55 * 100), 55, True),
        (at_most(4.2e-6 * 1e6), 4.2, True),
        (at_least(0.9 * 7, 0.1 * 7), 5.6, True),
        (equals(10**14), 10**14 + 1, False),
    ],
)
def test_a_bound_accepts_up_to_and_with_its_edges(bound: Bound, value: float, holds: bool) -> None:
    assert bound.holds(value) is holds


@pytest.mark.parametrize(
    ("values", "digit"),
    [
        ([9.99, 10.0], 0.01),
        ([10.0, 10.5], 0.1),
        ([190, 1234567], 1.0),
        ([0, 0.0], 1.0),
        ([1e-07, -2.5e-07], 1e-08),
        ([1234567.5], 10.0),  # 1.23457e+06
        ([], 0.0),
    ],
)
def test_the_last_digit_is_that_of_the_value_printed_with_most(
    values: list[float], digit: float
) -> None:
    assert last_digit(values) == digit


@given(BOUNDS, NUMBERS)
def test_the_margin_is_negative_exactly_where_the_bound_is_broken(
    bound: Bound, value: float
) -> None:
    assert (bound.margin(value) < 0) is not bound.holds(value)


@pytest.mark.parametrize(
    ("bound", "value", "margin", "relative"),
    [
        (at_least(200, 10), 180, -10, -0.05),
        (at_most(200, 10), 180, 30, 0.15),
        (at_most(-200), -150, -50, -0.25),
        (equals(200, 10), 206, 4, 0.02),
        (equals(200), 200, 0, None),
        (at_most(0), 3, -3, None),
    ],
)
def test_the_margin_is_the_distance_to_the_nearest_edge(
    bound: Bound, value: float, margin: float, relative: float | None
) -> None:
    assert bound.margin(value) == margin
    assert bound.relative_margin(value) == relative


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        (at_least(170), "at least 170 GB/s"),
        (at_most(0.25, 0.05), "at most 0.25 GB/s (tolerance 0.05)"),
        (equals(1234567, 2), "equals 1234567 GB/s (tolerance 2)"),
    ],
)
def test_a_bound_reads_with_relation_limit_unit_and_tolerance(bound: Bound, text: str) -> None:
    assert bound.text("GB/s") == text
    assert str(bound) == text.replace(" GB/s", "")


@pytest.mark.parametrize(
    ("limit", "tolerance", "error", "message"),
    [
        (math.nan, 0, ValueError, "a bound of nan cannot be judged; give a finite number"),
        (math.inf, 0, ValueError, "a bound of inf cannot be judged"),
        (1, -1, ValueError, "tolerance -1 is not a finite number of 0 or more"),
        (1, math.nan, ValueError, "tolerance nan is not a finite number"),
        ("200", 0, TypeError, "a bound of '200' is a str; give a number"),
        (None, 0, TypeError, "a bound of None is a NoneType; give a number"),
    ],
)
def test_a_bound_that_cannot_be_judged_is_refused(
    limit: Any, tolerance: float, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        at_least(limit, tolerance)


@pytest.mark.parametrize(
    ("value", "expected", "verdict"),
    [
        (170, at_least(170), Verdict.PASS),
        (169.9, at_least(170), Verdict.FAIL),
        (None, at_least(170), Verdict.INCONCLUSIVE),
        (math.nan, at_least(170), Verdict.INCONCLUSIVE),
        (math.inf, at_least(170), Verdict.INCONCLUSIVE),
        (-math.inf, at_most(170), Verdict.INCONCLUSIVE),
        (math.nan, equals(0), Verdict.INCONCLUSIVE),
        (170, None, None),
        (None, None, None),
    ],
)
def test_only_a_finite_value_within_its_bound_passes(
    value: float | None, expected: Bound | None, verdict: Verdict | None
) -> None:
    assert Measurement("busbw", value, "Mbit/s", expected).verdict is verdict


def test_the_text_of_a_failed_measurement_has_all_its_facts() -> None:
    measurement = Measurement(
        "busbw",
        48.125,
        "Mbit/s",
        at_least(170, 5),
        "line 200 × 0.85",
        Culprit("node2 fab0", "node2"),
        where="rank 0",
    )
    assert str(measurement) == (
        "busbw: 48.125 Mbit/s, expected at least 170 Mbit/s (tolerance 5), source line 200 × 0.85, "
        "margin -116.9 Mbit/s, culprit node2 fab0, measured by rank 0"
    )


@pytest.mark.parametrize(
    ("measurement", "text"),
    [
        (
            Measurement("errors", 0, "", at_most(0), culprit=Culprit("node2")),
            "errors: 0, expected at most 0, source not given, margin +0",
        ),
        (
            Measurement(
                "skew", None, "ms", at_most(1), "spec", note="no clock", culprit=Culprit("node2")
            ),
            "skew: not measured, expected at most 1 ms, source spec, no clock, culprit node2",
        ),
        (Measurement("MTU", 9000, "bytes"), "MTU: 9000 bytes"),
    ],
)
def test_a_measurement_reads_in_one_line(measurement: Measurement, text: str) -> None:
    assert str(measurement) == text


class Scalar:
    """A number type of another library."""

    def __float__(self) -> float:
        return 1.5


@pytest.mark.parametrize(("value", "kept"), [(Scalar(), 1.5), (True, 1.0), (2**60 + 1, 2**60 + 1)])
def test_a_scalar_becomes_a_plain_number(value: Any, kept: float) -> None:
    measurement = Measurement("x", value, "")
    assert measurement.value == kept
    assert type(measurement.value) in (int, float)


@pytest.mark.parametrize("value", ["12", b"12", [12], object()])
def test_values_that_are_no_number_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"measurement 'x' of .* is a \w+; give a number"):
        Measurement("x", value, "")


@given(st.builds(Measurement, st.text(), st.none() | NUMBERS, st.text(), st.none() | BOUNDS))
def test_a_measurement_survives_json(measurement: Measurement) -> None:
    data = json.loads(json.dumps(measurements_to_json([measurement]), allow_nan=False))
    assert measurements_from_json(data) == (measurement,)


def test_a_value_that_is_not_finite_stays_inconclusive_in_json() -> None:
    [data] = measurements_to_json([Measurement("busbw", math.nan, "", at_least(1), note="0 s")])
    assert (data["value"], data["note"], data["verdict"]) == (
        None,
        "0 s; measured nan",
        "inconclusive",
    )
    [read] = measurements_from_json([data])
    assert read.verdict is Verdict.INCONCLUSIVE


def test_an_edited_verdict_is_judged_anew() -> None:
    [data] = measurements_to_json([Measurement("busbw", 1, "", at_least(2))])
    [read] = measurements_from_json([data | {"verdict": "pass", "margin": 5}])
    assert read.verdict is Verdict.FAIL


@pytest.mark.parametrize(("value", "culprit"), [(5, None), (3, "node2 fab0"), (None, "node2 fab0")])
def test_a_passed_measurement_has_no_culprit(value: float | None, culprit: str | None) -> None:
    measured = Measurement(
        "rate", value, "GB/s", at_least(4), "spec", Culprit("node2 fab0", "node2")
    )
    [data] = measurements_to_json([measured])
    assert (measured.culprit, data["culprit"]) == (culprit, culprit)
    assert ("node2" in str(measured)) is (culprit is not None)


def test_a_value_that_could_not_be_measured_never_passes() -> None:
    found = Measurement.unknown("clock offset", "node1: no answer in 10 s", unit="s")
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "not measured" in str(found)
    assert "node1: no answer in 10 s" in str(found)


def test_a_count_that_must_be_zero_names_the_first_and_counts_the_rest() -> None:
    found = Measurement.none_allowed(
        "lost batches", [Culprit(f"rank {i}", f"node{i}") for i in range(6)], "exactly once"
    )
    assert (found.value, found.verdict) == (6, Verdict.FAIL)
    assert found.culprit == "rank 0; rank 1; rank 2; rank 3; and 2 more"
    assert found.culprit.nodes == {f"node{i}" for i in range(6)}  # all of them
    assert Measurement.none_allowed("lost batches", [], "exactly once").passed


@pytest.mark.parametrize(
    ("bound", "interval", "verdict"),
    [
        (at_least(10), (10, 12), Verdict.PASS),
        (at_least(10), (9.9, 12), Verdict.INCONCLUSIVE),  # the value, 11, is above
        (at_least(12), (9, 12.1), Verdict.INCONCLUSIVE),  # and below
        (at_least(12), (9, 11.9), Verdict.FAIL),
        (at_least(12, 2), (10, 11.9), Verdict.PASS),
        (at_most(12), (10, 12), Verdict.PASS),
        (at_most(12), (10, 12.1), Verdict.INCONCLUSIVE),
        (at_most(10), (9.9, 12), Verdict.INCONCLUSIVE),
        (at_most(10), (10.1, 12), Verdict.FAIL),
        (equals(11, 1), (10, 12), Verdict.PASS),
        (equals(11, 1), (9, 12), Verdict.INCONCLUSIVE),
        (equals(14, 1), (10, 12.9), Verdict.FAIL),
        (None, (10, 12), None),
    ],
)
def test_a_value_is_undecided_while_its_interval_contains_the_bound(
    bound: Bound | None, interval: tuple[float, float], verdict: Verdict | None
) -> None:
    found = Measurement("busbw", 11, "GB/s", bound, interval=interval)
    assert found.verdict is verdict
    assert ("undecided: the bound is within its interval" in str(found)) is (
        verdict is Verdict.INCONCLUSIVE
    )
    assert bool(found.doubt) is (verdict is Verdict.INCONCLUSIVE)
    assert str(found).startswith(f"busbw: 11 GB/s ({interval[0]} to {interval[1]})")
    [read] = measurements_from_json(json.loads(json.dumps(measurements_to_json([found]))))
    assert (read.interval, read.verdict) == (interval, verdict)


def test_an_undecided_value_keeps_its_culprit_and_a_sure_one_does_not() -> None:
    undecided = Measurement("x", 11, "", at_least(10), "", Culprit("n1", "n1"), interval=(9, 12))
    assert undecided.culprit == "n1"
    sure = Measurement("x", 11, "", at_least(10), "", Culprit("n1", "n1"), interval=(10, 12))
    assert sure.culprit is None


@pytest.mark.parametrize(
    ("bound", "interval"),
    [(at_least(1), (12, 13)), (at_least(1), (math.nan, 13)), (equals(11), (10, 12))],
)
def test_an_interval_without_its_value_or_of_a_count_is_refused(
    bound: Bound, interval: tuple[float, float]
) -> None:
    with pytest.raises(ValueError, match="no interval from"):
        Measurement("x", 11, "", bound, interval=interval)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_missing_value_has_no_interval(value: float | None) -> None:
    found = Measurement("x", value, "", at_least(1), interval=(1, 2))
    assert found.interval is None
    assert found.verdict is Verdict.INCONCLUSIVE

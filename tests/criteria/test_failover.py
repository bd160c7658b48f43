"""Traffic while ports go down and up again: judged by calls of which the times are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from random import Random

import pytest
from pydantic import ValidationError

from pytest_mnode.criteria.failover import _of_ports, course_of, judge_failover
from pytest_mnode.intervals import Interval
from pytest_mnode.measurement import Measurement, Verdict, at_least
from pytest_mnode.measuring.failover import PortFailover
from pytest_mnode.spec.traffic import FailoverPromise

PROMISE = FailoverPromise.model_validate(
    {
        "ports": ["eth0", "eth1"],
        "at_least_fraction": 0.9,
        "within": "1 s",
        "down_for": "5 s",
    }
)
PAUSE, DOWN, AFTER, SUMS, EACH = (
    *("longest pause when a port goes down or up", "rate while a port is down"),
    *("rate after it is up", "ports with wrong sums in their failover", "failover of each port"),
)


def calls(*stretches: tuple[int, float]) -> tuple[tuple[float, float], ...]:
    """So many calls of so many seconds each, one after the other."""
    found, at = [], 0.0
    for count, each_s in stretches:
        for _ in range(count):
            found.append((at, at + each_s))
            at += each_s
    return tuple(found)


def port(
    *stretches: tuple[int, float], node: str = "node1", down_s: float = 2.0, up_s: float = 7.0
) -> PortFailover:
    sent = {"eth0": (4_000_000, 0), "eth1": (1000, 9_000_000)}
    return PortFailover(node, "eth0", "", calls(*stretches), down_s, up_s, sent)


GOOD = port((40, 0.05), (1, 0.3), (200, 0.05))


def judged(*found: PortFailover, promise: FailoverPromise = PROMISE) -> dict[str, Measurement]:
    return {one.name: one for one in judge_failover(found, promise)}


def failed(found: Sequence[Measurement]) -> set[str]:
    return {one.name for one in found if one.verdict is Verdict.FAIL}


@pytest.mark.parametrize(
    ("one", "wrong"),
    [
        (GOOD, set[str]()),
        (port((40, 0.05), (1, 1.2), (200, 0.05)), {PAUSE}),
        (port((40, 0.05), (50, 0.1), (100, 0.05)), {DOWN}),  # half the rate while it is down
        (port((40, 0.05), (100, 0.05), (100, 0.1)), {AFTER}),  # and for ever after
        (port((40, 0.05), (1, 6.0), (100, 0.05)), {PAUSE, DOWN}),  # nothing took over
        (port((40, 0.05), (1, 9.0)), {PAUSE, DOWN, AFTER}),
        (replace(GOOD, wrong=2), {SUMS}),
    ],
)
def test_each_promise_is_judged_by_itself(one: PortFailover, wrong: set[str]) -> None:
    found = judge_failover([replace(GOOD, node="node0"), one], PROMISE)
    assert failed(found) == wrong
    for measured in found:
        nodes = measured.culprit.nodes if measured.culprit else set()
        assert nodes == ({"node1"} if measured.name in wrong else set())


def test_the_course_of_a_port() -> None:
    course = course_of(GOOD, 1.0)
    assert course is not None
    assert course.pause_s == pytest.approx(0.25)
    for rate in (course.down, course.after):
        assert rate is not None
        assert (rate.low, rate.high) == pytest.approx((1.0, 1.0))
    assert course_of(replace(GOOD, down_s=0.01), 1.0) is None
    faster = course_of(port((40, 0.05), (300, 0.04)), 1.0)
    assert faster is not None
    assert faster.pause_s == 0


def test_calls_that_begin_or_end_with_a_time_belong_to_it() -> None:
    assert course_of(port((1, 2.0), (40, 0.5)), 1.0) is not None
    whole = course_of(port((4, 0.5), (1, 5.0), (40, 0.5)), 1.0)
    assert whole is not None
    assert whole.down is None, "one call says nothing"
    none = course_of(port((4, 0.5), (1, 1.5), (40, 0.5), up_s=3.0), 1.0)
    assert none is not None
    assert none.down == Interval(0.0, 0.0), "time for two usual calls without one"


def test_the_rate_after_it_is_up_leaves_out_the_time_to_recover() -> None:
    course = course_of(port((40, 0.05), (100, 0.05), (8, 0.125), (20, 0.05)), 1.0)
    assert course is not None
    assert course.after is not None
    assert course.after.low == pytest.approx(1.0)


def test_the_worst_port_surely_breaks_the_bound() -> None:
    """One whose interval is wide may seem worse."""
    sure = replace(GOOD, node="node0")
    rates = [(GOOD, Interval(0.1, 2.0)), (sure, Interval(0.7, 0.8))]
    [one] = _of_ports("rate", "", "k", at_least(0.9), rates, PROMISE)
    assert (one.verdict, one.interval) == (Verdict.FAIL, (0.7, 0.8))
    assert one.culprit is not None
    assert one.culprit.nodes == {"node0"}
    assert one.culprit.either == {frozenset({"node1"})}


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (PortFailover("node0", "eth0", "eth0 cannot be set down: not permitted"), "not permitted"),
        (
            replace(GOOD, sent={"eth0": (10, 0), "eth1": (4_000_000, 0)}),
            "no port of the node carried",
        ),
        (replace(GOOD, sent={"eth0": (0, 0), "eth1": (0, 0)}), "no port of the node carried"),
        (replace(GOOD, calls=()), "no call"),
    ],
)
def test_what_shows_nothing_is_inconclusive(one: PortFailover, word: str) -> None:
    found = judged(one)
    assert found[EACH].verdict is Verdict.INCONCLUSIVE
    assert word in found[EACH].note
    spare = replace(GOOD, port="eth1", sent={"eth0": (4_000_000, 0), "eth1": (10, 0)})
    assert judged(GOOD, spare).keys() == {PAUSE, DOWN, AFTER, SUMS}, "one that takes over is idle"
    for sent in (None, {"eth1": (10, 0)}):  # nobody counted
        assert judged(replace(GOOD, sent=sent)).keys() == {PAUSE, DOWN, AFTER, SUMS}


def noisy(spread: float, down: float, seed: int) -> PortFailover:
    """Calls of 50 ms that differ by so much; while the port is down so many times as fast."""
    random_, found, at = Random(seed), [], 0.0
    for count, rate in ((30, 1.0), (int(90 * down), down), (60, 1.0)):
        for _ in range(count):
            took_s = 0.05 / rate * exp(random_.gauss(0, spread))
            found.append((at, at + took_s))
            at += took_s
    up_s = found[30 + int(90 * down)][0]
    return replace(GOOD, calls=tuple(found), down_s=found[29][1], up_s=up_s)


@pytest.mark.parametrize(
    ("spread", "down", "least", "verdicts"),
    [
        (0.02, 1.0, 1.0, {Verdict.PASS}),
        (0.05, 0.8, 1.0, {Verdict.FAIL}),
        (0.02, 0.5, 0.5, {Verdict.PASS}),
        (0.05, 1.0, 1.0, {Verdict.PASS, Verdict.INCONCLUSIVE}),
        (0.05, 0.3, 0.5, {Verdict.FAIL}),
        (0.4, 1.0, 1.0, {Verdict.PASS, Verdict.INCONCLUSIVE}),
        (0.02, 0.95, 1.0, {Verdict.INCONCLUSIVE}),  # at the edge
    ],
)
def test_noise_is_no_loss_of_rate(
    spread: float, down: float, least: float, verdicts: set[Verdict]
) -> None:
    page = {"ports": ["eth0", "eth1"], "at_least_fraction": least, "within": "1 s"}
    promise = FailoverPromise.model_validate(page)
    found = [judged(noisy(spread, down, seed), promise=promise)[DOWN] for seed in range(200)]
    often = Counter(one.verdict for one in found)
    assert {verdict for verdict, count in often.items() if verdict and count > 8} == verdicts
    for one in found:
        assert bool(one.culprit and one.culprit.nodes) is (one.verdict is Verdict.FAIL)
    unsure = next((m for m in found if m.verdict is Verdict.INCONCLUSIVE), None)
    assert unsure is None or unsure.culprit == f"node1 eth0 ({unsure.value:.3g})"


@pytest.mark.parametrize(
    ("calls_s", "up_s", "verdict"),
    [
        ((1, 4.9), 6.92, None),  # one call says nothing of a rate
        ((1, 0.08), 2.06, None),  # nor does a time too short for two
        ((2, 2.4), 6.82, Verdict.FAIL),
    ],
)
def test_few_calls(calls_s: tuple[int, float], up_s: float, verdict: Verdict | None) -> None:
    found = judged(port((40, 0.05), calls_s, (100, 0.05), up_s=up_s))
    assert (found[DOWN].verdict if DOWN in found else None) is verdict
    assert (EACH in found) is (verdict is None)
    slow = judged(port((3, 3.0), (10, 3.0), down_s=9.0, up_s=14.0))
    assert DOWN not in slow, "no call ends in 5 s that takes 3 s"
    assert "too few calls" in slow[EACH].note


def test_a_pause_longer_than_a_port_is_down_is_refused() -> None:
    page = {"ports": ["eth0", "eth1"], "at_least_fraction": 0.5, "within": "6 s"}
    with pytest.raises(ValidationError, match="within: 6 s, down_for: 5 s"):
        FailoverPromise.model_validate(page)

"""Traffic while ports go down and up again: judged by calls of which the times are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_mnode.criteria.failover import course_of, judge_failover
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.measuring.failover import PortFailover
from pytest_mnode.spec.at_once import FailoverPromise

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


def judged(*found: PortFailover) -> dict[str, Measurement]:
    return {one.name: one for one in judge_failover(found, PROMISE)}


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
    assert (course.down, course.after) == pytest.approx((1.0, 1.0))
    assert course_of(replace(GOOD, down_s=0.01), 1.0) is None


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (PortFailover("node0", "eth0", "eth0 cannot be set down: not permitted"), "not permitted"),
        (
            replace(GOOD, sent={"eth0": (10, 0), "eth1": (4_000_000, 0)}),
            "no port of the node carried",
        ),
        (replace(GOOD, calls=()), "no call"),
    ],
)
def test_what_shows_nothing_is_inconclusive(one: PortFailover, word: str) -> None:
    found = judged(one)
    assert found[EACH].verdict is Verdict.INCONCLUSIVE
    assert word in found[EACH].note
    spare = replace(GOOD, port="eth1", sent={"eth0": (4_000_000, 0), "eth1": (10, 0)})
    assert judged(GOOD, spare).keys() == {PAUSE, DOWN, AFTER, SUMS}, "one that takes over is idle"
    assert judged(replace(GOOD, sent=None)).keys() == {PAUSE, DOWN, AFTER, SUMS}

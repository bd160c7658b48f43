"""Judges of traffic of many nodes at once, from made values."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.criteria.port_counters.reading import PortReading
from pytest_mnode.criteria.traffic import judge_bisection, judge_congestion, judge_incast
from pytest_mnode.machine.counters import frames_in
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.at_once import (
    Beside,
    Bisection,
    Incast,
    halves_of,
    sides_of,
    targets_of,
)
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.traffic import BisectionPromise, CongestionPromise, IncastPromise

HALVES = (("a0", "a1"), ("b0", "b1"))
ALONE = {("a0", "b0"): 790.0, ("a1", "b1"): 780.0}


@pytest.mark.parametrize(
    ("sums", "alone", "blocking", "verdict", "words", "either"),
    [
        (1500.0, {}, 1.0, "pass", "", set()),
        (750.0, ALONE, 1.0, "fail", "uplinks between a[0-1] and b[0-1]", {"a0", "a1", "b0", "b1"}),
        (750.0, {}, 2.0, "pass", "", set()),
        (1200.0, ALONE | {("a1", "b1"): 300.0}, 1.0, "fail", "a1 and b1 alone 300", {"a1", "b1"}),
    ],
)
def test_what_halves_share_is_told_from_a_slow_pair(  # noqa: PLR0917
    sums: float,
    alone: dict[tuple[str, str], float],
    blocking: float,
    verdict: str,
    words: str,
    either: set[str],
) -> None:
    promise = BisectionPromise(at_least_fraction=0.9, oversubscription=blocking)
    rates = tuple((sums * scale, sums, sums) for scale in (0.999, 1.0, 1.001))
    [found] = judge_bisection(Bisection(HALVES, rates, 1600.0, alone), promise)
    assert found.verdict == verdict
    assert words in str(found.culprit or "")
    assert (set().union(*found.culprit.either) if found.culprit else set()) == either
    assert found.expected is not None
    assert found.expected.limit == pytest.approx(0.9 * 1600 / blocking)


def incast(**counters: int) -> Incast:
    """Three nodes; node c is slow, and its port counts these rises."""
    rates = {"a": 380.0, "b": 385.0, "c": 385.0}
    start: dict[str, int | None] = {
        "port_xmit_packets": 0,
        "out_of_sequence": 0,
        "np_cnp_sent": 0,
        "link_downed": 0,
    }
    before = {name: PortReading("boot", {"mlx5_0:1": start}, None, 0.0) for name in rates}
    end = start | {"port_xmit_packets": 10**6}
    of_c = end | dict[str, int | None](counters)
    after = {
        name: PortReading("boot", {"mlx5_0:1": of_c if name == "c" else end}, None, 1.0)
        for name in rates
    }
    return Incast(2, 400.0, rates, before, after, {"a": 0, "b": 0, "c": 7})


def judged(found: Incast, **promise: Any) -> dict[str, Measurement]:
    spec = profile_spec("rack")
    fabric = spec.fabric.model_copy(update={"kind": "roce", "interfaces": ("mlx5_*",)})
    given = IncastPromise.model_validate({"at_least_fraction": 0.9, **promise})
    return {one.name: one for one in judge_incast(found, given, fabric)}


def test_losses_of_an_incast_are_bounded() -> None:
    name = "packets lost, worst fabric port, in an incast"
    lost = judged(incast(out_of_sequence=50_000))[name]
    assert lost.value == pytest.approx(5.0)
    assert lost.verdict == "fail"
    assert lost.culprit is not None and lost.culprit.nodes == {"c"}  # noqa: PT018
    allowed = judged(incast(out_of_sequence=50_000), lost_at_most_fraction=0.1)[name]
    assert allowed.verdict == "pass"
    assert "fabric.incast.lost_at_most_fraction 0.1" in allowed.source


def test_a_slow_receiver_is_named() -> None:
    found = judged(incast(), at_least_fraction=0.96)["incast, node that received least"]
    assert (found.verdict, found.value) == ("fail", 380.0)
    assert found.culprit is not None and found.culprit.nodes == {"a"}  # noqa: PT018


@pytest.mark.parametrize(
    ("wanted", "verdict"), [("may", None), ("must", "pass"), ("never", "fail")]
)
def test_pauses_may_must_or_must_not_be(wanted: str, verdict: str | None) -> None:
    found = judged(incast(), pause=wanted)["pause frames in an incast"]
    assert (found.value, found.verdict) == (7, verdict)
    marks = judged(incast(np_cnp_sent=4), ecn=wanted)["congestion marks in an incast"]
    assert (marks.value, marks.verdict) == (4, verdict)


def test_pauses_that_nobody_counts_are_inconclusive_where_promised() -> None:
    found = incast()
    unknown: dict[str, int | str] = dict.fromkeys(
        "abc", "ethtool is not installed: install ethtool"
    )
    mute = Incast(2, 400.0, found.gbits_s, found.before, found.after, unknown)
    assert "pause frames in an incast" not in judged(mute)
    one = judged(mute, pause="never")["pause frames in an incast"]
    assert (one.verdict, "install ethtool" in str(one)) == ("inconclusive", True)


@pytest.mark.parametrize(
    ("beside", "most", "verdict"),
    [
        *((1.0, 0.1, "pass"), (1.05, 0.1, "pass"), (2.0, 0.1, "fail")),
        *((1.111, 0.1, "inconclusive"), (2.0, None, None)),
    ],
)
def test_the_loss_has_an_interval(beside: float, most: float | None, verdict: str | None) -> None:
    alone = (1.0, 1.01, 0.99, 1.0, 1.01, 0.99)
    both = tuple(beside * one for one in (1.01, 1.0, 1.0, 0.99, 1.0, 1.01))
    lasted = (0.5, *[9.0] * 5)
    found = Beside(("a", "c"), ("b", "d"), alone, both, lasted)
    promise = CongestionPromise() if most is None else CongestionPromise(loss_at_most=most)
    [one] = judge_congestion(found, promise)
    assert one.verdict == verdict
    assert one.interval is not None and one.interval[0] < 100 * (1 - 1 / beside) < one.interval[1]  # noqa: PT018
    assert "in 1 of them the other traffic ended first" in one.note
    if verdict == "fail":
        assert one.culprit is not None and one.culprit.either == {frozenset("abcd")}  # noqa: PT018


def test_nodes_of_each_side() -> None:
    nodes = [f"n{i}" for i in range(5)]
    assert halves_of(nodes, BisectionPromise(at_least_fraction=0.9)) == (("n0", "n1"), ("n2", "n3"))
    given = BisectionPromise(at_least_fraction=0.9, halves=("n[3-9]", "n0,n2"))
    assert halves_of(nodes, given) == (("n3", "n4"), ("n0", "n2"))
    assert halves_of(["x"], given) == ((), ())
    assert sides_of(nodes, CongestionPromise()) == (("n0", "n2", "n4"), ("n1", "n3"))
    one = CongestionPromise(victims="n[0-1]", aggressors="n[1-3]")
    assert sides_of(nodes, one) == (("n0", "n1"), ("n2", "n3"))
    assert targets_of(nodes) == nodes
    assert len(targets_of([f"n{i}" for i in range(100)])) == 15


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        (
            "NIC statistics:\n rx_prio3_pause: 12\n tx_prio3_pause: 3\n rx_prio3_bytes: 9",
            15,
        ),
        ("     rx_pfc_ena_frames_pri3: 4\n     rx_pause_frames: 1\n", 5),  # bnxt
        ("     frames_rx_pause: 4\n     frames_tx_pripause: 1\n", 5),  # ionic
        ("     mac_tx_mac_pause_num: 2\n     mac_rx_pfc_pri3_pkt_num: 3\n", 5),  # hns3
        ("     rx_packets: 7\n", None),
        ("no stats available", None),
    ],
)
def test_pause_frames_of_ethtool(text: str, frames: int | None) -> None:
    assert frames_in(text) == frames

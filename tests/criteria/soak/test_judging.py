"""Rounds of a soak: failures against a promise, the rates that they exclude, drift, and rows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pytest_mnode.criteria.soak.drift import correlation, drift
from pytest_mnode.criteria.soak.found import Failure, Rate, Round, asked, began, ended, kept_in
from pytest_mnode.criteria.soak.judging import charts, judge
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.file import rows_from_json, rows_to_json
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.measuring.locating.rounds import circle
from pytest_mnode.spec.soak import SoakCriterion

NODES = ("node0", "node1", "node2", "node3")
FLAP = Failure("carrier changes", "2", Culprit.device("node2 fab0 +2", "node2", "fab0"))
WAITS = Failure("ranks of a round", "died", Culprit("rank 0 on node0", "node0"), symptom=True)
SPEEDS = {"node0": 100.0, "node1": 101.0, "node2": 99.0, "node3": 100.5}


def slow(a: str, b: str) -> Failure:
    return Failure("slow paths", "1", Culprit.path(f"path from {a} to {b}", (a, b)), symptom=True)


def soaked(
    rounds: int,
    failures: Mapping[int, Sequence[Failure]] | None = None,
    *,
    took_s: float = 60.0,
    speed: Mapping[str, Sequence[float]] | None = None,
    noise: float = 0.01,
    seed: int = 1,
) -> list[Round]:
    """Rounds over NODES. failures: by number. speed: by node, factors of its rate over rounds."""
    draw, turns = random.Random(seed), circle(len(NODES))
    return [
        Round(
            number=number,
            began_s=1.8e9 + took_s * number,
            took_s=took_s,
            nodes=NODES,
            partners=tuple((NODES[a], NODES[b]) for a, b in turns[(number - 1) % len(turns)]),
            pairs_s=took_s / 10,
            checked={"products": 80, "sums": 20},
            rates=tuple(
                Rate(
                    "matmul",
                    node,
                    rate
                    * (speed or {}).get(node, [1.0] * rounds)[number - 1]
                    * (1 + draw.gauss(0, noise)),
                    "GFLOP/s",
                )
                for node, rate in SPEEDS.items()
            ),
            failures=tuple((failures or {}).get(number, ())),
        )
        for number in range(1, rounds + 1)
    ]


def judged(
    rounds: Sequence[Round], promise: object = None, *, cut: str = ""
) -> dict[str, Measurement]:
    """By name. promise: keys of the spec; None promises nothing."""
    given = None if promise is None else SoakCriterion.model_validate(promise)
    return {one.name: one for one in judge(rounds, given, for_s=3600, cut=cut)}


@pytest.mark.parametrize(
    ("rounds", "failures", "promise", "verdict", "value"),
    [
        (60, {}, None, Verdict.PASS, 0),
        (60, {7: [FLAP]}, None, Verdict.FAIL, 1),
        (60, {}, {"for": "1 h"}, Verdict.PASS, 0),
        (59, {}, {"for": "1 h"}, Verdict.PASS, 0),  # a sixtieth did not end within
        (30, {}, {"for": "1 h"}, Verdict.INCONCLUSIVE, None),
        (30, {7: [FLAP]}, {"for": "1 h"}, Verdict.FAIL, 1),
        (60, {}, {"for": "1 h", "node_hours": 4}, Verdict.PASS, 0),
        (60, {}, {"for": "1 h", "node_hours": 37}, Verdict.INCONCLUSIVE, None),
        (
            60,
            {7: [FLAP]},
            {"for": "1 h", "node_hours": 37, "failures_at_most": 1},
            Verdict.INCONCLUSIVE,
            None,
        ),
        (60, {7: [FLAP]}, {"for": "1 h", "node_hours": 4, "failures_at_most": 1}, Verdict.PASS, 1),
        (
            60,
            {7: [FLAP], 9: [FLAP]},
            {"for": "1 h", "node_hours": 37, "failures_at_most": 1},
            Verdict.FAIL,
            2,
        ),
        (
            120,
            {7: [FLAP], 90: [FLAP]},
            {"for": "1 h", "node_hours": 4, "failures_at_most": 1},
            Verdict.PASS,
            2,
        ),
    ],
)
def test_failures_are_judged_by_what_is_accepted_in_so_many_hours(
    rounds: int,
    failures: Mapping[int, Sequence[Failure]],
    promise: Mapping[str, object] | None,
    verdict: Verdict,
    value: int | None,
) -> None:
    found = judged(soaked(rounds, failures), promise)["rounds with a failure"]
    assert (found.verdict, found.value) == (verdict, value)
    if verdict is Verdict.FAIL:
        assert found.culprit is not None
        assert found.culprit.nodes == {"node2"}
        assert found.culprit.parts.devices == (("node2", "fab0"),)
        assert "round 7, 2027-01-15 08:07:00 UTC" in found.culprit


def test_the_hours_in_which_one_failure_is_excluded_are_those_of_poisson() -> None:
    found = judged(soaked(60))
    assert found["node-hours with at most 1 failure, 95 %"].value == pytest.approx(4 / 2.9957, 1e-3)
    # Each of six paths has partners in a third of the rounds, for a tenth of their time.
    path = found["hours with at most 1 failure, 95 %, any one path"].value
    assert path == pytest.approx(0.1 / 3 / 2.9957, 1e-3)
    found = judged(soaked(60, {7: [FLAP]}))
    assert found["node-hours with at most 1 failure, 95 %"].value == pytest.approx(4 / 4.7439, 1e-3)
    node = found["hours with at most 1 failure, 95 %, any one node"]
    assert node.value == pytest.approx(1 / 4.7439, 1e-3)
    assert "node2" in node.note
    detection = found["rounds with a failure"].detection
    assert detection is not None
    assert detection.repeats == 6000


def test_a_symptom_of_another_failure_accuses_nobody() -> None:
    culprit = judged(soaked(60, {7: [WAITS, FLAP, slow("node2", "node0")]}))[
        "rounds with a failure"
    ].culprit
    assert culprit is not None
    assert culprit.nodes == {"node2"}
    assert not culprit.either


@pytest.mark.parametrize(
    ("failures", "nodes", "either"),
    [
        ([("node2", "node0")], set(), {frozenset(["node0", "node2"])}),
        ([("node2", "node0")] * 2, set(), {frozenset(["node0", "node2"])}),
        ([("node2", "node0"), ("node1", "node2")], {"node2"}, set()),
        (
            [("node2", "node0"), ("node1", "node3")],
            set(),
            {frozenset(["node0", "node2"]), frozenset(["node1", "node3"])},
        ),
    ],
)
def test_a_node_that_is_slow_with_two_partners_is_named(
    failures: Sequence[tuple[str, str]], nodes: set[str], either: set[frozenset[str]]
) -> None:
    bad = {3 + i: [slow(*path)] for i, path in enumerate(failures)}
    culprit = judged(soaked(60, bad))["rounds with a failure"].culprit
    assert culprit is not None
    assert culprit.nodes == nodes
    assert culprit.either == either
    assert set(culprit.parts.paths) == set(failures)


def test_a_soak_that_was_cut_says_so_and_is_inconclusive() -> None:
    found = judged(soaked(12), cut="interrupted (SIGTERM)")
    assert found["rounds with a failure"].verdict is Verdict.PASS
    left = found["time under load"]
    assert left.verdict is Verdict.INCONCLUSIVE
    assert "interrupted (SIGTERM): 12 rounds, 720 of 3600 s" in left.note
    assert judged([])["time under load"].verdict is Verdict.INCONCLUSIVE


THROTTLED = {"node1": [1.0] * 20 + [0.7] * 60}


@pytest.mark.parametrize(
    ("rounds", "speed", "verdict", "nodes"),
    [
        (80, {}, Verdict.PASS, set[str]()),
        (80, THROTTLED, Verdict.FAIL, {"node1"}),
        (80, {"node1": [1.0 - 0.004 * i for i in range(80)]}, Verdict.FAIL, {"node1"}),
        (80, {"node1": [1.0] * 79 + [0.2]}, Verdict.PASS, set[str]()),  # one disturbed round
        (80, {"node1": [0.7] * 80}, Verdict.PASS, set[str]()),  # slow from the beginning
        (80, {node: [1.0] * 20 + [0.7] * 60 for node in NODES}, Verdict.FAIL, set[str]()),
        (10, {"node1": [1.0] * 5 + [0.5] * 5}, Verdict.FAIL, {"node1"}),
        (5, {}, Verdict.INCONCLUSIVE, set[str]()),
    ],
)
def test_a_node_that_gets_slower_is_named(
    rounds: int, speed: Mapping[str, Sequence[float]], verdict: Verdict, nodes: set[str]
) -> None:
    found = judged(soaked(rounds, speed=speed), {"for": "1 h"})
    one = found["matmul, last quarter over first, worst node"]
    assert one.verdict is verdict, one
    assert (one.culprit.nodes if one.culprit else set()) == nodes


def test_noise_calls_a_healthy_node_slower_in_less_than_one_of_a_hundred_soaks() -> None:
    """Each with a tenth of tolerated loss, and noise that has that much by itself."""
    called = {80: 0, 12: 0}
    for rounds in called:
        for seed in range(300):
            some = soaked(rounds, noise=0.08, seed=seed)
            called[rounds] += any(one.culprit for one in drift(some, None))
    assert all(count <= 3 for count in called.values()), called


def correlated(rounds: int, by: float, draw: random.Random) -> list[float]:
    """Factors that differ by 2 %, each like the one before."""
    at, found = draw.gauss(0, 1), list[float]()
    for _ in range(rounds):
        found.append(1 + 0.02 * at)
        at = by * at + (1 - by**2) ** 0.5 * draw.gauss(0, 1)
    return found


@pytest.mark.parametrize("by", [0.5, 0.7])
def test_rounds_that_are_like_the_one_before_accuse_as_rarely(by: float) -> None:
    promise = SoakCriterion.model_validate({"for": "1 h", "slower_at_most_fraction": 1e-6})
    called, draw = 0, random.Random(7)
    for _ in range(400):
        speed = {node: correlated(21, by, draw) for node in NODES}
        called += any(one.culprit for one in drift(soaked(21, speed=speed, noise=1e-6), promise))
    assert called <= 8, "4 are expected; without the correlation it is 20 and more"


def test_correlation_of_rounds() -> None:
    draw = random.Random(3)
    many = [correlated(60, 0.5, draw) for _ in range(9)]
    assert correlation(many) == pytest.approx(0.5, abs=0.1)
    assert correlation([[1.0] * 20]) == correlation([]) == 0.0
    assert correlation([[1.0, 2.0] * 10]) == 0.0, "alternating values say nothing of drift"


def test_too_few_rounds_to_compare_are_only_recorded_where_nothing_is_promised() -> None:
    one = judged(soaked(5))["matmul, last quarter over first, worst node"]
    assert (one.verdict, one.value) == (None, None)
    assert "5 rounds, of which 4 can be compared; 7 are needed" in one.note


def test_rounds_outlive_the_evidence_and_one_that_is_not_whole_does_not_count() -> None:
    unknown = Failure("ranks of a round", "3 of 4 died", Culprit("rank 0 or rank 1"), symptom=True)
    rounds = soaked(5, {2: [FLAP, slow("node0", "node3"), WAITS], 4: [unknown]})
    rounds[2] = replace(rounds[2], unknown=("errors, worst fabric port",))
    rows = [began(), asked(600.0), *(row for one in rounds for row in one.numbered())]
    plain = [rows_from_json(values)[1] for values in rows_to_json("soak", rows)]
    kept = kept_in(plain)
    assert (list(kept.rounds), kept.ended_s, kept.soaked_s) == (rounds, None, 300.0)
    assert kept.asked_s == 600.0
    assert kept.rounds[1].failures[1].culprit.parts == slow("node0", "node3").culprit.parts
    assert kept_in(plain[:-1]).rounds == tuple(rounds[:-1])
    assert kept_in([*plain, ended(300.0)]).ended_s == 300.0
    assert kept_in([*plain, ended(300.0), began()]).rounds == ()


@pytest.mark.parametrize(
    ("since", "verdicts"), [(0, {Verdict.INCONCLUSIVE}), (2, {Verdict.INCONCLUSIVE}), (3, set())]
)
def test_what_is_not_known_in_most_rounds_has_not_passed(
    since: int, verdicts: set[Verdict]
) -> None:
    name = "failures in the kernel log"
    rounds = [replace(o, unknown=(name,) if o.number > since else ()) for o in soaked(5)]
    assert {one.verdict for of, one in judged(rounds).items() if of == name} == verdicts


def test_charts_show_rates_by_time_and_when_what_failed() -> None:
    lines, timeline = charts(soaked(400, {7: [FLAP]}))
    assert [series.name for series in lines.series] == list(NODES)  # type: ignore[union-attr]
    assert all(len(series.points) == 200 for series in lines.series)  # type: ignore[union-attr]
    assert timeline.lanes == ("all nodes", "node2")  # type: ignore[union-attr]
    assert [m.at_s for m in timeline.moments] == [360.0]  # type: ignore[union-attr]

"""Transfers of a round's pairs: which are partners, which are tried again, what is judged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_mnode.criteria.soak import rounds
from pytest_mnode.criteria.soak.found import Measured, Plan, Rate
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.locating.pairs import MeasuredRound, chunk_bytes
from pytest_mnode.measuring.locating.rounds import Pair, Reading, Round, circle
from pytest_mnode.rank.world import World
from pytest_mnode.spec import default_spec_path, load_spec

RACK = load_spec(default_spec_path())
SPEC = RACK.model_copy(update={"fabric": RACK.fabric.model_copy(update={"nics_per_node": 2})})
"""A rank has both NICs of its node."""
assert SPEC.criteria.fabric is not None
assert SPEC.criteria.fabric.send_recv_busbw is not None
LEAST = 2 * rounds.STANDS_OUT * SPEC.criteria.fabric.send_recv_busbw.nic_mbits_s(SPEC.fabric)
EARLIER = Rate("matmul", "n0", 5.0, "GFLOP/s")
WORLD = World(0, 4, 0, 1, "n0", ("n0", "n1", "n2", "n3"))
FAST, SLOW = 1e6, 1.0
"""Mbit/s."""
Rates = Callable[[Pair, int], float]


def ran(
    monkeypatch: pytest.MonkeyPatch,
    rate: Rates = lambda *_: FAST,
    wrong: Pair | None = None,
    number: int = 1,
    step_s: float = 0.1,
) -> tuple[Measured, list[set[Pair]]]:
    """What a round finds, and the flows of its steps. rate: of a pair at its try."""
    steps: list[set[Pair]] = []

    class Pairs:
        def __init__(self, _: object, size_bytes: int, __: object) -> None:
            assert size_bytes == chunk_bytes(2 * SPEC.fabric.line_rate_mbits_s)

        def measure(self, step: Round) -> MeasuredRound:
            flows = [(flow.sender, flow.receiver) for flow in step.flows]
            steps.append({*flows})
            tries = {flow: sum(flow in one for one in steps) for flow in flows}
            readings = (
                Reading(*flow, 0, rate(flow, tries[flow]), False, flow == wrong) for flow in flows
            )
            return MeasuredRound(tuple(readings), step_s * len(steps))

    monkeypatch.setattr(rounds, "Pairs", Pairs)
    found = Measured(rates=[EARLIER])
    plan = Plan(number, 9, SPEC, reads_log=False)
    rounds._pairs(plan, WORLD, torch.device("cpu"), found)
    assert found.rates.pop(0) is EARLIER
    return found, steps


def test_every_node_meets_another_partner_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    partners = [ran(monkeypatch, number=number)[0].partners for number in range(1, 5)]
    met = [{frozenset(pair) for pair in pairs} for pairs in partners]
    assert len(set.union(*met)) == 6, "all pairs, in three rounds"
    assert partners[0] == partners[3] == circle(4)[0]
    assert met[0] != met[1] != met[2]


@pytest.mark.parametrize(("step_s", "steps"), [(0.1, 2), (0.099, 4), (0.05, 4)])
def test_transfers_last_as_long_as_they_should(
    step_s: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, done = ran(monkeypatch, step_s=step_s)
    assert len(done) == steps
    assert found.pairs_s == pytest.approx(step_s * steps)
    assert done[1] == {pair[::-1] for pair in done[0]} != done[0]
    assert [(one.node, one.value) for one in sorted(found.rates, key=lambda one: one.node)] == [
        (node, FAST) for node in WORLD.nodes
    ]
    wrong, [slow] = found.measurements[0], found.slow
    assert (wrong.verdict, wrong.culprit, slow.verdict, slow.culprit) == (
        "pass",
        None,
        "pass",
        None,
    )


@pytest.mark.parametrize(
    ("tried", "verdict", "usual"),
    [
        ([SLOW, FAST], "pass", (SLOW + FAST) / 2),
        ([SLOW, 2 * SLOW, FAST], "pass", 2 * SLOW),
        ([SLOW, 3 * SLOW, 2 * SLOW], "fail", 2 * SLOW),
        ([LEAST], "pass", LEAST),
        ([LEAST - 1] * 3, "fail", LEAST - 1),
    ],
)
def test_a_path_is_slow_if_all_its_tries_were(
    tried: list[float], verdict: str, usual: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = ran(monkeypatch)[0].partners

    def rate(pair: Pair, number: int) -> float:
        return tried[number - 1] if pair == first else FAST

    found, steps = ran(monkeypatch, rate)
    assert steps[2:] == [{first}, {first[::-1]}] * (len(tried) - 1)
    [slow] = found.slow
    assert (slow.verdict, slow.value) == (verdict, verdict == "fail")
    assert nodes_of(slow) == ({WORLD.nodes[at] for at in first} if slow.value else set())
    assert not slow.value or f"{max(tried):.4g} Mbit/s" in str(slow.culprit)
    expected = dict.fromkeys(first, usual) | dict.fromkeys(other, FAST)
    assert {one.node: one.value for one in found.rates} == {
        WORLD.nodes[at]: value for at, value in expected.items()
    }


def test_a_path_that_was_fast_once_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found, steps = ran(monkeypatch, lambda _, number: FAST if number == 1 else SLOW, step_s=0.05)
    assert len(steps) == 4
    assert found.slow[0].value == 0


def test_the_ranks_of_a_node() -> None:
    world = World(0, 9, 0, 3, "n0", ("n0", "n1", "n2"))
    assert [rounds._ranks(world, node) for node in (0, 2)] == [[0, 1, 2], [6, 7, 8]]


def test_checked_calls_are_counted() -> None:
    found = Measured()
    for calls in (4, 3):
        rounds._checked(found, "sums", calls)
    assert found.checked == {"sums": 7}


def test_the_path_of_wrong_bytes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, _ = ran(monkeypatch)[0].partners
    found, _ = ran(monkeypatch, wrong=pair[::-1])
    [wrong] = found.measurements
    assert (wrong.verdict, wrong.value) == ("fail", 1)
    assert nodes_of(wrong) == {WORLD.nodes[at] for at in pair}


def nodes_of(one: Measurement) -> set[str]:
    culprit = one.culprit
    return set() if culprit is None else {*culprit.nodes}.union(*culprit.either)

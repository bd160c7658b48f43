"""Hundreds of random clusters with faults and noise: exactly the faults are found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.simulated import (
    BOUND_MBITS_S,
    KINDS,
    Case,
    Fabric,
    Fault,
    Noise,
    before_all_pairs,
    locate,
    random_faults,
)
from pytest_mnode.measuring.locating.diagnosis import Diagnosis
from pytest_mnode.measuring.locating.rounds import Reading, Round

QUIET = Noise(spread=0.02, disturbed=0.0)
AIM = 55
"""Tests for 232 nodes and 5 faults, of which one published scheme needs about as many."""


def _cases(
    nodes: int, faults: int, cases: int, *, rails: int = 1, noise: Noise | None = None
) -> list[Case]:
    found = []
    for seed in range(cases):
        wrong = random_faults(nodes, rails, faults, KINDS, seed, on_ring=nodes > 16)
        fabric = Fabric(nodes, rails, wrong, noise or Noise(), seed)
        case = locate(fabric, before_all_pairs)
        assert not case.missed, (seed, case.missed, case.blamed)
        assert not case.wrong, (seed, case.wrong, wrong)
        found.append(case)
    return found


@pytest.mark.parametrize(
    ("nodes", "faults", "rails", "cases"),
    [
        (3, 1, 1, 50),
        (4, 0, 1, 50),
        (4, 1, 2, 50),
        (4, 2, 1, 50),
        (7, 2, 1, 50),
        (16, 3, 2, 15),
        (16, 5, 1, 15),
        (17, 3, 1, 15),
        (64, 0, 1, 5),
        (64, 5, 2, 8),
    ],
)
def test_every_fault_is_found_and_no_healthy_node_accused(
    nodes: int, faults: int, rails: int, cases: int
) -> None:
    _cases(nodes, faults, cases, rails=rails)


def test_five_faults_of_232_nodes_are_found_with_fewer_tests_than_published() -> None:
    assert max(case.tests for case in _cases(232, 5, 20)) < AIM


def test_pairs_that_slow_each_other_are_cleared() -> None:
    spreading = Noise(leaf=16)
    _cases(16, 1, 20, noise=spreading)
    _cases(128, 3, 20, rails=2, noise=spreading)


def test_a_path_outside_every_ring_is_found_if_all_pairs_are_tried() -> None:
    fault = Fault("one-way path", 3, 27, None, 300.0)
    without = locate(Fabric(40, 1, [fault], QUIET, 0), before_all_pairs)
    assert without.missed == (fault,)  # and no other path was blamed for it
    assert without.blamed.nobody
    case = locate(Fabric(40, 1, [fault], QUIET, 0))
    assert (case.missed, case.wrong) == ((), ())


def _stopped(faults: Sequence[Fault], nodes: int, rounds: int) -> Case:
    return locate(Fabric(nodes, 1, faults, QUIET, 0), lambda fabric, step: fabric.rounds >= rounds)


@pytest.mark.parametrize("nodes", [4, 36])
def test_a_search_at_its_time_limit_accuses_no_healthy_node(nodes: int) -> None:
    faults = [Fault("node", 2, None, None, 200.0), Fault("path", 0, 1, None, 400.0)]
    done = locate(Fabric(nodes, 1, faults, QUIET, 0))
    assert not done.missed
    named = 0
    for rounds in range(min(done.rounds, 40)):
        case = _stopped(faults, nodes, rounds)
        assert case.rounds == rounds
        assert not [wrong for wrong in case.wrong if "whole" not in wrong]
        named = max(named, sum(node.confirmed for node in case.blamed.nodes))
    assert named == 1


def test_a_slow_node_that_also_has_a_slow_path() -> None:
    faults = [Fault("node", 3, None, None, 500.0), Fault("path", 2, 3, None, 100.0)]
    case = locate(Fabric(6, 1, faults, QUIET, 0))
    assert (case.missed, case.wrong) == ((), ())


def test_a_fabric_slow_as_a_whole_is_not_blamed_on_nodes() -> None:
    for nodes in (4, 16, 40):
        slow = [Fault("node", node, None, None, 400.0) for node in range(nodes)]
        blame = _blame(nodes, slow)
        assert blame.too_slow_rails == (0,)
        assert (blame.nodes, blame.paths) == ((), ())


def test_most_nodes_slow_in_different_ways() -> None:
    slow = [Fault("tx", 0, None, None, 100.0), Fault("rx", 1, None, None, 200.0),
            Fault("node", 2, None, None, 300.0)]  # fmt: skip
    case = locate(Fabric(5, 1, slow, QUIET, 0))
    assert (case.missed, case.wrong) == ((), ())


def _blame(nodes: int, faults: Sequence[Fault]) -> Diagnosis:
    return locate(Fabric(nodes, 1, faults, QUIET, 0), before_all_pairs).blamed


class _Shared(Fabric):
    """All pairs together get no more bandwidth than one alone."""

    def measure(self, step: Round) -> list[Reading]:
        count = len(step.flows)
        return [
            Reading(r.sender, r.receiver, r.rail, r.mbits_s / count, r.alone)
            for r in super().measure(step)
        ]


@pytest.mark.parametrize("nodes", [4, 16, 40])
def test_pairs_that_share_a_link_are_measured_alone(nodes: int) -> None:
    case = locate(_Shared(nodes, 1, [], QUIET, 0), before_all_pairs)
    assert not [node for node in case.blamed.nodes if node.confirmed]
    assert case.blamed.reference_mbits_s == pytest.approx((956,), rel=0.1)


def test_the_simulation_detects_a_broken_search() -> None:
    """The tests above would see this fault as missed."""
    fault = Fault("node", 1, None, None, BOUND_MBITS_S * 1.05)  # not slow by any bound
    case = locate(Fabric(4, 1, [fault], QUIET, 0))
    assert case.missed == (fault,)

"""Latencies of pairs, and the nodes that are slow by them."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path
from runpy import run_path

import pytest

from pytest_mnode.criteria.fabric import judge_latencies
from pytest_mnode.measuring.latency import Latencies
from tests.measuring.sweeps import CPU, SPEC, WORLD

BASE_S = 40e-6


def _of(nodes: int, slow: dict[int, float], seed: int = 1) -> Latencies:
    """Healthy times of 40 µs ± 20 %, and of these nodes' pairs so many times as long."""
    chance = random.Random(seed)
    by_pair = {
        (a, b): BASE_S * chance.uniform(0.8, 1.2) * max(slow.get(a, 1), slow.get(b, 1))
        for a, b in combinations(range(nodes), 2)
    }
    return Latencies(8, 3, 20e-6, by_pair)


@pytest.mark.parametrize("nodes", [3, 4, 16, 64])
@pytest.mark.parametrize("slow", [{}, {1: 10.0}, {0: 5.0, 2: 30.0}])
def test_slow_nodes_are_named_and_no_others(nodes: int, slow: dict[int, float]) -> None:
    slow = {} if nodes < 4 and len(slow) > 1 else slow
    names = [f"n{index}" for index in range(nodes)]
    [one] = judge_latencies([_of(nodes, slow)], names)
    assert one.passed is not bool(slow)
    assert (str(one.culprit) if one.culprit else "") == "; ".join(f"n{i}" for i in sorted(slow))


def test_one_slow_path_and_differences_of_distance_blame_no_node() -> None:
    far = {pair: time_s / 10 for pair, time_s in _of(4, {1: 4.0}).by_pair.items()}
    assert Latencies(8, 3, 20e-6, far).slow == []
    path = {**_of(4, {}).by_pair, (0, 1): 0.01}
    assert Latencies(8, 3, 20e-6, path).slow == []


def test_two_nodes_leave_the_question_open_and_certify_the_rest() -> None:
    """A plain skip would make the criterion inconclusive for every cluster of two nodes."""
    suite = run_path(str(Path(__file__).parents[2] / "acceptance/test_fabric.py"))
    ask = suite["test_small_messages_are_as_fast_as_between_other_nodes"]
    with pytest.raises(pytest.skip.Exception, match="not promised by the spec"):
        ask(WORLD, CPU, SPEC, None)

"""Rounds have disjoint pairs, and together cover the wanted pairs."""

from __future__ import annotations

from itertools import combinations

import pytest

from pytest_mnode.measuring.locating.rounds import (
    Flow,
    both_ways,
    circle,
    group_sizes,
    packed,
    ring,
)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 15, 16, 17])
def test_the_circle_covers_every_pair_once_in_the_fewest_rounds(count: int) -> None:
    turns = circle(count)
    assert len(turns) == count - 1 + count % 2
    met = [frozenset(pair) for turn in turns for pair in turn]
    assert sorted(map(sorted, met)) == [list(pair) for pair in combinations(range(count), 2)]
    for turn in turns:
        assert len({node for pair in turn for node in pair}) == 2 * len(turn) == count - count % 2


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_nodes_have_no_rounds(count: int) -> None:
    assert [pair for turn in circle(count) for pair in turn] == []
    assert ring(range(count)) == []


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_a_ring_is_cut_into_disjoint_neighbours(count: int) -> None:
    turns = ring(range(10, 10 + count))
    edges = {frozenset(pair) for turn in turns for pair in turn}
    assert edges == {frozenset((10 + i, 10 + (i + 1) % count)) for i in range(count)}
    assert len(turns) == (1 if count == 2 else 2 + count % 2)
    for turn in turns:
        assert len({node for pair in turn for node in pair}) == 2 * len(turn)


@pytest.mark.parametrize(("nodes", "groups"), [(17, 4), (64, 8), (232, 15), (1024, 32)])
def test_groups_have_the_size_of_the_square_root(nodes: int, groups: int) -> None:
    sizes = group_sizes(nodes)
    assert (len(sizes), sum(sizes)) == (groups, nodes)
    assert max(sizes) - min(sizes) <= 1


def test_each_direction_is_a_separate_round_of_one_test() -> None:
    there, back = both_ways([(0, 1), (2, 3)], (0, 1), 2, "all pairs")
    assert there.flows == (Flow(0, 1, (0, 1)), Flow(2, 3, (0, 1)))
    assert back.flows == (Flow(1, 0, (0, 1)), Flow(3, 2, (0, 1)))
    assert (there.tests, back.tests) == (2, 0)


def test_flows_are_packed_into_rounds_without_sharing_a_node() -> None:
    flows = [Flow(0, 1), Flow(1, 0), Flow(2, 3), Flow(3, 0), Flow(1, 2)]
    rounds = packed(flows)
    assert rounds == [[Flow(0, 1), Flow(2, 3)], [Flow(1, 0)], [Flow(3, 0), Flow(1, 2)]]

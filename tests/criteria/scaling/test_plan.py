"""Groups of nodes that train together, and their amount of work."""

from __future__ import annotations

import pytest

from pytest_mnode.criteria.scaling.plan import counts_up_to, groups_of
from pytest_mnode.errors import UsageError
from tests.criteria.scaling import made


@pytest.mark.parametrize(
    ("nodes", "counts"),
    [(2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))],
)
def test_node_counts_end_with_all_nodes(nodes: int, counts: tuple[int, ...]) -> None:
    assert counts_up_to(nodes) == counts


def test_two_rounds_train_all_nodes_and_later_ones_make_no_more_groups() -> None:
    for nodes in range(2, 70):
        plan = made.plan(nodes)
        rounds = [[turn.groups for turn in plan.turns(number)] for number in range(9)]
        for count in plan.counts:
            of_two = {g for groups in (*rounds[0], *rounds[1]) for g in groups if len(g) == count}
            assert {node for group in of_two for node in group} == {*range(nodes)}
            assert all(g in of_two for r in rounds for one in r for g in one if len(g) == count)
    turns = [turn for number in range(9) for turn in made.plan(64).turns(number)]
    assert len({group for turn in turns for group in turn.groups}) == 189


def test_groups_are_disjoint_whatever_their_offset() -> None:
    assert groups_of(2, 4, 0) == ((0, 1), (2, 3))
    assert groups_of(2, 4, 1) == ((1, 2), (0, 3))
    assert groups_of(4, 6, 1) == ((1, 2, 3, 4),)
    assert groups_of(4, 6, 4) == ((0, 1, 4, 5),)
    for nodes in range(1, 20):
        for count in counts_up_to(nodes):
            for offset in range(5):
                groups = groups_of(count, nodes, offset)
                members = [node for group in groups for node in group]
                assert len(groups) == nodes // count
                assert len(set(members)) == len(members) == count * len(groups)
                assert {len(group) for group in groups} == {count}


def test_each_round_has_every_node_count_once_in_another_order() -> None:
    plan = made.plan(4)
    orders = [[turn.count for turn in plan.turns(number)] for number in range(3)]
    assert orders == [[1, 2, 4], [2, 4, 1], [4, 1, 2]]
    assert all(turn.round == 1 for turn in plan.turns(1))


def test_weak_scaling_gives_each_rank_the_same_work() -> None:
    plan = made.plan(4, per_node=2, samples_per_rank=3)
    assert [plan.group_batch(n) for n in plan.counts] == [6, 12, 24]
    assert [plan.group_compute_s(n) for n in plan.counts] == pytest.approx([0.2] * 3)
    assert plan.unequal == ()


def test_strong_scaling_keeps_the_total_work_constant() -> None:
    plan = made.plan(4, samples_per_rank=3, kind="strong")
    assert [plan.group_batch(n) for n in plan.counts] == [12, 12, 12]
    assert [plan.group_compute_s(n) for n in plan.counts] == pytest.approx([0.8, 0.4, 0.2])
    assert made.plan(3, samples_per_rank=1, kind="strong").unequal == (2,)


def test_one_node_is_refused() -> None:
    with pytest.raises(UsageError, match="one node scales to nothing; give --mnode-nodes=2"):
        made.plan(1)

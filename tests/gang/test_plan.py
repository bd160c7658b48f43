"""Sizes of gangs, the nodes that they are limited to, and jobs that fill the other nodes."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.gang.engine import Capacity
from pytest_mnode.gang.experiments import Plan
from pytest_mnode.spec.gang import GangCriterion


def planned(there: int, free: int | None = None, **promised: Any) -> Plan:
    names = tuple(f"node{n}" for n in range(there))
    promise = GangCriterion.model_validate(promised)
    return Plan.of(promise, Capacity(names, names if free is None else names[:free]))


@pytest.mark.parametrize(
    ("nodes", "promised", "size", "arena", "fillers"),
    [
        (2, {}, 2, 2, (1,)),
        (3, {}, 2, 3, (1, 1)),
        (4, {}, 3, 4, (1, 1)),
        (7, {}, 4, 7, (1, 1, 1, 1)),
        (12, {}, 7, 12, (1, 1, 1, 3)),
        (1000, {}, 501, 1000, (1, 1, 1, 497)),
        # Room for one gang only if it is limited to so few nodes that two do not fit.
        (16, {"nodes": 3}, 3, 5, (1, 1, 1)),
        (4, {"nodes": 4}, 4, 4, (1,)),
        (8, {"among": ["node1", "node5", "node6"]}, 2, 3, (1, 1)),
    ],
)
def test_room_for_one_gang_and_not_for_two(
    nodes: int, promised: dict[str, Any], size: int, arena: int, fillers: tuple[int, ...]
) -> None:
    found = planned(nodes, **promised)
    assert (found.size, len(found.arena), found.fillers) == (size, arena, fillers)
    assert size <= len(found.arena) < 2 * size
    assert sum(found.fillers) + size - 1 == len(found.arena)
    if "among" in promised:
        assert list(found.arena) == promised["among"]


@pytest.mark.parametrize(
    ("nodes", "free", "promised", "text"),
    [
        (4, 0, {}, "0 of 4 nodes are free, and a gang needs 2; nodes in the allocation of"),
        (4, 2, {"nodes": 3}, "2 of 4 nodes are free, and a gang needs 3"),
        (4, 2, {"among": ["node1", "node2"]}, "criteria.gang.among: node2 not free; give nodes"),
        (2, 2, {"among": ["node1", "nodex"]}, "criteria.gang.among: nodex: no such node; the sch"),
    ],
)
def test_clusters_without_room(nodes: int, free: int, promised: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(nodes, free, **promised)
    assert str(caught.value).startswith(text)


def test_orders_follow_from_the_seed_and_the_round() -> None:
    names = ["a", "b", "c", "d"]
    found = {tuple(planned(4, seed=1).order(f"race {n}", names)) for n in range(6)}
    assert len(found) > 2
    assert all(sorted(one) == names for one in found)
    one, other = planned(4, seed=1), planned(4, seed=2)
    assert one.order("race 1", names) == planned(4, seed=1).order("race 1", names)
    assert [one.order(f"race {n}", names) for n in range(4)] != [
        other.order(f"race {n}", names) for n in range(4)
    ]

"""The meshes that are tried, and the ranks that belong to their groups."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.checks.groups.layout import Layout, asked_layout, layouts, plan_layouts
from pytest_mnode.errors import UsageError
from pytest_mnode.rank.world import World
from pytest_mnode.spec.checks import GroupsCriterion


def test_groups_of_three_dimensions() -> None:
    layout = Layout.of(pp=2, dp=3, tp=2)
    assert layout.groups("tp") == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11))
    assert layout.groups("dp") == ((0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9, 11))
    assert layout.groups("pp") == ((0, 6), (1, 7), (2, 8), (3, 9), (4, 10), (5, 11))
    assert layout.groups("pp", "tp") == ((0, 1, 6, 7), (2, 3, 8, 9), (4, 5, 10, 11))
    assert layout.group_of(9, "pp", "dp", "tp") == tuple(range(12))
    assert str(layout) == "pp 2 × dp 3 × tp 2"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_groups_are_the_rows_of_an_array_of_ranks(sizes: list[int]) -> None:
    names = tuple("abcd"[: len(sizes)])
    layout = Layout(names, tuple(sizes))
    ranks = torch.arange(layout.size).reshape(sizes)
    for axis, name in enumerate(names):
        rows = ranks.movedim(axis, -1).reshape(-1, sizes[axis]).tolist()
        assert sorted(map(list, layout.groups(name))) == sorted(rows)


@pytest.mark.parametrize(
    ("nodes", "per_node", "planned"),
    [
        (4, 2, ["dp 4 × tp 2", "pp 2 × dp 2 × tp 2"]),
        (1, 2, ["dp 1 × tp 2", "pp 2 × dp 1 × tp 1"]),
        (3, 2, ["dp 3 × tp 2", "pp 3 × dp 1 × tp 2"]),
        (8, 2, ["dp 8 × tp 2", "pp 2 × dp 4 × tp 2"]),
        (2, 8, ["dp 2 × tp 8", "pp 2 × dp 1 × tp 8", "pp 2 × dp 2 × tp 4"]),
        (1, 8, ["dp 1 × tp 8", "pp 2 × dp 4 × tp 1", "pp 1 × dp 2 × tp 4"]),
        (4, 1, ["dp 4 × tp 1", "pp 2 × dp 2 × tp 1"]),
        (1, 1, ["dp 1 × tp 1", "pp 1 × dp 1 × tp 1"]),
    ],
)
def test_planned_meshes(nodes: int, per_node: int, planned: list[str]) -> None:
    found = plan_layouts(nodes, per_node)
    assert [str(layout) for layout in found] == planned
    assert {layout.size for layout in found} == {nodes * per_node}


@given(st.integers(1, 40), st.integers(1, 16))
def test_tp_is_planned_inside_a_node(nodes: int, per_node: int) -> None:
    for layout in plan_layouts(nodes, per_node):
        assert layout.size == nodes * per_node
        for group in layout.groups("tp"):
            assert len({rank // per_node for rank in group}) == 1


def test_the_spec_names_meshes() -> None:
    world = World(0, 16, 0, 8, "node0", ("node0", "node1"))
    promise = GroupsCriterion(meshes=({"pp": 2, "dp": "rest", "tp": 4}, {"dp": "rest"}))
    assert [str(one) for one in layouts(promise, world)] == ["pp 2 × dp 2 × tp 4", "dp 16"]
    assert layouts(GroupsCriterion(), world) == plan_layouts(2, 8)


def test_any_name_is_valid_for_a_dimension() -> None:
    layout = asked_layout({"cls": 2, "self": "rest"}, 4)
    assert (layout.names, layout.sizes) == (("cls", "self"), (2, 2))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"dp": 2, "tp": 3}, "mesh {dp: 2, tp: 3} needs 6 ranks, and there are 8; "),
        ({"dp": "rest", "tp": 3}, "mesh {dp: rest, tp: 3} needs a multiple of 3 ranks, and there "),
        ({"dp": 2, "tp": 2}, "mesh {dp: 2, tp: 2} needs 4 ranks, and there are 8; "),
        ({"dp": 16}, "mesh {dp: 16} needs 16 ranks, and there are 8; give other sizes, or rest"),
    ],
)
def test_a_mesh_that_does_not_fit(sizes: Mapping[str, int | str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        asked_layout(sizes, 8)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("names", "sizes"), [(("a", "a"), (2, 2)), (("a",), (2, 2)), (("a",), (0,)), ((), ())]
)
def test_invalid_layouts_are_refused(names: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes"):
        Layout(names, sizes)

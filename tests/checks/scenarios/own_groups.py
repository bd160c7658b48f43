"""A test's own groups, checked in ranks. Run by test_in_ranks.py."""
# Written like a user's test, without types.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from pytest_mnode.checks import groups
from pytest_mnode.measure import Measure
from pytest_mnode.rank.world import World

pytestmark = [
    pytest.mark.mnode(nodes=2, min_procs_per_node=2),
    pytest.mark.usefixtures("process_group"),
]
TP = {"tp": [[0, 1], [2, 3]]}


@pytest.fixture
def made() -> Any:
    made = []
    yield lambda ranks: made.append(dist.new_group(ranks)) or made[-1]
    for group in made:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def test_groups_of_ones_own(
    world: World, device: torch.device, measure: Measure, made: Any
) -> None:
    assert world.size == 4
    both = [made([0, 1]), made([2, 3])]
    mine = {"tp": both[world.rank // 2]}
    for found in groups.members(mine, world, device, expected=TP):
        assert found.passed, found
    assert groups.collectives(mine, world, device, expected=TP).passed
    with pytest.raises(TypeError, match="say which groups there should be"):
        groups.members(mine, world, device)


def test_a_group_that_only_some_are_in(world: World, device: torch.device, made: Any) -> None:
    stage = {"embedding": made([0, 3])}
    first = {"embedding": [[0, 3]]}
    assert all(found.passed for found in groups.members(stage, world, device, expected=first))
    assert groups.collectives(stage, world, device, expected=first).passed


def test_members_of_a_group_that_are_in_unequally_many_others(
    world: World, device: torch.device, made: Any
) -> None:
    every = {"embedding": [[0, 3]], "dp": [[0, 1], [2, 3]], "last": [[1, 2, 3]]}
    mine = {}
    for name, of_name in every.items():
        for ranks in of_name:
            group = made(ranks)
            if world.rank in ranks:
                mine[name] = group
    assert all(found.passed for found in groups.members(mine, world, device, expected=every))
    wrong = groups.collectives(mine, world, device, expected=every)
    assert wrong.passed, wrong
    wrong = groups.together({"a": mine}, world, device, expected={"a": every})
    assert wrong.passed, wrong


def test_a_wrong_group_is_named_and_nobody_waits(
    world: World, device: torch.device, made: Any
) -> None:
    both = [made([0, 1]), made([2, 3])]
    other = made([1, 3])
    mine = {"tp": other if world.rank == 3 else both[world.rank // 2]}
    members, order = groups.members(mine, world, device, expected=TP)
    assert members.culprit == "rank 3 on node1 is in tp [1, 3], expected [2, 3]"
    assert order.value is None
    values = groups.collectives(mine, world, device, expected=TP)
    assert values.value is None
    assert "ranks disagree on who is in it" in values.note
    others = {"all": made([0, 1, 2, 3])}
    right = {"a": TP, "b": {"all": [[0, 1, 2, 3]]}}
    values = groups.together({"a": mine, "b": others}, world, device, expected=right)
    assert "ranks disagree on who is in it" in values.note


def test_a_mesh_of_the_other_way_round(world: World, device: torch.device) -> None:
    layout = groups.Layout.of(tp=2, dp=2)
    with groups.mesh_of(layout, device) as mesh:
        assert all(found.passed for found in groups.members(mesh, world, device))
        wrong = groups.inside_node(mesh, world)
        assert wrong.culprit == "tp [0, 2] spans node0, node1; tp [1, 3] spans node0, node1"
        other = groups.members(mesh, world, device, expected=groups.Layout.of(dp=2, tp=2))
        assert other[0].value == 8


def test_one_rank_takes_two_group_results_for_each_other(
    world: World, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = dist.all_reduce

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = right(tensor, *args, **kwargs)
        if world.rank == 1:
            work.wait()
            tensor[5] += 1
        return work

    with groups.mesh_of(groups.Layout.of(dp=2, tp=2), device) as mesh:
        monkeypatch.setattr(dist, "all_reduce", all_reduce)
        wrong = groups.collectives(mesh, world, device)
    assert wrong.value == 2
    assert "rank 1 on node0: all_reduce in dp: position 5 is " in wrong.culprit


def test_no_names_no_layout(device: torch.device) -> None:
    with groups.mesh_of(groups.Layout.of(dp=4), device):
        mesh = init_device_mesh("cpu", (4,))
        with pytest.raises(ValueError, match="a mesh without names"):
            groups.members(mesh, None, device)

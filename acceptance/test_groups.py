"""Node software: do data, tensor and pipeline parallel groups have the right ranks?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_mnode import not_promised
from pytest_mnode.checks import groups
from pytest_mnode.errors import UsageError
from pytest_mnode.skipping import promised

if TYPE_CHECKING:
    import torch

    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

if "torch" in sys.modules:  # in the fork server, but not in the controller
    import pytest_mnode.checks.groups.check  # noqa: F401  once for all ranks

pytestmark = [
    pytest.mark.criterion,
    pytest.mark.stops("groups", only_hung=True),
    pytest.mark.mnode(min_procs_per_node=2),  # with fewer ranks, no group could stay inside a node
]
needs_group = pytest.mark.usefixtures("process_group")


@pytest.fixture
def layouts(world: World, spec: Spec) -> tuple[groups.Layout, ...]:
    """Meshes over the given nodes: those named by the spec, otherwise dp, tp and pp as they fit."""
    promise = promised(spec, "groups")
    try:
        return groups.layouts(promise, world)
    except UsageError as error:
        problem = str(error)
    pytest.fail(problem, pytrace=False)


@needs_group
def test_every_rank_is_in_the_right_groups(
    world: World, device: torch.device, layouts: tuple[groups.Layout, ...], measure: Measure
) -> None:
    """Node software: does each rank have the right group, position and peers in each dimension?"""
    for layout in layouts:
        with groups.mesh_of(layout, device) as mesh:
            measure.record(groups.members(mesh, world, device))


@needs_group
def test_collectives_inside_groups_are_right(
    world: World, device: torch.device, layouts: tuple[groups.Layout, ...], measure: Measure
) -> None:
    """Node software: are collectives inside groups and messages between stages right, both ways?"""
    for layout in layouts:
        with groups.mesh_of(layout, device) as mesh:
            measure.record(groups.collectives(mesh, world, device))


@needs_group
def test_groups_do_not_mix(
    world: World, device: torch.device, layouts: tuple[groups.Layout, ...], measure: Measure
) -> None:
    """Node software: are collectives right while all other groups of two meshes are busy?"""
    hybrid = groups.Layout.of(replicate=len(world.nodes), shard=world.local_size)
    with groups.mesh_of(layouts[-1], device) as one, groups.mesh_of(hybrid, device) as other:
        meshes = {str(layouts[-1]): one, str(hybrid): other}
        measure.record(groups.together(meshes, world, device))


@needs_group
def test_tensor_parallel_groups_stay_inside_a_node(
    world: World,
    device: torch.device,
    spec: Spec,
    layouts: tuple[groups.Layout, ...],
    measure: Measure,
) -> None:
    """Node software: are all ranks of each tensor parallel group on the same node?"""
    asked = promised(spec, "groups").inside_node
    having = [(one, names) for one in layouts if (names := one.wider_than_one(asked))]
    if not having:
        not_promised(f"groups of more than one rank along {' or '.join(asked) or 'any dimension'}")
    for layout, names in having:
        with groups.mesh_of(layout, device) as mesh:
            measure.record(groups.inside_node(mesh, world, names))


@needs_group
def test_slices_of_a_mesh_are_right(
    world: World, device: torch.device, layouts: tuple[groups.Layout, ...], measure: Measure
) -> None:
    """Node software: do slices of a mesh, and their flattened groups, have the right ranks?"""
    layout = max(layouts, key=lambda one: len(one.names))
    if len(layout.names) < 2:
        not_promised("a mesh of two dimensions or more")
    with groups.mesh_of(layout, device) as mesh:
        measure.record(groups.slices(mesh, world, device))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure)

"""Meshes made by torch, for as long as they are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_mnode.checks.groups.facts import Expected
from pytest_mnode.checks.groups.plan import Layout

Groups = Mapping[str, Any]
"""Process groups by name, those that this rank is in."""


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """What process groups this rank makes inside, by meshes or one by one, end with it."""
    before = _groups_there()
    try:
        yield
    finally:
        for group in _groups_there() - before:
            dist.destroy_process_group(group)


@contextlib.contextmanager
def mesh_of(layout: Layout, device: torch.device) -> Iterator[DeviceMesh]:
    """A DeviceMesh over all ranks, by init_device_mesh; its groups and its slices' end with it.

    All ranks call this.
    """
    with ending():
        yield init_device_mesh(device.type, layout.sizes, mesh_dim_names=layout.names)


def layout_of(mesh: DeviceMesh) -> Layout:
    """The layout that a mesh over all ranks should have, by its names and sizes.

    Raises ValueError for a mesh without names.
    """
    if mesh.mesh_dim_names is None:
        raise ValueError("a mesh without names; give init_device_mesh mesh_dim_names")
    return Layout(tuple(mesh.mesh_dim_names), tuple(mesh.shape))


def named(groups: DeviceMesh | Groups) -> dict[str, Any]:
    """The process groups of a mesh by dimension, or those given, that this rank is in."""
    if isinstance(groups, DeviceMesh):
        groups = {name: groups.get_group(name) for name in groups.mesh_dim_names or ()}
    absent = dist.GroupMember.NON_GROUP_MEMBER
    return {name: group for name, group in groups.items() if group not in (None, absent)}


def expected_in(groups: DeviceMesh | Groups, expected: Expected | Layout | None) -> Expected:
    """The groups there should be: as said, else those of the mesh's names and sizes.

    Raises TypeError where groups of one's own come without saying.
    """
    if expected is None:
        if not isinstance(groups, DeviceMesh):
            raise TypeError("say which groups there should be: expected={'tp': [[0, 1], [2, 3]]}")
        expected = layout_of(groups)
    if isinstance(expected, Layout):
        return {name: expected.groups(name) for name in expected.names}
    return expected


def _groups_there() -> frozenset[Any]:
    """All process groups of this rank but the default one."""
    from torch.distributed import distributed_c10d

    known = frozenset(distributed_c10d._world.pg_map)
    return known - {dist.group.WORLD}

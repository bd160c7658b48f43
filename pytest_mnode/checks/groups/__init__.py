"""Checks of process groups over several dimensions: their ranks, and collectives in them.

`judge` plans the meshes to try and the ranks of each group, and judges them, without torch. `check`
gathers the groups of all ranks, of a DeviceMesh or of a test's own making, and runs collectives in
them. They judge the software of the nodes, not speed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_mnode.checks.groups.judge import Layout, layouts

if TYPE_CHECKING:
    from pytest_mnode.checks.groups.check import (
        collectives,
        ending,
        inside_node,
        members,
        mesh_of,
        slices,
        together,
    )

__all__ = [
    "Layout",
    "collectives",
    "ending",
    "inside_node",
    "layouts",
    "members",
    "mesh_of",
    "slices",
    "together",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.check"), name)

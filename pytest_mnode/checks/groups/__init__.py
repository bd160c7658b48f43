"""Groups over several dimensions: who is in which, in what order, and do they talk right?

`plan` says which meshes to try and who belongs where, without torch; `made` has torch make them;
`check` asks all ranks of their groups, those of a DeviceMesh or of one's own making, and gathers
what each says; `judge` has the last word, from values to values. What is found is `Wrong`: a count
of which none is accepted, with those to blame. Nothing here measures speed: `bench` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.checks.groups.check import collectives, inside_node, members, slices, together
    from pytest_mnode.checks.groups.facts import Expected
    from pytest_mnode.checks.groups.made import ending, mesh_of
    from pytest_mnode.checks.groups.plan import Layout, layouts, plan_layouts
    from pytest_mnode.wrong import Wrong

__all__ = [
    "Expected",
    "Layout",
    "Wrong",
    "collectives",
    "ending",
    "inside_node",
    "layouts",
    "members",
    "mesh_of",
    "plan_layouts",
    "slices",
    "together",
]

_HOME = {
    "Expected": "facts",
    **dict.fromkeys(("ending", "mesh_of"), "made"),
    **dict.fromkeys(("Layout", "layouts", "plan_layouts"), "plan"),
    **dict.fromkeys(("collectives", "inside_node", "members", "slices", "together"), "check"),
}


def __getattr__(name: str) -> Any:
    if name == "Wrong":
        return import_module("pytest_mnode.wrong").Wrong
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

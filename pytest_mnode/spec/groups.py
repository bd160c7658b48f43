"""What is promised of process groups over several dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from pytest_mnode.spec.fields import Page, Some

Dimension = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Size = Some | Literal["rest"]


class GroupsCriterion(Page):
    """Data, tensor and pipeline parallel groups have the right ranks and sum right."""

    meshes: Annotated[tuple[Mapping[Dimension, Size], ...] | None, Field(min_length=1)] = None
    """Meshes to try: sizes by dimension, outermost first, such as {pp: 2, dp: rest, tp: 8}; one of
    them may be what is left of all ranks. Left out: tp inside a node, pp and dp over nodes."""
    inside_node: tuple[Dimension, ...] = ("tp",)
    """Dimensions whose groups stay inside a node."""

    @field_validator("meshes")
    @classmethod
    def _leaves_one_open(
        cls, meshes: tuple[Mapping[str, int | str], ...] | None
    ) -> tuple[Mapping[str, int | str], ...] | None:
        for mesh in meshes or ():
            if not mesh:
                raise ValueError("a mesh without a dimension; accepted: such as {dp: rest, tp: 8}")
            if sum(size == "rest" for size in mesh.values()) > 1:
                text = ", ".join(f"{name}: {size}" for name, size in mesh.items())
                raise ValueError(f"{{{text}}} leaves two open; accepted: rest for one of them")
        return meshes

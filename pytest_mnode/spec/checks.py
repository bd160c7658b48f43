"""What is promised of process groups over several dimensions, and of how data reaches ranks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pytest_mnode.spec.fields import Bytes, Count, Some, Text
from pytest_mnode.spec.inventory import Criterion
from pytest_mnode.spec.quantity import shown

_PLANNED = ("pp", "dp", "tp")
"""Dimensions of the meshes that are tried where the spec names none."""
_FORM = "sizes by name, such as {pp: 2, dp: rest, tp: 8}"


def _mesh(written: Any) -> Any:
    """The mesh as written. Raises ValueError that names the name or size which no mesh can have."""
    if not isinstance(written, dict) or not written:
        raise ValueError(f"{shown(written)}; accepted: {_FORM}")
    for name, size in written.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{shown(name)} is no name of a dimension; accepted: {_FORM}")
        whole = isinstance(size, int) and not isinstance(size, bool) and size >= 1
        if size != "rest" and not whole:
            raise ValueError(
                f"{name}: {shown(size)}; accepted: a whole number of 1 or more, or rest"
            )
    if sum(size == "rest" for size in written.values()) > 1:
        text = ", ".join(f"{name}: {size}" for name, size in written.items())
        raise ValueError(f"{{{text}}} leaves two open; accepted: rest for one of them")
    return written


Mesh = Annotated[
    Mapping[str, Annotated[int, Field(ge=1)] | Literal["rest"]], BeforeValidator(_mesh)
]


class GroupsCriterion(Criterion):
    """Data, tensor and pipeline parallel groups have the right ranks and sum right."""

    meshes: Annotated[tuple[Mesh, ...] | None, Field(min_length=1)] = None
    """Meshes to try: sizes by dimension, outermost first, such as {pp: 2, dp: rest, tp: 8}; one of
    them may be what is left of all ranks. Left out: tp inside a node, pp and dp over nodes."""
    inside_node: tuple[Text, ...] = ("tp",)
    """Dimensions whose groups stay inside a node."""

    @model_validator(mode="after")
    def _stays_inside_in_a_mesh(self) -> Self:
        if "inside_node" not in self.model_fields_set:
            return self  # tp, where there is one
        known = _PLANNED if self.meshes is None else tuple(dict.fromkeys(chain(*self.meshes)))
        for name in self.inside_node:
            if name not in known:
                raise ValueError(
                    f"inside_node has {name}, which is in no mesh; accepted: {', '.join(known)}"
                )
        return self


class DataCriterion(Criterion):
    """Shards are disjoint and complete, batches and metrics count right, seeds differ.

    All of it is exact: what can be set is only what it is tried with.
    """

    samples_per_rank: Annotated[int, Field(strict=True, ge=16)] = 64
    """Of the data set that is shared out; there are some more, so that shards come out uneven."""
    batch: Some = 8
    """Samples of one rank's micro-batch."""
    accumulation: Annotated[int, Field(strict=True, ge=1)] = 2
    """Micro-batches of a step of the optimiser."""
    workers: Count = 2
    """Of a rank's DataLoader, besides none."""
    sample_files: Some = 8
    """How many files of storage.datasets every rank reads, the first by name."""
    sample_size_bytes: Bytes = Field(1 << 20, alias="sample_size")
    """How much of the head of each is read."""

"""Promises about process groups over several dimensions, and about how data reach ranks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pytest_mnode.spec.fields import Bytes, Count, Some, Text
from pytest_mnode.spec.inventory import Criterion
from pytest_mnode.spec.quantity import shown

_PLANNED = ("pp", "dp", "tp")
"""Dimensions of the meshes that are tried if the spec names none."""
_FORM = "sizes by name, such as {pp: 2, dp: rest, tp: 8}"


def _mesh(written: Any) -> Any:
    """The mesh as written. Raises ValueError, which gives a name or size that no mesh can have."""
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
    """Meshes to try: sizes by dimension, outermost first, such as {pp: 2, dp: rest, tp: 8}; rest is
    what the other sizes leave of all ranks. Left out: tp inside a node, pp and dp over nodes."""
    inside_node: tuple[Text, ...] = ("tp",)
    """Dimensions whose groups stay inside a node."""

    @model_validator(mode="after")
    def _stays_inside_in_a_mesh(self) -> Self:
        if "inside_node" not in self.model_fields_set:
            return self  # the default, tp, applies only to meshes that have it
        known = _PLANNED if self.meshes is None else tuple(dict.fromkeys(chain(*self.meshes)))
        for name in self.inside_node:
            if name not in known:
                raise ValueError(
                    f"inside_node has {name}, which is in no mesh; accepted: {', '.join(known)}"
                )
        return self


class DataCriterion(Criterion):
    """Shards are disjoint and complete, batches and sums count right, and one seed draws alike.

    All of it is exact: only the data that it is tried with can be set.
    """

    samples_per_rank: Annotated[int, Field(strict=True, ge=16)] = 64
    """Samples of the sharded data set per rank; it has some more, so that shards are uneven."""
    batch: Some = 8
    """Samples of one rank's micro-batch."""
    accumulation: Annotated[int, Field(strict=True, ge=1)] = 2
    """Micro-batches per step of the optimiser."""
    workers: Count = 2
    """Workers of a rank's DataLoader, which is tried without workers too."""
    sample_files: Some = 8
    """Number of files of storage.datasets that every rank reads, the first by name."""
    sample_size_bytes: Bytes = Field(1 << 20, alias="sample_size")
    """Size of the head of each file that is read."""

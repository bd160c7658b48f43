"""What can be promised, one model a criterion: the place to add one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from pytest_mnode.spec import wire
from pytest_mnode.spec.fields import Bytes, Count, Fraction, Page, Some
from pytest_mnode.spec.quantity import RATE, SIZE
from pytest_mnode.verdict import Bound, at_least


class MeshCriterion(Page):
    """Every rank meets every other and sums right: exact, so there is no bound to set."""


class BusbwPromise(Page):
    """Bus bandwidth of a collective, as a part of the line rate of all NICs of a node."""

    at_least_fraction: Fraction
    """Of the line rate, reached at every size of the plateau by the median of the repeats."""
    tolerance_fraction: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.0
    """Of the line rate, by which a measured value may fall short of the bound."""
    sizes_bytes: tuple[Bytes, ...] = Field(alias="sizes", min_length=1)
    """Sizes swept, rising, such as 1 MiB; nccl-tests' meaning of a collective's size."""
    plateau_from_bytes: Bytes = Field(alias="plateau_from")
    """Sizes from here up are judged; smaller ones are only recorded."""
    warmup: Count = 2
    """Calls before the first that is timed, at each size."""
    repeats: Some = 5
    """Timed calls at each size, whose median is judged."""

    @field_validator("tolerance_fraction")
    @classmethod
    def _leaves_a_bound(cls, tolerance: float, info: ValidationInfo) -> float:
        fraction = info.data.get("at_least_fraction")
        if fraction is not None and tolerance >= fraction:
            raise ValueError(
                f"{tolerance:g} leaves a bound that nothing can miss; "
                f"accepted: less than at_least_fraction, {fraction:g}"
            )
        return tolerance

    @field_validator("sizes_bytes")
    @classmethod
    def _rises(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if sorted(set(sizes)) != list(sizes):
            shown = ", ".join(SIZE.text(size) for size in sizes)
            raise ValueError(f"[{shown}] does not rise; accepted: each size larger than the last")
        return sizes

    @field_validator("plateau_from_bytes")
    @classmethod
    def _leaves_a_plateau(cls, plateau_from: int, info: ValidationInfo) -> int:
        sizes = info.data.get("sizes_bytes")
        if sizes and plateau_from > sizes[-1]:
            raise ValueError(
                f"{SIZE.text(plateau_from)!r} leaves nothing to judge; "
                f"accepted: at most the largest of sizes, {SIZE.text(sizes[-1])!r}"
            )
        return plateau_from

    @property
    def plateau_sizes_bytes(self) -> tuple[int, ...]:
        """The sizes that are judged; never empty."""
        return tuple(size for size in self.sizes_bytes if size >= self.plateau_from_bytes)

    def bound_gbytes_s(self, fabric: wire.HasLineRate) -> Bound:
        """What busbw in GB/s must reach on `fabric`."""
        line_gbytes_s = wire.line_rate_gbytes_s(fabric)
        return at_least(
            self.at_least_fraction * line_gbytes_s, self.tolerance_fraction * line_gbytes_s
        )

    def source(self, fabric: wire.HasLineRate) -> str:
        """Where the bound comes from, for a reader of the measurement."""
        nics = f" × {fabric.nics_per_node} NICs" if fabric.nics_per_node > 1 else ""
        return (
            f"fabric.line_rate {RATE.text(fabric.line_rate_bits_s)}{nics}"
            f" × at_least_fraction {self.at_least_fraction:g}"
        )


class FabricCriterion(Page):
    """Collectives reach the line rate."""

    all_reduce_busbw: BusbwPromise
    """Bus bandwidth of all-reduce over all nodes."""


class Criteria(Page):
    """What is promised: one key a criterion, holding its bounds."""

    mesh: MeshCriterion | None = None
    """Does every rank meet and sum right?"""
    fabric: FabricCriterion | None = None
    """Does all-reduce reach the line rate?"""

"""What can be promised, one model a criterion: the place to add one."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pytest_mnode.measurement import Bound, at_least
from pytest_mnode.spec.data import DataCriterion
from pytest_mnode.spec.devices import DevicesCriterion
from pytest_mnode.spec.fields import Bytes, Count, Fraction, Page, Sizes, Some
from pytest_mnode.spec.gang import GangCriterion
from pytest_mnode.spec.groups import GroupsCriterion
from pytest_mnode.spec.launch import LaunchCriterion
from pytest_mnode.spec.line import BusbwLine, ring_line
from pytest_mnode.spec.numa import NumaCriterion
from pytest_mnode.spec.preflight import PreflightCriterion
from pytest_mnode.spec.quantity import SIZE
from pytest_mnode.spec.restart import RestartCriterion
from pytest_mnode.spec.scaling import ScalingCriterion
from pytest_mnode.spec.tools import NcclTestsPromise, WriteBandwidthPromise
from pytest_mnode.spec.transport import TransportPromise
from pytest_mnode.spec.wire import HasLineRate


class MeshCriterion(Page):
    """Every rank meets every other and sums right: exact, so there is no bound to set."""


class BusbwPromise(Page):
    """Bus bandwidth of a collective, as a part of the line rate of all NICs of a node."""

    at_least_fraction: Fraction
    """Of the line rate, reached at every size of the plateau by the median of the repeats."""
    tolerance_fraction: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.0
    """Of the line rate, by which a measured value may fall short of the bound."""
    sizes_bytes: Sizes = Field(alias="sizes")
    """Sizes swept, rising, such as 1 MiB; nccl-tests' meaning of a collective's size.

    A list, or {from: 8 KiB, to: 1 GiB, factor: 2}: from the first, each so many times the one
    before (2 unless said), and the last in any case.
    """
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

    def nic_mbits_s(self, fabric: HasLineRate) -> float:
        """What one NIC must carry for the bound to be in reach, Mbit/s."""
        fraction = self.at_least_fraction - self.tolerance_fraction
        return fraction * fabric.line_rate_bits_s / 1e6

    def bound_gbytes_s(self, on: BusbwLine | HasLineRate) -> Bound:
        """What busbw in GB/s must reach on a line, or on one ring over a fabric."""
        line = on if isinstance(on, BusbwLine) else ring_line(on)
        return at_least(
            self.at_least_fraction * line.gbytes_s, self.tolerance_fraction * line.gbytes_s
        )

    def source(self, on: BusbwLine | HasLineRate) -> str:
        """Where the bound comes from, for a reader of the measurement."""
        line = on if isinstance(on, BusbwLine) else ring_line(on)
        return f"{line.text} × at_least_fraction {self.at_least_fraction:g}"


class FabricCriterion(Page):
    """Collectives reach the line rate."""

    all_reduce_busbw: BusbwPromise | None = None
    """Bus bandwidth of all-reduce over all nodes."""
    all_gather_busbw: BusbwPromise | None = None
    """Bus bandwidth of all-gather over all nodes."""
    reduce_scatter_busbw: BusbwPromise | None = None
    """Bus bandwidth of reduce-scatter over all nodes."""
    all_to_all_busbw: BusbwPromise | None = None
    """Bus bandwidth of all-to-all over all nodes."""
    broadcast_busbw: BusbwPromise | None = None
    """Bus bandwidth of broadcast from rank 0 over all nodes."""
    send_recv_busbw: BusbwPromise | None = None
    """Bus bandwidth of each rank's exchange with its neighbours: it sends to the next rank and
    receives from the one before."""
    write_bandwidth: WriteBandwidthPromise | None = None
    """What ib_write_bw measures between neighbours, rail by rail."""
    nccl_tests: NcclTestsPromise | None = None
    """How nccl-tests are run; its tables are judged by the promises of the collectives."""
    transport: TransportPromise | None = None
    """Traffic runs on the fabric, by four facts that agree."""

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError(f"promises nothing; accepted: {', '.join(type(self).model_fields)}")
        return self

    def busbw(self, collective: str) -> BusbwPromise | None:
        """What is promised of a collective, by torch.distributed's name; None if nothing is."""
        found: BusbwPromise | None = getattr(self, f"{collective}_busbw", None)
        return found


class Criteria(Page):
    """What is promised: one key a criterion, holding its bounds."""

    preflight: PreflightCriterion | None = None
    """Is every node fit for what is to be run on it?"""
    mesh: MeshCriterion | None = None
    """Does every rank meet and sum right?"""
    numa: NumaCriterion | None = None
    """Do ranks run, allocate and send beside their accelerators?"""
    devices: DevicesCriterion | None = None
    """Is every rank as fast by itself as the others?"""
    fabric: FabricCriterion | None = None
    """Do collectives reach the line rate?"""
    groups: GroupsCriterion | None = None
    """Do parallel dimensions have the right ranks, and sum right?"""
    data: DataCriterion | None = None
    """Does every sample reach one rank, once?"""
    launch: LaunchCriterion | None = None
    """Does a job start right, wherever it is placed?"""
    scaling: ScalingCriterion | None = None
    """Is what n nodes lose against one explained, and small?"""
    restart: RestartCriterion | None = None
    """Does a killed job come back and lose nothing?"""
    gang: GangCriterion | None = None
    """Does a gang start whole, or wait?"""

"""Promises about each rank alone: how fast it computes and copies, and where it is placed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from pytest_mnode.evidence.check import catalogue
from pytest_mnode.spec.checked import CheckedCriterion
from pytest_mnode.spec.fields import (
    Bytes,
    Celsius,
    Fraction,
    Positive,
    Seconds,
    SecondsOrNone,
    Section,
    Some,
)
from pytest_mnode.spec.inventory import Dtype, NonEmptyCriterion
from pytest_mnode.spec.quantity import shown

EightBit = Literal["float8_e4m3fn", "float8_e5m2"]
MemoryPattern = Literal["address", "random", "inversions", "walking_ones", "walking_zeros"]


class RankPromise(Section):
    """No rank is much slower than the others."""

    at_least_fraction: Annotated[Fraction, Field(le=1)]
    """Fraction of the median of all ranks (of an even number, the upper of the middle two) that
    each rank reaches, or what the spread of healthy ranks explains. If some ranks are far faster
    than the median, most ranks may be slow, and only an absolute floor decides."""
    at_most_spreads: Positive | None = None
    """No rank is further below the median than this many times the spread: 1.4826 × the median
    deviation, at least 1 % of the median. From eight ranks on; fewer do not show what is usual."""
    repeats: Some = 3
    """Timed runs, whose median is judged."""


class MatmulPromise(RankPromise):
    """Products of square matrices, which also come out right."""

    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)] = ("float32",)
    """Data types of the matrices."""
    size: Some = 4096
    """Rows of a matrix: large enough that the device is busy, such as 8192 on a GPU."""
    at_least_tflops: Mapping[Dtype, Positive] = Field(default_factory=dict)
    """TFLOP/s that each rank reaches in any case, by dtype, such as {bfloat16: 600}."""
    slowed_at_most_fraction: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.05
    """Part of NVML's samples under load with a clock held back by heat, power brake or hardware.
    A device at its power limit (SwPowerCap) or without work (GpuIdle) is not held back."""
    at_least_sm_clock_mhz: Positive | None = None
    """Lowest median SM clock of each GPU under load, in MHz, such as 1400."""

    @model_validator(mode="after")
    def _floors_are_measured(self) -> Self:
        for dtype in self.at_least_tflops:
            if dtype not in self.dtypes:
                raise ValueError(
                    f"at_least_tflops for {dtype}, which is not measured; "
                    f"accepted: {', '.join(self.dtypes)}"
                )
        return self


class CopyPromise(RankPromise):
    """Copies of one buffer to another."""

    size_bytes: Bytes = Field(64 << 20, alias="size")
    """Size of the buffer: several times the caches that all ranks of a node share."""
    at_least_gbytes_s: Positive | None = None
    """GB/s that each rank reaches while all copy at once; bytes copied, not bytes moved."""
    alone_at_least_gbytes_s: Positive | None = None
    """GB/s that each rank reaches while no other rank of its node copies, as checks of one GPU at
    a time define it."""


class HostMemoryPromise(RankPromise):
    """No NUMA node's memory is much slower than the others'."""

    size_bytes: Bytes = Field(1 << 30, alias="size")
    """Bytes that the cores of a NUMA node copy: several times its last-level cache."""
    at_least_gbytes_s: Positive | None = None
    """GB/s that each NUMA node reaches; bytes copied, not bytes moved."""


class InsideNodePromise(RankPromise):
    """Exchanges inside a node are as fast as those inside the others, and as its links allow."""

    size_bytes: Bytes = Field(1 << 30, alias="size")
    """Bytes of a message: large enough that latency is a small part, such as 1 GiB of NVLink."""
    model_at_least_fraction: Annotated[Fraction, Field(le=2)] | None = None
    """Fraction of what a ring over the node's links reaches, by accelerators.model or
    accelerators.domain.bandwidth, that each node's all-reduce reaches."""


class TrainingStepPromise(Section):
    """All ranks compute the same training steps, bit by bit."""

    steps: Some = 8
    """Steps of a small transformer, from the same parameters and samples on each of `ranks`."""
    ranks: Annotated[int, Field(strict=True, ge=2)] = 3
    """Number of ranks that train the same model, on different nodes; a vote needs three."""
    width: Some = 1024
    """Width of the model: large enough that the device is busy."""
    layers: Some = 4
    """Layers of the model."""
    context: Annotated[int, Field(strict=True, ge=2)] = 256
    """Tokens of a sample."""
    batch: Some = 8
    """Samples of a step."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes under autocast."""
    turns: Some = 1
    """How often, each time with other models and other partners."""
    duration_s: Seconds | None = Field(None, alias="for")
    """Turns go on at least so long, such as 10 min: some errors come with heat."""


class RepeatedProductsPromise(Section):
    """Small matrix products from the same seeds are equal on all ranks, bit by bit."""

    products: Some = 10_000
    """Least number of products of each rank and data type. n right ones exclude, with 95 %, a rank
    that computes more than 3/n wrongly."""
    dtypes: Annotated[tuple[Dtype | EightBit, ...], Field(min_length=1)] = ("float32", "bfloat16")
    """Data types of the matrices, as far as the devices have them."""
    size: Annotated[int, Field(strict=True, ge=16, multiple_of=16)] = 256
    """Rows of a matrix; 64 products are computed at once, and keep a large GPU busy from 256 on."""
    duration_s: Seconds | None = Field(None, alias="for")
    """Products go on at least so long for each data type, such as 10 min: some errors come with
    heat."""


class MemoryTestPromise(Section):
    """Every word of an accelerator's memory reads as it was written."""

    fraction: Annotated[Fraction, Field(le=1)] = 0.9
    """Part of the memory of each accelerator that is tested, at once. Drivers and libraries hold
    some of it: more than 0.95 is seldom there."""
    host_bytes: Annotated[Bytes, Field(ge=1 << 16)] = Field(1 << 26, alias="host")
    """Memory of the host that each rank without an accelerator tests instead, such as 1 GiB."""
    patterns: Annotated[tuple[MemoryPattern, ...], Field(min_length=1)] = get_args(MemoryPattern)
    """What is written: each word's own address; random words by seed; moving inversions; a single
    1, and a single 0, that walks through all bits of each word."""
    passes: Some = 1
    """How often all patterns are written, each time with other random words."""
    within_s: Seconds = Field(600.0, alias="within")
    """Longest time of a rank. Patterns that it leaves out are inconclusive."""


class LoadPromise(Section):
    """What devices show of themselves at the end of a load: the median of its last third.

    Each bound that is left out is recorded and not judged.
    """

    duration_s: Seconds = Field(120.0, alias="for")
    """Duration of the load; temperatures of air-cooled devices settle in minutes."""
    dtype: Dtype = "bfloat16"
    """Data type of the matrices that all devices multiply meanwhile."""
    size: Some = 8192
    """Rows of a matrix."""
    temperature_at_most_c: Celsius | None = Field(None, alias="temperature_at_most")
    """Highest temperature of each device, such as 87 °C."""
    memory_temperature_at_most_c: Celsius | None = Field(None, alias="memory_temperature_at_most")
    """The same of its memory, such as 95 °C."""
    temperature_spread_at_most_c: Celsius | None = Field(None, alias="temperature_spread_at_most")
    """How much hotter a device may be than the median of those at the same place of all nodes."""
    clock_at_least_fraction: Annotated[Fraction, Field(le=1)] | None = None
    """Fraction of the median clock of all devices that each one reaches; judged as rates are."""
    power_at_least_fraction: Annotated[Fraction, Field(le=1)] | None = None
    """The same of the power that devices draw: a cap on one node shows."""
    throttled_at_most_s: SecondsOrNone | None = Field(None, alias="throttled_at_most")
    """How long heat, a power brake or hardware may hold a clock back in all, such as 0 s. A device
    at its power limit is not held back."""


class DevicesCriterion(CheckedCriterion, NonEmptyCriterion):
    """Each rank is as fast as the others. What is left out is not promised.

    Checks add their keys: see `pytest_mnode.checks.world_check`.
    """

    of = "devices"

    @property
    def comparisons(self) -> int:
        """Number of comparisons of ranks of all promises: products by data type, copies, loads."""
        return sum(one.comparisons for one in self.asked())

    @property
    def promised_s(self) -> float:
        """Seconds that the durations of all promises take together."""
        return float(sum(one.duration_s for one in self.asked()))


class NearDistance(Section):
    """How far a NUMA node may be to count as near."""

    distance: Annotated[int, Field(strict=True, ge=10, le=254)]
    """Largest distance that firmware may report (`/sys/devices/system/node/node*/distance`): 10 is
    the node itself, 11 and 12 usual within a socket, 20 and more between sockets."""


def _near(written: Any) -> Any:
    """One message for the three forms, in place of one for each."""
    distance = written.get("distance") if isinstance(written, dict) and len(written) == 1 else None
    if isinstance(distance, int) and 10 <= distance <= 254:
        return NearDistance(distance=distance)
    if written in ("node", "socket") or isinstance(written, NearDistance):
        return written
    raise ValueError(
        f"{shown(written)}; accepted: node, socket, or a {{distance: 12}} from 10 to 254"
    )


Near = Literal["node", "socket"] | NearDistance
"""Which NUMA nodes are near an accelerator."""


class NumaCriterion(CheckedCriterion):
    """Ranks run, allocate and send beside their accelerators, or, without any, beside a NIC of the
    fabric. What is left out is not promised.

    Checks add their keys: see `pytest_mnode.checks.placement_check`.
    """

    of = "numa"
    near: Annotated[Near, BeforeValidator(_near)] = "socket"
    """What is near: the accelerator's own NUMA node; its socket, of which AMD's NPS and Intel's SNC
    make several NUMA nodes; or what firmware says is not farther than {distance: 12}. A GPU's own
    memory, which has no CPUs, is near to the socket that it is attached to."""
    copy_size_bytes: Bytes = Field(256 << 20, alias="copy_size")
    """Size of the copied buffer: several times the last-level cache, such as 256 MiB."""
    copy_repeats: Some = 5
    """Timed copies, whose median is judged."""

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if not any(True for _ in self.asked()):
            names = (key.partition(".")[2] for one in catalogue(self.of) for key in one.all_keys())
            raise ValueError(f"promises nothing; accepted: at least one of {', '.join(names)}")
        return self

"""Promises about the fabric: bus bandwidth, measurements of other programs, the transport."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from pytest_mnode.measurement import Bound, Measurement, at_least
from pytest_mnode.spec.alpha_beta import NVLS_USED, Algorithm, CollectiveModel, NvLink
from pytest_mnode.spec.bandwidth import NicRates
from pytest_mnode.spec.fields import (
    Bytes,
    Count,
    Fraction,
    Seconds,
    Section,
    Share,
    Sizes,
    Some,
    Text,
    rising,
)
from pytest_mnode.spec.inventory import Inventory, NonEmptyCriterion
from pytest_mnode.spec.quantity import SIZE
from pytest_mnode.spec.traffic import (
    BisectionPromise,
    CongestionPromise,
    FailoverPromise,
    IncastPromise,
    SwitchesPromise,
)

COMMAND_FIELDS = ("program", "ranks", "nodes", "per_node", "hosts", "names", "from", "to")
"""Fields of the command that starts nccl-tests."""


class BusbwPromise(Section):
    """Bus bandwidth of a collective, as a fraction of what the model gives at each size."""

    at_least_fraction: Annotated[Fraction, Field(le=2)]
    """Fraction of the model's busbw, steps included, that is reached at each size judged."""
    tolerance_fraction: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.0
    """Fraction of the model's busbw by which a measured value may fall short of the bound."""
    sizes_bytes: Sizes = Field(alias="sizes")
    """Sizes to sweep, ascending, such as 1 MiB; a collective's size is as nccl-tests defines it.

    A list, or {from: 8 KiB, to: 1 GiB, factor: 2}: each size is factor times the one before (2 by
    default), and the last is always included.
    """
    plateau_from_bytes: Bytes | None = Field(None, alias="plateau_from")
    """Sizes from here up are judged; smaller ones are only recorded. Left out: from the size at
    which the model's ring reaches 0.95 of its line. The largest size always is."""
    step_at_most_s: Seconds | None = Field(None, alias="step_at_most")
    """Mean time of a step of the smallest size, where steps take most of the time, such as 20 us;
    left out: it is recorded beside the model's, and fails above five times that on InfiniBand, RoCE
    and EFA."""
    warmup: Count = 2
    """Calls before the first that is timed, at each size."""
    repeats: Some = 5
    """Timed runs of calls at each size. At sizes of the plateau they are spread over the
    communicators, three on each at least; the median of each communicator counts."""
    communicators: Annotated[int, Field(strict=True, ge=3)] = 3
    """Process groups made anew, each with connections and so paths of its own, on which each size
    of the plateau is measured; their mean is judged. While its interval contains the bound, more
    follow, up to four times as many. nccl-tests are run as often."""

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
        return rising(sizes, "size", SIZE.text)

    @field_validator("plateau_from_bytes")
    @classmethod
    def _leaves_a_plateau(cls, plateau_from: int | None, info: ValidationInfo) -> int | None:
        sizes = info.data.get("sizes_bytes")
        if sizes and plateau_from is not None and plateau_from > sizes[-1]:
            raise ValueError(
                f"{SIZE.text(plateau_from)!r} leaves nothing to judge; "
                f"accepted: at most the largest of sizes, {SIZE.text(sizes[-1])!r}"
            )
        return plateau_from

    def judged_from_bytes(self, model: CollectiveModel) -> int:
        """The size from which busbw is judged."""
        if self.plateau_from_bytes is not None:
            return self.plateau_from_bytes
        return min(self.sizes_bytes[-1], model.knee_bytes)

    def judged_sizes_bytes(self, model: CollectiveModel) -> tuple[int, ...]:
        """The sizes that are judged; never empty."""
        start = self.judged_from_bytes(model)
        return tuple(size for size in self.sizes_bytes if size >= start)

    def nic_mbits_s(self, fabric: NicRates) -> float:
        """Rate that one NIC must carry for the bound to be in reach, in Mbit/s."""
        fraction = self.at_least_fraction - self.tolerance_fraction
        return fraction * fabric.line_rate_bits_s / 1e6

    def bound_gbytes_s(
        self, model: CollectiveModel, algorithms: Sequence[Algorithm], size_bytes: int
    ) -> Bound:
        """Bound of busbw in GB/s at one size: of the least that these algorithms give.

        Below the knee, where α counts, steps may take longer.
        """
        model = model.allowing_slow_steps(size_bytes)
        expected = model.least_gbytes_s(algorithms, size_bytes)
        bound = at_least(self.at_least_fraction * expected, self.tolerance_fraction * expected)
        bound = bound.of("at_least_fraction", self.at_least_fraction)
        return model.terms(bound, algorithms, size_bytes)

    def source(
        self, model: CollectiveModel, algorithms: Sequence[Algorithm], size_bytes: int
    ) -> str:
        """Where the bound comes from, for a reader of the measurement."""
        model = model.allowing_slow_steps(size_bytes)
        expected = model.least_gbytes_s(algorithms, size_bytes)
        named = " or ".join(algorithms)
        found = (
            f"{named} by the model: {expected:.4g} GB/s with {model.line.text} and steps of "
            f"{model.platform.alpha.source}; × at_least_fraction {self.at_least_fraction:g}"
        )
        if model.nvls_gives_more and tuple(algorithms) == model.default:
            more = self.bound_with_nvls(model, size_bytes)
            found += f"; NVLS, which would promise {more:.4g}, is "
            found += f"off: {model.nvls.why}" if model.nvls.used is False else "not known to be on"
        return found

    def bound_with_nvls(self, model: CollectiveModel, size_bytes: int) -> float:
        """The least busbw in GB/s that is accepted where NVLS is known to be used."""
        used = replace(model, nvls=NVLS_USED)
        return self.bound_gbytes_s(used, used.default, size_bytes).accepted[0]

    def why_undecided(
        self,
        model: CollectiveModel,
        algorithms: Sequence[Algorithm],
        size_bytes: int,
        judged: Measurement,
    ) -> str:
        """Why a busbw that keeps a ring's bound is no pass; "" if it is one.

        On few domains a ring's bound would let a quarter of dead NICs pass if NVLS is used.
        """
        is_default = tuple(algorithms) == model.default
        if not is_default or model.nvls.used is not None or not model.nvls_gives_more:
            return ""
        ring = self.bound_gbytes_s(model, algorithms, size_bytes).accepted[0]
        more = self.bound_with_nvls(model, size_bytes)
        busbw = judged.known
        if busbw is None or busbw < ring or busbw >= more:
            return ""
        return (
            f"{busbw:.4g} GB/s keeps the bound of a ring, {ring:.4g}, and not that of "
            f"NVLS, {more:.4g}; {model.nvls.why}"
        )


USUAL_FRACTIONS = {
    "all_reduce": 0.78,
    "all_gather": 0.7,
    "reduce_scatter": 0.7,
    "broadcast": 0.65,
    "reduce": 0.65,
    "all_to_all": 0.7,
    "send_recv": 0.75,
}
"""Fraction of the model for results that a spec promises nothing about. [choice] A tenth less than
the least of published healthy runs: all_reduce 0.80 (4 nodes of A100, coreweave/nccl-tests),
all_gather 0.79 to 0.94 (DGX Spark, H100, H200), broadcast 0.72 (aigatech/vpbenchmarking),
all_to_all 0.78 (Oracle's guide to MI355X) to 0.96 (B300), send_recv 0.97 over nodes and 0.83 in
one. A path at half its rate misses each; all_reduce has a promise in every profile."""
INSIDE_FRACTION, OVER_PCIE_FRACTION = 0.9, 0.55
"""Of an all-reduce inside one node: Azure takes nodes of H200 out below 431 of 480 GB/s, H100 below
460 (Azure/azurehpc-health-checks, conf/). Of any collective over PCIe: without a switch 22 of 38
are usual (RTX 5090, NVIDIA/nccl-tests #332), or 7.1 of 9.4 (V100)."""


def usual_promise(
    collective: str, all_reduce: BusbwPromise | None, inside: NvLink | None
) -> BusbwPromise:
    """The promise that results are held to where the spec has none.

    all_reduce: the spec's, which other collectives over nodes need not exceed. inside: what joins
    the ranks of one node; None over nodes.
    """
    fraction = USUAL_FRACTIONS[collective]
    if inside is not None and inside.is_pcie:
        fraction = OVER_PCIE_FRACTION
    elif inside is not None and collective == "all_reduce":
        fraction = INSIDE_FRACTION
    elif all_reduce is not None and inside is None:
        fraction = min(fraction, all_reduce.at_least_fraction - all_reduce.tolerance_fraction)
    sizes = {"from": "1 MiB", "to": "64 GiB"}
    return BusbwPromise.model_validate({"at_least_fraction": fraction, "sizes": sizes})


class PerftestPromise(Section):
    """How a program of perftest is run from each node to the next, over each rail."""

    program: Text
    """Its path, or its name on the nodes' PATH."""
    arguments: tuple[Text, ...] = ()
    """Further arguments, such as ["-x", "3"] for a GID index or ["-q", "4"] for queue pairs."""
    binding: Literal["nic", "none"] = "nic"
    """Client and server run, and have their memory, on the NUMA node of their NIC, and where they
    ran is judged; none: wherever the system puts them, unjudged."""
    repeats: Some = 3
    """Runs of each pair, whose mean is judged: each connects anew. While the interval of a pair
    contains the bound, its rail gets more, up to four times as many."""


class RdmaBandwidthPromise(PerftestPromise):
    """Bandwidth by perftest from each node to the next, over each rail."""

    at_least_fraction: Annotated[Fraction, Field(le=1)] = 0.96
    """Fraction of fabric.line_rate."""
    size_bytes: Bytes = Field(1 << 20, alias="size")
    """Size of a message, such as 1 MiB."""
    duration_s: Annotated[Seconds, Field(ge=1, le=600)] = Field(2.0, alias="duration")
    """Duration of each run of a pair, in whole seconds, such as 2 s."""
    memory: Literal["host", "gpu"] = "host"
    """Memory that is sent; gpu: of the GPU nearest to each NIC, by perftest's CUDA options."""


class WriteBandwidthPromise(RdmaBandwidthPromise):
    """ib_write_bw from each node to the next, over each rail, as a part of one port's line rate."""

    program: Text = "ib_write_bw"
    """Its path, or its name on the nodes' PATH."""


class ReadBandwidthPromise(RdmaBandwidthPromise):
    """ib_read_bw: each node reads from the next, over each rail."""

    program: Text = "ib_read_bw"
    """Its path, or its name on the nodes' PATH."""


class SendBandwidthPromise(RdmaBandwidthPromise):
    """ib_send_bw from each node to the next, over each rail."""

    program: Text = "ib_send_bw"
    """Its path, or its name on the nodes' PATH."""


class WriteLatencyPromise(PerftestPromise):
    """ib_write_lat from each node to the next, over each rail, one pair of a node at a time."""

    at_most_s: Seconds = Field(alias="at_most")
    """The typical (median) time of a message one way, such as 5 us."""
    size_bytes: Bytes = Field(2, alias="size")
    """Size of a message."""
    iterations: Annotated[int, Field(strict=True, ge=100, le=1_000_000)] = 5000
    """Number of messages."""
    program: Text = "ib_write_lat"
    """Its path, or its name on the nodes' PATH."""


class NcclTestsPromise(Section):
    """nccl-tests over all nodes, judged by the promises of the collectives they measure."""

    command: Text | None = None
    """Starts a program on the first node; left out: `srun` in a Slurm allocation, else `mpirun`,
    with `-b {from} -e {to} -f 2 -g 1 -N 4`. Filled in are {program}, {ranks}, {nodes}, {per_node},
    {hosts} (NODE:RANKS,…), {names} (NODE,…), {from} and {to} in bytes. It is run as
    often as the promise has communicators; each run counts by the median of its cycles (-N)."""
    directory: Text | None = None
    """Directory of all_reduce_perf and the others; left out: the PATH of the first node."""
    limit_s: Seconds = Field(600.0, alias="limit")
    """How long one program may take, such as 10 min."""

    @field_validator("command")
    @classmethod
    def _can_be_filled_in(cls, command: str | None) -> str | None:
        if command is None:
            return None
        try:
            words = shlex.split(command.format_map(dict.fromkeys(COMMAND_FIELDS, "1")))
        except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
            names = ", ".join(f"{{{name}}}" for name in COMMAND_FIELDS)
            why = f"{{{error.args[0]}}}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{command!r} cannot be filled in: {why}; accepted: {names}") from None
        if "{program}" not in command or not words:
            raise ValueError(f"{command!r} does not start {{program}}")
        return command


class TransportPromise(Section):
    """Traffic runs on the fabric, by what is pinned, logged, counted, and quiet elsewhere."""

    size_bytes: Bytes = Field(1 << 30, alias="size")
    """Size of the all-reduce that is sent for the proof, such as 1 GiB: far more than ranks and
    nodes otherwise send meanwhile."""
    calls: Some = 4
    """How often it is sent; a backend that takes its interfaces in turn needs several."""
    under_fraction: Share = 0.02
    """Part of the bytes that the algorithm must move by which the counters may fall short."""
    over_fraction: Share = 0.1
    """Part of these bytes, headers included, by which the counters may exceed them:
    acknowledgements, packets sent twice, other traffic between nodes."""
    elsewhere_fraction: Share = 0.02
    """Largest part of these bytes that each other NIC may send; a link with more is not quiet."""
    rail_fraction: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.5
    """Part of its even share that each NIC of the fabric must carry at least."""
    roce_version: Literal["v1", "v2"] = "v2"
    """Version of RoCE to use, by the type of the GIDs: v2 is routed (UDP), v1 is not."""


class FabricCriterion(NonEmptyCriterion):
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
    receives from the one before; with several ranks a node, then also with the ranks of its place
    on the neighbouring nodes, which uses every rail."""
    write_bandwidth: WriteBandwidthPromise | None = None
    """What ib_write_bw measures between neighbours, rail by rail."""
    read_bandwidth: ReadBandwidthPromise | None = None
    """What ib_read_bw measures, in the same way."""
    send_bandwidth: SendBandwidthPromise | None = None
    """What ib_send_bw measures, in the same way."""
    write_latency: WriteLatencyPromise | None = None
    """What ib_write_lat measures, in the same way."""
    nccl_tests: NcclTestsPromise | None = None
    """How nccl-tests are run; its tables are judged by the promises of the collectives."""
    transport: TransportPromise | None = None
    """Traffic runs on the fabric, by four facts that agree."""
    bisection: BisectionPromise | None = None
    """All nodes of one half exchange with those of the other at once."""
    incast: IncastPromise | None = None
    """All nodes send to one, in turns: what arrives, and what is lost."""
    congestion: CongestionPromise | None = None
    """What an all-reduce of some nodes loses beside traffic of others."""
    failover: FailoverPromise | None = None
    """What a port costs that goes down under load: each named port is taken down."""
    switches: SwitchesPromise | None = None
    """The switches of an InfiniBand fabric: their links, errors and subnet manager."""

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """One line for each promise under which a fault would not show, or a run lose its nodes."""
        used = cluster.management.interfaces if cluster.management else ()
        if self.failover is not None and (both := sorted({*self.failover.ports} & {*used})):
            yield (
                f"criteria.fabric.failover.ports: {', '.join(both)} is of management, and is taken "
                "down: the run would lose its nodes"
            )
        for key in ("write_bandwidth", "read_bandwidth", "send_bandwidth"):
            promise = getattr(self, key)
            if promise is not None and promise.at_least_fraction <= 0.5:
                yield (
                    f"criteria.fabric.{key}.at_least_fraction: {promise.at_least_fraction:g}: "
                    "a port at half its speed passes"
                )

    def busbw(self, collective: str) -> BusbwPromise | None:
        """The promise for a collective, by torch.distributed's name; None if there is none."""
        found: BusbwPromise | None = getattr(self, f"{collective}_busbw", None)
        return found
